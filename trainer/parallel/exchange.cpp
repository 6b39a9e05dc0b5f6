// Kernels that gather rows or put them in place are concatenations: they read and write each row
// once. A lane's rows for itself are read where they are.
#include "trainer/parallel/exchange.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <c10/core/GradMode.h>
#include <c10/core/impl/VirtualGuardImpl.h>

namespace swapline::trainer {
namespace {

// What all lanes' links move in some tens of microseconds, the time of a few launches.
constexpr int64_t kPackedBytes = int64_t{8} << 20;

at::Tensor rows_like(const at::Tensor& matrix, int64_t num_rows) {
  return at::empty({num_rows, matrix.size(1)}, matrix.options());
}

at::Tensor joined(const Pieces& pieces) {
  return pieces.size() == 1 ? pieces.front() : at::cat(pieces);
}

Pieces flat(const Pieces& pieces) {
  Pieces result;
  for (const at::Tensor& piece : pieces) {
    result.push_back(piece.flatten());
  }
  return result;
}

void append(Pieces& pieces, const Pieces& others) {
  pieces.insert(pieces.end(), others.begin(), others.end());
}

// Matrices cut from the front of a flat tensor.
class Cutter {
 public:
  explicit Cutter(at::Tensor flat) : flat_(std::move(flat)) {}

  at::Tensor cut(int64_t numel) {
    taken_ += numel;
    return flat_.narrow(0, taken_ - numel, numel);
  }
  at::Tensor cut(int64_t num_rows, int64_t num_columns) {
    return cut(num_rows * num_columns).view({num_rows, num_columns});
  }

