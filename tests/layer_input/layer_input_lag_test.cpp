// The learned lag: on a slow link faster than strict, with the same peak of allocated and of
// reserved memory and the same bits; learned anew for larger inputs.
#include "tests/support/sim_test.h"
#include "tests/support/tiny_model.h"

#include <utility>
#include <vector>

namespace swapline {
namespace {

using testing::random_parameter;
using testing::random_tensor;
using testing::SwappedLayers;

constexpr int64_t kNumLayers = 8;
constexpr int64_t kWidth = 64;
constexpr int64_t kLearningSteps = 8;

LayerInputOptions eight_layers(int64_t max_swapping_out) {
  LayerInputOptions options;
  options.num_layers = kNumLayers;
  options.max_swapping_out = max_swapping_out;
  return options;
}

// h + gelu(h U) D, with an inner width of 4: most memory is wanted in backward.
class WideModel {
 public:
  WideModel() {
    for (int64_t i = 0; i < kNumLayers; ++i) {
      parameters_.push_back(random_parameter({kWidth, 4 * kWidth}, 2 * i));
      parameters_.push_back(random_parameter({4 * kWidth, kWidth}, 2 * i + 1));
    }
  }
  void step(LayerInputs& inputs, const at::Tensor& x) const {
    at::Tensor h = x * 1;
    for (int64_t i = 0; i < kNumLayers; ++i) {
      h = inputs.recompute([this, i](const at::Tensor& in) { return run_layer(i, in); }, h);
    }
    h.sum().backward();
  }
  at::Tensor run_layer(int64_t i, const at::Tensor& h) const {
    return h + at::mm(at::gelu(at::mm(h, parameters_[2 * i])), parameters_[2 * i + 1]);
  }
  std::vector<at::Tensor> grads_on_cpu() const {
    std::vector<at::Tensor> grads;
    for (const at::Tensor& parameter : parameters_) {
      grads.push_back(parameter.grad().cpu());
    }
    return grads;
  }

