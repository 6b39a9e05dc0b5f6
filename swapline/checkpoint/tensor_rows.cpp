// Pieces of strided tensors.
#include "swapline/checkpoint/tensor_rows.h"

#include <algorithm>

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/empty.h>
#include <c10/core/GradMode.h>

namespace swapline::detail {
namespace {

// Torch spreads longer copies over threads; one that writes beside training must not start any.
constexpr int64_t kPieceElements = 32768;

class Pieces {
 public:
  Pieces(PieceUse piece_use, const std::function<void(void*, size_t)>& use)
      : piece_use_(piece_use), use_(use) {}

  void go_through(const at::Tensor& tensor) {
    if (tensor.is_contiguous()) {
      use_(tensor.mutable_data_ptr(), tensor.nbytes());
    } else if (tensor.numel() <= kPieceElements) {
      go_through_buffer(tensor);
    } else {
      const int64_t row_elements = std::max<int64_t>(1, tensor.numel() / tensor.size(0));
      const int64_t num_rows = std::max<int64_t>(1, kPieceElements / row_elements);
      for (int64_t row = 0; row < tensor.size(0); row += num_rows) {
        const at::Tensor rows = tensor.narrow(0, row, std::min(num_rows, tensor.size(0) - row));
        go_through(rows.size(0) == 1 ? rows.select(0, 0) : rows);
      }
    }
  }

 private:
  void go_through_buffer(const at::Tensor& tensor) {
    if (!buffer_.defined()) {
      buffer_ = at::empty({kPieceElements}, tensor.options());
    }
    const at::Tensor piece = buffer_.narrow(0, 0, tensor.numel()).view(tensor.sizes());
    if (piece_use_ == PieceUse::kRead) {
      piece.copy_(tensor);
    }
    use_(piece.mutable_data_ptr(), piece.nbytes());
    if (piece_use_ == PieceUse::kWrite) {
      tensor.copy_(piece);
    }
  }

  PieceUse piece_use_;
  const std::function<void(void*, size_t)>& use_;
  at::Tensor buffer_;
};

}  // namespace

void for_each_piece(const at::Tensor& tensor,
                    PieceUse piece_use,
                    const std::function<void(void* data, size_t bytes)>& use) {
  const c10::NoGradGuard no_grad;
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  Pieces(piece_use, use).go_through(tensor.detach());
}

}  // namespace swapline::detail
