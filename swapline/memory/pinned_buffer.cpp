// The owner of one piece of a HostPool: its uses, and how it goes back.
#include "swapline/memory/host_pool.h"

#include <algorithm>
#include <utility>

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>

namespace swapline {
namespace {

void forget_done(std::vector<SharedEvent>& uses) {
  std::erase_if(uses, is_done);
}

}  // namespace

PinnedBuffer::PinnedBuffer(HostPool* pool,
                           void* data,
                           size_t bytes,
                           std::vector<SharedEvent> former_uses)
    : pool_(pool), data_(data), bytes_(bytes), former_uses_(std::move(former_uses)) {}

PinnedBuffer::PinnedBuffer(PinnedBuffer&& other) noexcept
    : pool_(std::exchange(other.pool_, nullptr)),
      data_(std::exchange(other.data_, nullptr)),
      bytes_(std::exchange(other.bytes_, 0)),
      prune_at_(other.prune_at_),
      was_used_(std::exchange(other.was_used_, false)),
      uses_(std::move(other.uses_)),
      former_uses_(std::move(other.former_uses_)) {}

PinnedBuffer& PinnedBuffer::operator=(PinnedBuffer&& other) noexcept {
  if (this != &other) {
    give_back();
    pool_ = std::exchange(other.pool_, nullptr);
    data_ = std::exchange(other.data_, nullptr);
    bytes_ = std::exchange(other.bytes_, 0);
    prune_at_ = other.prune_at_;
    was_used_ = std::exchange(other.was_used_, false);
    uses_ = std::move(other.uses_);
    former_uses_ = std::move(other.former_uses_);
  }
  return *this;
}

PinnedBuffer::~PinnedBuffer() {
  give_back();
}

void PinnedBuffer::give_back() noexcept {
  if (data_ == nullptr) {
    return;
  }
  // Each use of this owner is ordered behind the former ones, so it stands for them: what travels
  // on stays short however far the host runs ahead.
  std::vector<SharedEvent>& last = was_used_ ? uses_ : former_uses_;
  pool_->give_back(std::exchange(data_, nullptr), bytes_, std::move(last));
  uses_.clear();
  former_uses_.clear();
  was_used_ = false;
}

at::Tensor PinnedBuffer::bytes_at(size_t offset_bytes, size_t bytes) const {
  TORCH_CHECK(offset_bytes <= bytes_ && bytes <= bytes_ - offset_bytes,
              "PinnedBuffer: ",
              bytes,
              " bytes at ",
              offset_bytes,
              " of ",
              bytes_);
  const auto [slab, begin] = pool_->in_slab(data_);
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  return at::empty({0}, at::TensorOptions().dtype(at::kByte))
      .set_(slab, static_cast<int64_t>(begin + offset_bytes), {static_cast<int64_t>(bytes)}, {1});
}

void PinnedBuffer::add_use(SharedEvent event) {
  if (uses_.size() >= prune_at_) {
    forget_done(uses_);
    prune_at_ = std::max<size_t>(8, 2 * uses_.size());
  }
  uses_.push_back(std::move(event));
  was_used_ = true;
}

void PinnedBuffer::settle_former_uses() {
  forget_done(former_uses_);
}

void PinnedBuffer::wait_for_uses() {
  for (const auto* uses : {&former_uses_, &uses_}) {
    for (const SharedEvent& use : *uses) {
      use->synchronize();
    }
  }
  uses_.clear();
  former_uses_.clear();
}

}  // namespace swapline