 private:
  std::vector<at::Tensor> parameters_;
};

struct Measured {
  size_t peak_allocated = 0;
  size_t peak_reserved = 0;
  double step_ns = 0;
  int64_t peak_resident = 0;
  std::vector<at::Tensor> grads;
};

class LayerInputLagTest : public testing::SimTest {
 protected:
  static at::Tensor rows(int64_t num_rows) {
    return random_tensor({num_rows, kWidth}, 5).set_requires_grad(true);
  }
  static double device_ns() {
    sim().synchronize_device(0);
    return static_cast<double>(sim().stream_time(0, 0));
  }
  static Measured measure(const WideModel& model, SwappedLayers& swapped, const at::Tensor& x) {
    for (int64_t i = 0; i < kLearningSteps; ++i) {
      model.step(swapped.inputs, x);
    }
    swapped.inputs.reset_stats();
    sim().reset_peak_memory(0);
    const double before = device_ns();
    for (int64_t i = 0; i < 4; ++i) {
      model.step(swapped.inputs, x);
    }
    Measured measured;
    measured.step_ns = (device_ns() - before) / 4;
    measured.peak_allocated = sim().memory_stats(0).peak_allocated_bytes;
    measured.peak_reserved = sim().memory_stats(0).peak_reserved_bytes;
    measured.peak_resident = swapped.inputs.stats().peak_resident_inputs;
    measured.grads = model.grads_on_cpu();
    return measured;
  }
  Measured measure_alone(int64_t most, int64_t num_rows, double slowdown) {
    use_machine({.late_copies = true, .copy_slowdown = slowdown});
    const WideModel model;
    SwappedLayers swapped(eight_layers(most));
    return measure(model, swapped, rows(num_rows));
  }
  static void expect_no_worse(const Measured& learned, const Measured& strict) {
    EXPECT_LE(learned.peak_allocated, strict.peak_allocated);
    EXPECT_LE(learned.peak_reserved, strict.peak_reserved);
    EXPECT_LE(learned.step_ns, strict.step_ns * 1.0001);
    EXPECT_TRUE(testing::same_bits(learned.grads, strict.grads));
  }
};

TEST_F(LayerInputLagTest, TakesNoMoreMemoryThanStrictAndIsNeverSlower) {
  for (const int64_t num_rows : {7, 256, 1024}) {
    for (const double slowdown : {1.0, 30.0, 1000.0}) {
      SCOPED_TRACE(std::to_string(num_rows) + " rows, " + std::to_string(slowdown));
      const Measured strict = measure_alone(1, num_rows, slowdown);
      expect_no_worse(measure_alone(kAuto, num_rows, slowdown), strict);
      EXPECT_LE(strict.peak_resident, 1);
    }
  }
}

TEST_F(LayerInputLagTest, IsFasterThanStrictOnASlowLink) {
  const Measured strict = measure_alone(1, 2048, 30);
  const Measured learned = measure_alone(kAuto, 2048, 30);
  EXPECT_LT(learned.step_ns, strict.step_ns);
  EXPECT_GT(learned.peak_resident, 1);
}

TEST_F(LayerInputLagTest, TheFirstPassesAreStrict) {
  use_machine({.copy_slowdown = 1000});
  const WideModel model;
  SwappedLayers swapped(eight_layers(kAuto));
  const at::Tensor x = rows(2048);
  model.step(swapped.inputs, x);
  model.step(swapped.inputs, x);
  EXPECT_LE(swapped.inputs.stats().peak_resident_inputs, 1);
  model.step(swapped.inputs, x);
  EXPECT_GT(swapped.inputs.stats().peak_resident_inputs, 1);
}

TEST_F(LayerInputLagTest, LearnsAnewForLargerInputsAndKeepsWhatItKnowsForSmallerOnes) {
  use_machine({.late_copies = true, .copy_slowdown = 30});
  const WideModel model;
  SwappedLayers swapped(eight_layers(kAuto));
  const auto residents = [&](const at::Tensor& x, int steps) {
    swapped.inputs.reset_stats();
    for (int i = 0; i < steps; ++i) {
      model.step(swapped.inputs, x);
    }
    return swapped.inputs.stats().peak_resident_inputs;
  };
  residents(rows(1024), kLearningSteps);
  EXPECT_GT(residents(rows(512), 1), 1);
  EXPECT_LE(residents(rows(2048), 2), 1);
  residents(rows(2048), kLearningSteps);
  EXPECT_GT(residents(rows(2048), 1), 1);
}

TEST_F(LayerInputLagTest, ChangingSizesEachStepStayUnderTheLargestStrictPeak) {
  const auto peak = [this](int64_t most) {
    use_machine({.late_copies = true, .copy_slowdown = 30});
    const WideModel model;
    SwappedLayers swapped(eight_layers(most));
    for (const int64_t num_rows : {700, 2048, 100, 1500, 2048, 2048, 33, 900, 2048, 1024}) {
      model.step(swapped.inputs, rows(num_rows));
    }
    return sim().memory_stats(0).peak_allocated_bytes;
  };
  const size_t strict = peak(1);
  EXPECT_LE(peak(kAuto), strict);
}

TEST_F(LayerInputLagTest, LayersInsideLayersStayStrict) {
  use_machine({.copy_slowdown = 1000});
  const WideModel model;
  SwappedLayers swapped(eight_layers(kAuto));
  const at::Tensor x = rows(512);
  for (int step = 0; step < 5; ++step) {
    at::Tensor h = x * 1;
    for (int64_t i = 0; i < kNumLayers; i += 4) {
      h = swapped.inputs.recompute(
          [&, i](const at::Tensor& in) {
            at::Tensor inner = in;
            for (int64_t k = i; k < i + 4; ++k) {
              inner = swapped.inputs.recompute(
                  [&, k](const at::Tensor& each) { return model.run_layer(k, each); }, inner);
            }
            return inner;
          },
          h);
    }
    h.sum().backward();
  }
  // An outer and an inner one on their way at once, and the inner layer's former.
  EXPECT_LE(swapped.inputs.stats().peak_resident_inputs, 3);
}

}  // namespace
}  // namespace swapline
