#include "trainer/parallel/row_route.h"

#include <algorithm>

namespace swapline::trainer {
namespace {

void append(std::vector<RowRun>& runs, RowRun run) {
  if (!runs.empty() && runs.back().peer == run.peer) {
    runs.back().num_rows += run.num_rows;
  } else {
    runs.push_back(run);
  }
}

// Takes the rows of pieces from the first one on.
class RowReader {
 public:
  explicit RowReader(const Pieces& pieces) : pieces_(pieces) {}

  void take(int64_t num_rows, Pieces& into) {
    while (num_rows > 0) {
      const at::Tensor& piece = pieces_.at(next_);
      const int64_t num_taken = std::min(num_rows, piece.size(0) - row_);
      into.push_back(num_taken == piece.size(0) ? piece : piece.narrow(0, row_, num_taken));
      num_rows -= num_taken;
      row_ += num_taken;
      if (row_ == piece.size(0)) {
        ++next_;
        row_ = 0;
      }
    }
  }

 private:
  const Pieces& pieces_;
  size_t next_ = 0;
  int64_t row_ = 0;
};

}  // namespace

RowRoute route_to_experts(const std::vector<std::vector<int64_t>>& counts) {
  const size_t num_lanes = counts.size();
  const size_t num_local = counts.front().size() / num_lanes;
  RowRoute route;
  route.leaving.resize(num_lanes);
  route.arriving.resize(num_lanes);
  for (size_t to = 0; to < num_lanes; ++to) {
    for (size_t expert = to * num_local; expert < (to + 1) * num_local; ++expert) {
      for (size_t from = 0; from < num_lanes; ++from) {
        append(route.leaving[from], {to, counts[from][expert]});
        append(route.arriving[to], {from, counts[from][expert]});
      }
    }
  }
  return route;
}

int64_t num_rows_of(const std::vector<RowRun>& runs) {
  int64_t sum = 0;
  for (const RowRun& run : runs) {
    sum += run.num_rows;
  }
  return sum;
}

int64_t num_rows_of(const Pieces& pieces) {
  int64_t sum = 0;
  for (const at::Tensor& piece : pieces) {
    sum += piece.size(0);
  }
  return sum;
}

std::vector<Pieces> pieces_by_receiver(const at::Tensor& matrix,
                                       const std::vector<RowRun>& leaving,
                                       size_t num_lanes) {
  std::vector<Pieces> pieces(num_lanes);
  int64_t row = 0;
  for (const RowRun& run : leaving) {
    if (run.num_rows > 0) {
      pieces[run.peer].push_back(matrix.narrow(0, row, run.num_rows));
    }
    row += run.num_rows;
  }
  return pieces;
}

Pieces pieces_in_place(const std::vector<Pieces>& by_sender, const std::vector<RowRun>& arriving) {
  std::vector<RowReader> readers(by_sender.begin(), by_sender.end());
  Pieces pieces;
  for (const RowRun& run : arriving) {
    readers[run.peer].take(run.num_rows, pieces);
  }
  return pieces;
}

}  // namespace swapline::trainer
