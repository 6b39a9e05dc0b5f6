// Best-fit over idle and busy pieces.
#include "swapline/memory/free_pieces.h"

#include <algorithm>
#include <iterator>

namespace swapline::detail {

void FreePieces::add(Piece piece) {
  auto& uses = piece.uses;
  // Pieces cut from one and joined again bring the same uses twice.
  std::sort(uses.begin(), uses.end());
  uses.erase(std::unique(uses.begin(), uses.end()), uses.end());
  std::erase_if(uses, is_done);
  if (uses.empty()) {
    insert_idle(piece.begin, piece.bytes, piece.slab);
    return;
  }
  const uint64_t sequence = next_sequence_++;
  busy_.emplace(piece.bytes, sequence, piece.begin);
  busy_in_order_.emplace_back(piece.begin, sequence);
  pieces_.emplace(piece.begin, Free{piece.bytes, piece.slab, sequence, std::move(uses)});
}

void FreePieces::insert_idle(uintptr_t begin, size_t bytes, uintptr_t slab) {
  auto next = pieces_.lower_bound(begin);
  if (next != pieces_.end() && next->first == begin + bytes && next->second.slab == slab &&
      next->second.uses.empty()) {
    bytes += next->second.bytes;
    const auto joined = next++;
    forget(joined);
  }
  if (next != pieces_.begin()) {
    const auto before = std::prev(next);
    if (before->first + before->second.bytes == begin && before->second.slab == slab &&
        before->second.uses.empty()) {
      begin = before->first;
      bytes += before->second.bytes;
      forget(before);
    }
  }
  idle_.emplace(bytes, begin);
  pieces_.emplace(begin, Free{bytes, slab, 0, {}});
}

void FreePieces::forget(Pieces::iterator piece) {
  const auto& [begin, free] = *piece;
  if (free.uses.empty()) {
    idle_.erase({free.bytes, begin});
  } else {
    busy_.erase({free.bytes, free.sequence, begin});
  }
  pieces_.erase(piece);
}

Piece FreePieces::remove(Pieces::iterator piece) {
  // The index entries are dropped while the uses still tell which index holds the piece.
  Piece removed{piece->first, piece->second.bytes, piece->second.slab, piece->second.uses};
  forget(piece);
  return removed;
}

// Copies are done in about the order in which their buffers came back, so the first one still in
// flight ends the search.
void FreePieces::settle() {
  while (!busy_in_order_.empty()) {
    const auto [begin, sequence] = busy_in_order_.front();
    const auto piece = pieces_.find(begin);
    const bool is_current =
        piece != pieces_.end() && !piece->second.uses.empty() && piece->second.sequence == sequence;
    if (is_current) {
      const auto& uses = piece->second.uses;
      if (!std::all_of(uses.begin(), uses.end(), is_done)) {
        return;
      }
      const Piece done = remove(piece);
      insert_idle(done.begin, done.bytes, done.slab);
    }
    busy_in_order_.pop_front();
  }
}

Piece FreePieces::cut(Piece piece, size_t bytes) {
  if (piece.bytes > bytes) {
    add({piece.begin + bytes, piece.bytes - bytes, piece.slab, piece.uses});
    piece.bytes = bytes;
  }
  return piece;
}

std::optional<Piece> FreePieces::take(size_t bytes) {
  settle();
  if (const auto fit = idle_.lower_bound({bytes, 0}); fit != idle_.end()) {
    return cut(remove(pieces_.find(fit->second)), bytes);
  }
  if (const auto fit = busy_.lower_bound({bytes, 0, 0}); fit != busy_.end()) {
    return cut(remove(pieces_.find(std::get<2>(*fit))), bytes);
  }
  return take_run(bytes);
}

std::optional<Piece> FreePieces::take_run(size_t bytes) {
  uintptr_t best_begin = 0;
  size_t best_bytes = 0;
  for (auto first = pieces_.begin(); first != pieces_.end();) {
    size_t run = first->second.bytes;
    auto next = std::next(first);
    while (next != pieces_.end() && next->first == first->first + run &&
           next->second.slab == first->second.slab) {
      run += next->second.bytes;
      ++next;
    }
    if (run >= bytes && (best_bytes == 0 || run < best_bytes)) {
      best_begin = first->first;
      best_bytes = run;
    }
    first = next;
  }
  if (best_bytes == 0) {
    return std::nullopt;
  }
  Piece joined{best_begin, 0, 0, {}};
  while (joined.bytes < best_bytes) {
    Piece part = remove(pieces_.find(best_begin + joined.bytes));
    joined.bytes += part.bytes;
    joined.slab = part.slab;
    std::move(part.uses.begin(), part.uses.end(), std::back_inserter(joined.uses));
  }
  // Once more through the list: it drops what came twice.
  add(std::move(joined));
  return cut(remove(pieces_.find(best_begin)), bytes);
}

std::optional<Piece> FreePieces::take_largest(size_t least, size_t most) {
  settle();
  if (!idle_.empty() && idle_.rbegin()->first >= least) {
    return cut(remove(pieces_.find(idle_.rbegin()->second)), most);
  }
  if (!busy_.empty() && std::get<0>(*busy_.rbegin()) >= least) {
    return cut(remove(pieces_.find(std::get<2>(*busy_.rbegin()))), most);
  }
  return std::nullopt;
}

std::vector<Piece> FreePieces::take_whole_slabs(const std::map<uintptr_t, size_t>& slab_bytes) {
  std::vector<Piece> whole;
  for (const auto& [slab, bytes] : slab_bytes) {
    const auto first = pieces_.lower_bound(slab);
    size_t free_bytes = 0;
    for (auto piece = first; piece != pieces_.end() && piece->second.slab == slab; ++piece) {
      free_bytes += piece->second.bytes;
    }
    if (free_bytes != bytes) {
      continue;
    }
    Piece joined{slab, 0, slab, {}};
    while (joined.bytes < bytes) {
      Piece part = remove(pieces_.find(slab + joined.bytes));
      joined.bytes += part.bytes;
      std::move(part.uses.begin(), part.uses.end(), std::back_inserter(joined.uses));
    }
    whole.push_back(std::move(joined));
  }
  return whole;
}

}  // namespace swapline::detail
