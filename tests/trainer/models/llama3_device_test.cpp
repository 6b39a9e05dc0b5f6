// The model on the simulated device against the model on the CPU: one forward and backward.
#include "trainer/device.h"
#include "trainer/models/llama3.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

namespace swapline::trainer {
namespace {

struct OneBackward {
  at::Tensor loss;
  std::vector<NamedParameter> parameters;  // on the CPU, with gradients
};

OneBackward run_on(Device& device, c10::ScalarType dtype) {
  Llama3Shape shape = llama3_shape("debugmodel");
  shape.num_layers = 2;
  shape.num_kv_heads = 4;
  ParameterFactory factory(dtype, 42);
  const Llama3 model(shape, 64, Placement::all_on(device, shape.num_layers), factory);
  const at::Tensor tokens = at::arange(128).view({2, 64}).to(device.torch_device());
  at::Tensor hidden_states = model.embed(tokens);
  for (const LayerPtr& layer : model.layers()) {
    hidden_states = layer->forward(hidden_states, PartRunner());
  }
  const at::Tensor loss = model.loss(hidden_states, tokens, {});
  loss.backward();
  OneBackward result{loss.detach().cpu(), {}};
  for (const NamedParameter& parameter : factory.parameters()) {
    result.parameters.push_back({parameter.name, parameter.tensor.grad().cpu()});
  }
  return result;
}

class Llama3DeviceTest : public testing::Test {
 protected:
  void SetUp() override {
    DeviceConfig config;
    config.preset = "tiny";
    sim_ = make_sim_devices(config, 1, /*enable_trace=*/false);
  }
  void TearDown() override { EXPECT_EQ(sim_.front()->num_races(), 0); }

  Devices cpu_ = make_torch_device("cpu");
  Devices sim_;
};

// The device's RMS norm is one kernel. In bfloat16 both round its gradient once; in float32 the CPU
// adds its two parts to the residual's gradient one by one, so that there only the loss has the
// same bits.
TEST_F(Llama3DeviceTest, LossAndGradientsInBfloat16AreTheCpus) {
  const OneBackward expected = run_on(*cpu_.front(), at::kBFloat16);
  const OneBackward found = run_on(*sim_.front(), at::kBFloat16);
  EXPECT_TRUE(found.loss.equal(expected.loss));
  for (size_t i = 0; i < expected.parameters.size(); ++i) {
    EXPECT_TRUE(found.parameters[i].tensor.equal(expected.parameters[i].tensor))
        << found.parameters[i].name;
  }
}

TEST_F(Llama3DeviceTest, LossInFloat32IsTheCpus) {
  EXPECT_TRUE(run_on(*sim_.front(), at::kFloat).loss.equal(run_on(*cpu_.front(), at::kFloat).loss));
}

}  // namespace
}  // namespace swapline::trainer
