// On the compute stream the copy would come behind what is enqueued there, and hold up what
// follows.
#include "trainer/pipeline/expert_counts.h"

#include <utility>

#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

namespace swapline::trainer {
namespace {

c10::Stream current_stream_of(const at::Tensor& tensor) {
  return c10::impl::VirtualGuardImpl(tensor.device().type()).getStream(tensor.device());
}

}  // namespace

CountsCopy CountCopies::start(const at::Tensor& ends) const {
  CountsCopy copy;
  copy.ends_ = ends;
  copy.buffer_ = pool_->allocate(ends.nbytes());
  copy.buffer_.wait_for_uses();
  record_event(current_stream_of(ends))->block(stream_);
  const c10::StreamGuard on_stream(stream_);
  copy.buffer_.bytes_at(0, ends.nbytes())
      .view(ends.scalar_type())
      .copy_(ends, /*non_blocking=*/true);
  copy.buffer_.add_use(record_event(stream_));
  return copy;
}

CountsCopy::~CountsCopy() {
  for (const SharedEvent& use : buffer_.uses()) {
    use->block(current_stream_of(ends_));
  }
}

std::vector<int64_t> CountsCopy::read() {
  buffer_.wait_for_uses();
  const at::Tensor ends =
      buffer_.bytes_at(0, ends_.nbytes()).view(ends_.scalar_type()).to(at::kLong);
  std::vector<int64_t> counts;
  int64_t begin = 0;
  for (int64_t expert = 0; expert < ends.size(0); ++expert) {
    const int64_t end = ends.const_data_ptr<int64_t>()[expert];
    counts.push_back(end - begin);
    begin = end;
  }
  return counts;
}

}  // namespace swapline::trainer
