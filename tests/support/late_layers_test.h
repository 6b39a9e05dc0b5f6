// The fixture of tests about passes and layers: six of them, on a machine whose copies are late and
// whose link is slow, so that a missing wait shows as wrong numbers.
#pragma once

#include "tests/support/sim_test.h"
#include "tests/support/tiny_model.h"

#include <cstdint>
#include <vector>

namespace swapline::testing {

class LateLayersTest : public SimTest {
 protected:
  void SetUp() override { use_machine({.late_copies = true, .copy_slowdown = 20}); }

  static LayerInputOptions six_layers() {
    LayerInputOptions options;
    options.num_layers = 6;
    return options;
  }
  static std::vector<at::Tensor> grads_of(const TinyModel& model) { return model.grads_on_cpu(); }
  // Gradients of the micro-batches 0..n-1, by ordinary autograd.
  static std::vector<at::Tensor> expected_grads(int64_t num_microbatches) {
    TinyModel model;
    for (int64_t i = 0; i < num_microbatches; ++i) {
      model.forward(nullptr, model.batch(i)).backward();
    }
    return grads_of(model);
  }
};

}  // namespace swapline::testing
