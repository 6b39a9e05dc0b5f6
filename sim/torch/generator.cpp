#include "sim/torch/generator.h"

#include "sim/torch/sim.h"

#include <array>
#include <cstring>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <c10/core/GeneratorImpl.h>

namespace swapline::sim {
namespace {

constexpr uint64_t kOffsetPerOp = 4;  // as on real devices: offsets are multiples of four
constexpr int64_t kStateBytes = 16;   // {seed, offset}

struct CounterGenerator final : c10::GeneratorImpl {
  explicit CounterGenerator(int index)
      : GeneratorImpl(sim::device(index), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1)) {}

  void set_current_seed(uint64_t seed) override {
    seed_ = seed;
    offset_ = 0;
  }
  void set_offset(uint64_t offset) override { offset_ = offset; }
  uint64_t get_offset() const override { return offset_; }
  uint64_t current_seed() const override { return seed_; }
  uint64_t seed() override {
    set_current_seed(c10::detail::getNonDeterministicRandom());
    return seed_;
  }
  void set_state(const c10::TensorImpl& state) override {
    TORCH_CHECK(state.numel() == kStateBytes && state.dtype() == at::kByte,
                "a generator state of the simulated device is ",
                kStateBytes,
                " bytes");
    const auto* bytes = static_cast<const char*>(state.data());
    std::memcpy(&seed_, bytes, sizeof seed_);
    std::memcpy(&offset_, bytes + sizeof seed_, sizeof offset_);
  }
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override {
    const at::Tensor state = at::empty({kStateBytes}, at::TensorOptions().dtype(at::kByte));
    auto* bytes = static_cast<char*>(state.data_ptr());
    std::memcpy(bytes, &seed_, sizeof seed_);
    std::memcpy(bytes + sizeof seed_, &offset_, sizeof offset_);
    return state.getIntrusivePtr();
  }

  // A seed for the next operator. Mixed to its lowest bits: the CPU generator takes 32 of them.
  uint64_t next() {
    uint64_t z = seed_ * 0x9e3779b97f4a7c15ULL + offset_;
    offset_ += kOffsetPerOp;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
    return z ^ (z >> 31);
  }

 private:
  CounterGenerator* clone_impl() const override {
    auto* copy = new CounterGenerator(device_.index());
    copy->seed_ = seed_;
    copy->offset_ = offset_;
    return copy;
  }

  uint64_t seed_ = c10::default_rng_seed_val;
  uint64_t offset_ = 0;
};

}  // namespace

const at::Generator& default_generator(int device) {
  static const auto* generators = [] {
    auto* made = new std::array<at::Generator, kNumDevices>;
    for (int index = 0; index < kNumDevices; ++index) {
      (*made)[index] = new_generator(index);
    }
    return made;
  }();
  return generators->at(device);
}

at::Generator new_generator(int device) {
  return at::make_generator<CounterGenerator>(device);
}

at::Generator draw(at::Generator generator) {
  const std::lock_guard lock(generator.mutex());
  auto* counter = static_cast<CounterGenerator*>(generator.unsafeGetGeneratorImpl());
  return at::make_generator<at::CPUGeneratorImpl>(counter->next());
}

}  // namespace swapline::sim
