// The free bytes of a HostPool's slabs: best-fit, joined with their neighbours when idle, and with
// the uses that are still in flight on them. Inside HostPool only; not thread-safe.
#pragma once

#include "swapline/memory/shared_event.h"

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

namespace swapline::detail {

// Bytes of one slab, and copies that may still read or write them.
struct Piece {
  uintptr_t begin = 0;
  size_t bytes = 0;
  uintptr_t slab = 0;  // the slab's first byte: pieces of two slabs are never joined
  std::vector<SharedEvent> uses;
};

class FreePieces {
 public:
  void add(Piece piece);
  // `bytes` in one piece: from idle bytes, else from bytes whose uses are in flight (those given
  // back longest ago first), else from neighbours joined. The rest stays free.
  std::optional<Piece> take(size_t bytes);
  // The largest piece of at least `least` bytes, cut to `most`.
  std::optional<Piece> take_largest(size_t least, size_t most);
  // Wholly free slabs leave the list; their uses come with them.
  std::vector<Piece> take_whole_slabs(const std::map<uintptr_t, size_t>& slab_bytes);

 private:
  struct Free {
    size_t bytes = 0;
    uintptr_t slab = 0;
    uint64_t sequence = 0;  // of being given back
    std::vector<SharedEvent> uses;
  };
  using Pieces = std::map<uintptr_t, Free>;

  void settle();
  void insert_idle(uintptr_t begin, size_t bytes, uintptr_t slab);
  void forget(Pieces::iterator piece);
  Piece remove(Pieces::iterator piece);
  Piece cut(Piece piece, size_t bytes);
  std::optional<Piece> take_run(size_t bytes);

  Pieces pieces_;
  std::set<std::pair<size_t, uintptr_t>> idle_;               // bytes, begin
  std::set<std::tuple<size_t, uint64_t, uintptr_t>> busy_;    // bytes, sequence, begin
  std::deque<std::pair<uintptr_t, uint64_t>> busy_in_order_;  // entries taken meanwhile included
  uint64_t next_sequence_ = 0;
};

}  // namespace swapline::detail