 private:
  at::Tensor flat_;
  int64_t taken_ = 0;
};

int64_t numel_of(const Pieces& pieces) {
  int64_t sum = 0;
  for (const at::Tensor& piece : pieces) {
    sum += piece.numel();
  }
  return sum;
}

// By receiver, as one flat tensor each: the piece itself, or all receivers' pieces gathered.
Pieces gathered(const std::vector<Pieces>& by_receiver) {
  Pieces all;
  bool is_gathered = true;
  for (const Pieces& pieces : by_receiver) {
    append(all, flat(pieces));
    is_gathered &= pieces.size() <= 1;
  }
  if (all.empty()) {
    return Pieces(by_receiver.size());
  }
  Cutter from_all(is_gathered ? at::Tensor() : at::cat(all));
  Pieces result;
  for (const Pieces& pieces : by_receiver) {
    if (pieces.empty()) {
      result.emplace_back();
    } else {
      result.push_back(is_gathered ? pieces.front().flatten() : from_all.cut(numel_of(pieces)));
    }
  }
  return result;
}

// All that a lane gets from another stays together.
bool is_by_sender(const std::vector<RowRun>& arriving) {
  std::vector<size_t> senders;
  for (const RowRun& run : arriving) {
    senders.push_back(run.peer);
  }
  std::sort(senders.begin(), senders.end());
  return std::adjacent_find(senders.begin(), senders.end()) == senders.end();
}

}  // namespace

void wait_for(std::vector<SharedEvent>& events) {
  for (const SharedEvent& event : events) {
    const c10::Device device = event->device();
    event->block(c10::impl::VirtualGuardImpl(device.type()).getStream(device));
  }
  events.clear();
}

int64_t Shipment::num_bytes() const {
  int64_t most = 0;
  for (size_t lane = 0; lane < route.leaving.size(); ++lane) {
    int64_t bytes = 0;
    for (const PerLane& matrix : matrices) {
      bytes += static_cast<int64_t>(matrix[lane].nbytes());
    }
    most = std::max(most, bytes);
  }
  return most;
}

Exchange::Exchange(std::vector<Shipment> shipments) {
  int64_t num_bytes = 0;
  is_packed_ = true;
  for (Shipment& shipment : shipments) {
    num_bytes += shipment.num_bytes();
    num_matrices_.push_back(shipment.matrices.size());
    for (PerLane& matrix : shipment.matrices) {
      cargo_.push_back({std::move(matrix), shipment.route, {}, {}});
      is_packed_ &= cargo_.back().sent.front().dtype() == cargo_.front().sent.front().dtype();
    }
  }
  is_packed_ &= num_bytes <= kPackedBytes;
  for (Cargo& cargo : cargo_) {
    cargo.pieces.assign(num_lanes(), std::vector<Pieces>(num_lanes()));
    cargo.landed.resize(num_lanes());
    for (size_t from = 0; from < num_lanes(); ++from) {
      const std::vector<Pieces> pieces =
          pieces_by_receiver(cargo.sent[from].detach(), cargo.route.leaving[from], num_lanes());
      for (size_t to = 0; to < num_lanes(); ++to) {
        cargo.pieces[to][from] = pieces[to];
      }
    }
  }
  widest_first_.resize(cargo_.size());
  std::iota(widest_first_.begin(), widest_first_.end(), 0);
  std::stable_sort(widest_first_.begin(), widest_first_.end(), [&](size_t a, size_t b) {
    return cargo_[a].sent.front().size(1) > cargo_[b].sent.front().size(1);
  });
}

std::vector<Hop> Exchange::pack() {
  std::vector<Hop> hops;
  for (size_t from = 0; from < num_lanes(); ++from) {
    std::vector<Pieces> by_receiver(num_lanes());
    for (size_t to = 0; to < num_lanes(); ++to) {
      for (const size_t index : widest_first_) {
        if (to != from) {
          append(by_receiver[to], cargo_[index].pieces[to][from]);
        }
      }
    }
    const Pieces outgoing = gathered(by_receiver);
    for (size_t to = 0; to < num_lanes(); ++to) {
      if (by_receiver[to].empty()) {
        continue;
      }
      const at::Tensor landing =
          at::empty({outgoing[to].numel()}, cargo_.front().sent[to].options());
      hops.push_back({from, to, outgoing[to], landing});
      Cutter from_landing(landing);
      for (const size_t index : widest_first_) {
        Pieces& pieces = cargo_[index].pieces[to][from];
        if (!pieces.empty()) {
          pieces = {from_landing.cut(num_rows_of(pieces), pieces.front().size(1))};
        }
      }
    }
  }
  return hops;
}

std::vector<Hop> Exchange::lay_out() {
  std::vector<Hop> hops;
  for (Cargo& cargo : cargo_) {
    lay_out(cargo, hops);
  }
  return hops;
}

// Where a receiver wants the rows by sender, they land in their places.
void Exchange::lay_out(Cargo& cargo, std::vector<Hop>& hops) {
  std::vector<Pieces> outgoing;
  for (size_t from = 0; from < num_lanes(); ++from) {
    std::vector<Pieces> by_receiver(num_lanes());
    for (size_t to = 0; to < num_lanes(); ++to) {
      by_receiver[to] = to == from ? Pieces() : cargo.pieces[to][from];
    }
    outgoing.push_back(gathered(by_receiver));
  }
  for (size_t to = 0; to < num_lanes(); ++to) {
    if (is_by_sender(cargo.route.arriving[to])) {
      land_in_place(cargo, to, outgoing, hops);
      continue;
    }
    for (size_t from = 0; from < num_lanes(); ++from) {
      Pieces& pieces = cargo.pieces[to][from];
      if (from != to && !pieces.empty()) {
        pieces = {rows_like(cargo.sent[to], num_rows_of(pieces))};
        hops.push_back({from, to, outgoing[from][to], pieces.front().flatten()});
      }
    }
  }
}

void Exchange::land_in_place(Cargo& cargo,
                             size_t to,
                             const std::vector<Pieces>& outgoing,
                             std::vector<Hop>& hops) {
  const std::vector<RowRun>& arriving = cargo.route.arriving[to];
  cargo.landed[to] = rows_like(cargo.sent[to], num_rows_of(arriving));
  Cutter from_landed(cargo.landed[to].flatten());
  for (const RowRun& run : arriving) {
    at::Tensor place = from_landed.cut(run.num_rows * cargo.landed[to].size(1));
    const Pieces own = run.peer == to ? flat(cargo.pieces[to][to]) : Pieces();
    if (own.size() > 1) {
      at::cat_out(place, own);
    } else if (place.numel() > 0) {
      hops.push_back({run.peer, to, own.empty() ? outgoing[run.peer][to] : own.front(), place});
    }
  }
}

std::vector<at::Tensor> Exchange::put_in_place(size_t lane) const {
  std::vector<at::Tensor> matrices(cargo_.size());
  Pieces all;
  for (const size_t index : widest_first_) {
    const Cargo& cargo = cargo_[index];
    matrices[index] = cargo.landed[lane];
    if (matrices[index].defined()) {
      continue;
    }
    const Pieces pieces = pieces_in_place(cargo.pieces[lane], cargo.route.arriving[lane]);
    if (pieces.empty()) {
      matrices[index] = rows_like(cargo.sent[lane], 0);
    } else if (pieces.size() == 1 || !is_packed_) {
      matrices[index] = joined(pieces);
    } else {
      append(all, flat(pieces));
    }
  }
  if (all.empty()) {
    return matrices;
  }
  Cutter from_all(at::cat(all));
  for (const size_t index : widest_first_) {
    if (!matrices[index].defined()) {
      const Cargo& cargo = cargo_[index];
      matrices[index] =
          from_all.cut(num_rows_of(cargo.route.arriving[lane]), cargo.sent[lane].size(1));
    }
  }
  return matrices;
}

std::vector<std::vector<PerLane>> Exchange::wait() {
  const c10::NoGradGuard no_grad;
  wait_for(is_done_);
  std::vector<std::vector<PerLane>> arrived;
  for (const size_t num_matrices : num_matrices_) {
    arrived.emplace_back(num_matrices);
  }
  for (size_t lane = 0; !cargo_.empty() && lane < num_lanes(); ++lane) {
    std::vector<at::Tensor> matrices = put_in_place(lane);
    auto next = matrices.begin();
    for (std::vector<PerLane>& shipment : arrived) {
      for (PerLane& matrix : shipment) {
        matrix.push_back(std::move(*next++));
      }
    }
  }
  cargo_.clear();
  hops_.clear();
  return arrived;
}

Exchange::~Exchange() {
  wait_for(is_done_);
}

}  // namespace swapline::trainer
