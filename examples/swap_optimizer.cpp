// The optimizer with its states in host memory: options, calls, states, Muon, virtual, checkpoints.
#include "sim/torch/sim.h"
#include "swapline/swapline.h"

#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include <ATen/ATen.h>

namespace {

std::vector<at::Tensor> make_weights(c10::Device device) {
  std::vector<at::Tensor> weights;
  for (int layer = 0; layer < 4; ++layer) {
    weights.push_back((at::randn({256, 256}, device) * 0.05).set_requires_grad(true));
  }
  return weights;
}

at::Tensor loss_of(const std::vector<at::Tensor>& weights, const at::Tensor& x) {
  at::Tensor h = x;
  for (const at::Tensor& w : weights) {
    h = h + at::gelu(at::mm(h, w));
  }
  return h.square().mean();
}

}  // namespace

int main() {
  swapline::sim::configure({.spec = swapline::sim::preset("tiny")});
  const c10::Device device = swapline::sim::device();
  const at::Tensor x = at::randn({64, 256}, device);
  const std::vector<at::Tensor> weights = make_weights(device);

  // [quick start
  auto context = std::make_shared<swapline::SwapContext>(device);
  swapline::AdamOptions options;
  options.swap_optimizer_times = 16;
  swapline::Adam optimizer(context, {{weights, {.lr = 3e-4, .weight_decay = 0.01}}}, options);

  for (int step = 0; step < 3; ++step) {
    loss_of(weights, x).backward();
    optimizer.prefetch();  // the first states come in while gradients are clipped
    optimizer.step();
    optimizer.zero_grad();
  }
  // quick start]

  // [states
  for (auto& [name, state] : optimizer.state(weights[0])) {
    std::printf("%s: %s on %s\n",
                name.c_str(),
                c10::str(state.sizes()).c_str(),
                state.device().str().c_str());
  }
  optimizer.state(weights[0]).at("exp_avg").zero_();  // counts in the next step
  // states]

  // [calls
  optimizer.add_step_post_hook(
      [](swapline::Optimizer& done) { std::printf("learning rate %g\n", done.lr(0)); });
  const at::Tensor loss = optimizer.step([&] {
    optimizer.zero_grad();
    at::Tensor closure_loss = loss_of(weights, x);
    closure_loss.backward();
    return closure_loss;
  });
  const at::Tensor scale = at::full({1}, 1024.0, at::TensorOptions().device(device));
  const at::Tensor found_inf = at::zeros({1}, at::TensorOptions().device(device));
  optimizer.step({.grad_scale = scale, .found_inf = found_inf});
  // calls]

  // [figures
  const swapline::OptimizerStats stats = optimizer.stats();
  std::printf("%zu bytes of states, %ld chunks, at most %zu bytes of them on the device, now %zu\n",
              stats.state_bytes,
              static_cast<long>(stats.num_chunks),
              stats.arena_bytes,
              optimizer.device_state_bytes());
  // figures]

  {
    const std::vector<at::Tensor> matrices = make_weights(device);
    const at::Tensor bias = at::zeros({256}, device).set_requires_grad(true);
    // [muon
    swapline::Muon muon(context, {{matrices, {.lr = 0.02}}}, {{{bias}, {.lr = 3e-4}}});
    loss_of(matrices, x + bias).backward();
    muon.step();
    // muon]
  }

  {
    const std::vector<at::Tensor> mapped = make_weights(device);
    // [virtual
    swapline::AdamOptions mixed;
    mixed.virtual_optimizer_bytes = size_t{1} << 20;  // these mapped, the rest swapped
    swapline::Adam virtual_adam(context, {{mapped, {.lr = 3e-4}}}, mixed);
    loss_of(mapped, x).backward();
    virtual_adam.step();
    // virtual]
  }

  const std::string folder = (std::filesystem::temp_directory_path() / "swapline_example").string();
  // [checkpoint
  swapline::CheckpointContent content;
  for (size_t i = 0; i < weights.size(); ++i) {
    const std::string name = "layers." + std::to_string(i) + ".weight";
    content.tensors.push_back({name, {weights[i].detach().cpu()}});
    for (const auto& [state, tensor] : optimizer.state(weights[i])) {
      content.tensors.push_back({"optimizer.state." + name + "." + state, {tensor}});
    }
  }
  content.scalars["train_state.json"] = {{"step", int64_t{5}}};
  swapline::BackgroundWriter writer(swapline::CheckpointStore(folder, {.keep_latest_k = 2}));
  writer.start(5, content);  // training goes on
  writer.wait();             // before the next step() changes what is being written
  // checkpoint]

  // [load
  const swapline::TensorReader reader(writer.store().path(5));
  std::vector<swapline::TensorTarget> targets;
  for (size_t i = 0; i < weights.size(); ++i) {
    for (auto& [state, tensor] : optimizer.make_state(weights[i])) {
      const std::string name = "layers." + std::to_string(i) + ".weight." + state;
      targets.push_back({"optimizer.state." + name, tensor});
    }
  }
  reader.read(targets);  // into the optimizer's own host memory
  // load]
  std::filesystem::remove_all(folder);
  optimizer.drain();
  std::printf("loss %.5f, races %ld\n",
              loss.item<float>(),
              static_cast<long>(swapline::sim::simulator().num_races()));
  return swapline::sim::simulator().num_races() == 0 ? 0 : 1;
}
