// What each transition does to storages and streams.
#include "swapline/swap/swap_group.h"

#include "swapline/swap/device_memory.h"
#include "swapline/swap/eligibility.h"
#include "swapline/swap/tensor_view.h"
#include "swapline/swap/transitions.h"

#include <algorithm>
#include <array>
#include <set>
#include <utility>

#include <ATen/ops/empty.h>

namespace swapline {

using detail::Call;
using detail::Transition;

std::string_view residency_name(Residency residency) {
  constexpr std::array<std::string_view, 4> kNames = {
      "kDevice", "kSwappingOut", "kHost", "kSwappingIn"};
  return kNames.at(static_cast<size_t>(residency));
}

struct SwapGroup::Impl {
  // One storage.
  struct Part {
    detail::DeviceMemory device;
    std::vector<PinnedBuffer> host;
  };
  struct Member {
    size_t part = 0;
    detail::TensorView view;
    at::Tensor tensor;  // kInPlace only
  };

  SwapContext& context;
  SwapGroupOptions options;
  Residency residency = Residency::kDevice;
  std::vector<Part> parts;
  std::vector<Member> members;
  SharedEvent out_done;  // the last copy out; null: none, or known to be done
  SharedEvent in_done;

  Impl(SwapContext& context, SwapGroupOptions options)
      : context(context), options(std::move(options)) {}

  ~Impl() {
    try {
      if (residency == Residency::kSwappingIn) {
        keep_until(in_done, Wait::kUseAfterSwapIn);
      } else if (residency != Residency::kHost && out_done && !is_done(out_done)) {
        keep_until(out_done, Wait::kReleaseAfterSwapOut);
      }
    } catch (...) {  // Only out of memory for the list itself gets here; a destructor cannot tell.
    }
  }

  bool is_in_place() const { return options.release == Release::kInPlace; }

  const Transition& require(Call call) const {
    const Transition& transition = detail::transition_of(call);
    TORCH_CHECK(residency == transition.from,
                "SwapGroup '",
                options.label,
                "': ",
                transition.name,
                "() needs ",
                residency_name(transition.from),
                ", the group is in ",
                residency_name(residency));
    return transition;
  }

  void add(const at::Tensor& tensor) {
    const SwapCheck check = is_valid_for_swap(tensor);
    TORCH_CHECK(
        check, "SwapGroup '", options.label, "': a tensor may not be swapped: ", check.reason);
    TORCH_CHECK(tensor.device() == context.device(),
                "SwapGroup '",
                options.label,
                "': a tensor is on ",
                tensor.device(),
                ", the context on ",
                context.device());
    const c10::Storage& storage = tensor.storage();
    const auto known = std::find_if(
        parts.begin(), parts.end(), [&](const Part& part) { return part.device.is_of(storage); });
    const auto index = static_cast<size_t>(known - parts.begin());
    if (known == parts.end()) {
      parts.push_back({detail::DeviceMemory(tensor, options.release), {}});
    }
    members.push_back({index, detail::TensorView(tensor), is_in_place() ? tensor : at::Tensor()});
  }

  void keep_until(const SharedEvent& done, Wait why) {
    for (const Part& part : parts) {
      if (part.device.is_there()) {
        const detail::PooledStorage memory = part.device.memory();
        context.release_later(memory.storage, done, why, memory.pool);
      }
    }
  }

  bool has_host_copy() const {
    return std::all_of(parts.begin(), parts.end(), [](const Part& p) { return !p.host.empty(); });
  }

  // All or nothing.
  void reserve_host() {
    std::vector<std::vector<PinnedBuffer>> buffers;
    for (const Part& part : parts) {
      buffers.push_back(context.host().allocate_pieces(part.device.bytes()));
    }
    for (size_t i = 0; i < parts.size(); ++i) {
      parts[i].host = std::move(buffers[i]);
    }
  }

  // Copies one storage and keeps `last` at the newest event, so that a failure knows what is in
  // flight.
  void copy(bool out, const c10::Storage& device, Part& part, SharedEvent& last) {
    CopyStreams& copies = context.copies();
    size_t offset = 0;
    for (PinnedBuffer& piece : part.host) {
      const CopyRange range = {offset, 0, piece.bytes()};
      last = out ? copies.copy_out(device, piece, range) : copies.copy_in(device, piece, range);
      offset += piece.bytes();
    }
  }

  void start_copies_out() {
    CopyStreams& copies = context.copies();
    const SharedEvent produced = record_event(copies.compute_stream());
    context.order().make_wait(copies.d2h_stream(), *produced, Wait::kSwapOutAfterProducer);
    SharedEvent last;
    try {
      for (Part& part : parts) {
        copy(/*out=*/true, part.device.storage(), part, last);
      }
    } catch (...) {
      if (last) {
        keep_until(last, Wait::kReleaseAfterSwapOut);
      }
      drop_host();
      throw;
    }
    out_done = last;
  }

