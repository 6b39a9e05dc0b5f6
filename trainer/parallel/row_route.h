// Which rows of a matrix on each lane go to which lane, and how they lie there. A lane is one of
// the devices that hold the same stage and share its experts.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

namespace swapline::trainer {

// Neighbouring rows that go to the same lane, or come from it.
struct RowRun {
  size_t peer = 0;
  int64_t num_rows = 0;
};

// The way of each row. From one lane to another, rows keep their order.
struct RowRoute {
  std::vector<std::vector<RowRun>> leaving;   // by lane: to whom its rows go, first to last
  std::vector<std::vector<RowRun>> arriving;  // by lane: from whom they are, as they are to lie

  RowRoute reversed() const { return {arriving, leaving}; }
};

// counts[lane][expert]: a lane's rows, which lie by expert. Each lane gets the rows of its share of
// the experts: by expert too, of each one in the order of the lanes.
RowRoute route_to_experts(const std::vector<std::vector<int64_t>>& counts);

// Views of a matrix or of several, one behind the other.
using Pieces = std::vector<at::Tensor>;

int64_t num_rows_of(const std::vector<RowRun>& runs);
int64_t num_rows_of(const Pieces& pieces);

// The rows of `matrix` by receiver, as they leave.
std::vector<Pieces> pieces_by_receiver(const at::Tensor& matrix,
                                       const std::vector<RowRun>& leaving,
                                       size_t num_lanes);
// The rows that each sender's pieces hold, as they are to lie.
Pieces pieces_in_place(const std::vector<Pieces>& by_sender, const std::vector<RowRun>& arriving);

}  // namespace swapline::trainer