  void drop_host() {
    for (Part& part : parts) {
      part.host.clear();
    }
  }

  void check_aliases() const {
    if (!is_in_place() || !options.check_aliases) {
      return;
    }
    for (size_t i = 0; i < parts.size(); ++i) {
      std::set<const c10::TensorImpl*> ours;
      for (const Member& member : members) {
        if (member.part == i) {
          ours.insert(member.tensor.unsafeGetTensorImpl());
        }
      }
      // Each tensor holds its storage once; so does the part.
      const size_t holders = parts[i].device.num_holders();
      TORCH_CHECK(holders <= ours.size() + 1,
                  "SwapGroup '",
                  options.label,
                  "': ",
                  holders - ours.size() - 1,
                  " tensor(s) outside the group share a storage that is released in place");
    }
  }

  // The memory of each part leaves the group; the caller decides when it dies.
  std::vector<detail::PooledStorage> take_device_memory() {
    const c10::Stream compute = context.copies().compute_stream();
    std::vector<detail::PooledStorage> memory;
    for (Part& part : parts) {
      memory.push_back(part.device.let_go(compute));
    }
    return memory;
  }

  size_t let_go() {
    if (out_done && !is_done(out_done)) {
      context.wait_on_compute(*out_done, Wait::kReleaseAfterSwapOut);
    } else {
      out_done = nullptr;
    }
    size_t still_held = 0;
    for (const auto& [storage, pool] : take_device_memory()) {
      still_held += storage.use_count() > 1 ? storage.nbytes() : 0;
    }
    return still_held;
  }

  void start_copies_in() {
    std::vector<detail::PooledStorage> memory;
    for (const Part& part : parts) {
      memory.push_back(part.device.allocate());
      context.note_device_memory(memory.back().storage, options.kind);
    }
    CopyStreams& copies = context.copies();
    const SharedEvent allocated = record_event(copies.compute_stream());
    context.order().make_wait(copies.h2d_stream(), *allocated, Wait::kSwapInAfterAllocation);
    if (out_done) {
      context.order().make_wait(copies.h2d_stream(), *out_done, Wait::kSwapInAfterSwapOut);
    }
    SharedEvent last;
    try {
      for (size_t i = 0; i < parts.size(); ++i) {
        copy(/*out=*/false, memory[i].storage, parts[i], last);
      }
    } catch (...) {
      for (const auto& [storage, pool] : memory) {
        if (last) {
          context.release_later(storage, last, Wait::kUseAfterSwapIn, pool);
        }
      }
      throw;
    }
    in_done = last;
    for (size_t i = 0; i < parts.size(); ++i) {
      parts[i].device.put_back(memory[i]);
    }
  }
};

SwapGroup::SwapGroup(SwapContext& context,
                     const std::vector<at::Tensor>& tensors,
                     SwapGroupOptions options)
    : impl_(std::make_unique<Impl>(context, std::move(options))) {
  TORCH_CHECK(!tensors.empty(), "SwapGroup '", label(), "': it needs a tensor");
  for (const at::Tensor& tensor : tensors) {
    impl_->add(tensor);
  }
  for (const Impl::Part& part : impl_->parts) {
    context.note_device_memory(part.device.storage(), impl_->options.kind);
  }
}

SwapGroup::~SwapGroup() = default;
SwapGroup::SwapGroup(SwapGroup&&) noexcept = default;
SwapGroup& SwapGroup::operator=(SwapGroup&&) noexcept = default;

SwapGroup::Impl& SwapGroup::impl() const {
  TORCH_CHECK(impl_ != nullptr, "SwapGroup: used after it was moved from");
  return *impl_;
}

Residency SwapGroup::residency() const {
  return impl().residency;
}

const std::string& SwapGroup::label() const {
  return impl().options.label;
}

size_t SwapGroup::bytes() const {
  size_t total = 0;
  for (const Impl::Part& part : impl().parts) {
    total += part.device.bytes();
  }
  return total;
}

bool SwapGroup::swap_out() {
  Impl& group = impl();
  const Transition& transition = group.require(Call::kSwapOut);
  if (!group.has_host_copy()) {
    try {
      group.reserve_host();
    } catch (const HostMemoryError& error) {
      group.context.note_host_failure(group.options.label, error.what());
      return false;
    }
  }
  group.start_copies_out();
  group.residency = transition.to;
  return true;
}

bool SwapGroup::is_swap_out_done() const {
  return impl().out_done == nullptr || is_done(impl().out_done);
}

size_t SwapGroup::release_device_storage() {
  Impl& group = impl();
  const Transition& transition = group.require(Call::kRelease);
  group.check_aliases();
  const size_t still_held = group.let_go();
  group.residency = transition.to;
  return still_held;
}

void SwapGroup::release_device_storage_when_done() {
  Impl& group = impl();
  const Transition& transition = group.require(Call::kReleaseWhenDone);
  group.check_aliases();
  for (const auto& [storage, pool] : group.take_device_memory()) {
    group.context.release_later(storage, group.out_done, Wait::kReleaseAfterSwapOut, pool);
  }
  group.residency = transition.to;
}

void SwapGroup::recall() {
  impl().residency = impl().require(Call::kRecall).to;
}

void SwapGroup::swap_in() {
  Impl& group = impl();
  const Transition& transition = group.require(Call::kSwapIn);
  group.start_copies_in();
  group.residency = transition.to;
}

void SwapGroup::wait_swap_in() {
  Impl& group = impl();
  const Transition& transition = group.require(Call::kWaitSwapIn);
  group.context.wait_on_compute(*group.in_done, Wait::kUseAfterSwapIn);
  // It was allocated on the stream that was current at swap_in(), and whoever frees it need not
  // know.
  for (const Impl::Part& part : group.parts) {
    detail::note_last_use(part.device.memory(), group.context.copies().compute_stream());
  }
  // The copies in came after the copies out: compute is behind both now.
  group.out_done = nullptr;
  group.residency = transition.to;
}

void SwapGroup::discard_device_copy() {
  Impl& group = impl();
  const Transition& transition = group.require(Call::kDiscard);
  TORCH_CHECK(group.has_host_copy(),
              "SwapGroup '",
              label(),
              "': discard_device_copy() needs a host copy; there is none");
  group.check_aliases();
  group.let_go();
  group.residency = transition.to;
}

bool SwapGroup::has_host_copy() const {
  return impl().has_host_copy();
}

void SwapGroup::drop_host_copy() {
  impl().require(Call::kDropHostCopy);
  impl().drop_host();
}

std::vector<at::Tensor> SwapGroup::tensors() const {
  const Impl& group = impl();
  TORCH_CHECK(group.residency == Residency::kDevice || group.residency == Residency::kSwappingOut,
              "SwapGroup '",
              label(),
              "': tensors() needs kDevice or kSwappingOut, the group is in ",
              residency_name(group.residency));
  std::vector<at::Tensor> found;
  for (const Impl::Member& member : group.members) {
    found.push_back(group.is_in_place()
                        ? member.tensor
                        : member.view.over(group.parts[member.part].device.storage()));
  }
  return found;
}

std::vector<at::Tensor> SwapGroup::host_tensors() {
  Impl& group = impl();
  TORCH_CHECK(has_host_copy(), "SwapGroup '", label(), "': host_tensors() needs a host copy");
  std::vector<c10::Storage> storages;
  for (Impl::Part& part : group.parts) {
    storages.push_back(
        at::empty({static_cast<int64_t>(part.device.bytes())}, at::TensorOptions().dtype(at::kByte))
            .storage());
    auto* to = static_cast<char*>(storages.back().mutable_data());
    for (PinnedBuffer& piece : part.host) {
      piece.wait_for_uses();
      to = std::copy_n(static_cast<const char*>(piece.data()), piece.bytes(), to);
    }
  }
  std::vector<at::Tensor> found;
  for (const Impl::Member& member : group.members) {
    found.push_back(member.view.over(storages[member.part]));
  }
  return found;
}

bool SwapGroup::is_held_elsewhere() const {
  const Impl& group = impl();
  for (size_t i = 0; i < group.parts.size(); ++i) {
    std::set<const c10::TensorImpl*> ours;
    for (const Impl::Member& member : group.members) {
      if (member.part == i && member.tensor.defined()) {
        ours.insert(member.tensor.unsafeGetTensorImpl());
      }
    }
    if (group.parts[i].device.num_holders() > ours.size() + 1) {
      return true;
    }
  }
  return std::any_of(group.members.begin(), group.members.end(), [](const Impl::Member& member) {
    return member.tensor.defined() && member.tensor.use_count() > 1;
  });
}

std::vector<c10::Storage> SwapGroup::device_storages() const {
  std::vector<c10::Storage> found;
  for (const Impl::Part& part : impl().parts) {
    if (part.device.is_there()) {
      found.push_back(part.device.storage());
    }
  }
  return found;
}

}  // namespace swapline
