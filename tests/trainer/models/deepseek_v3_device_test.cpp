// The model on the simulated device: the CPU's numbers, no host waiting in a forward, and dry runs
// of layers that no machine here holds.
#include "sim/torch/sim.h"
#include "tests/trainer/models/tiny_deepseek.h"

namespace swapline::trainer {
namespace {

std::unique_ptr<Device> sim_device(DeviceConfig config) {
  return std::move(make_sim_devices(config, 1, /*enable_trace=*/false).front());
}

DeviceConfig tiny_device(bool late_copies = false) {
  DeviceConfig config;
  config.preset = "tiny";
  config.late_copies = late_copies;
  return config;
}

// With compressed queries, groups of experts and values narrower than keys, unlike the flavor.
DeepseekV3Shape small_shape() {
  DeepseekV3Shape shape = deepseek_v3_shape("debugmodel");
  shape.num_layers = 3;
  shape.attention.q_rank = 96;
  shape.moe.num_groups = 4;
  shape.moe.groups_per_token = 2;
  shape.moe.route_scale = 2.5;
  shape.num_mtp_modules = 1;
  return shape;
}

struct OneBackward {
  at::Tensor loss;
  std::vector<at::Tensor> loads;
  std::vector<NamedParameter> gradients;
};

// The forward cut at the experts where `in_pieces`.
OneBackward run_on(Device& device, c10::ScalarType dtype, bool in_pieces = false) {
  TinyDeepseek tiny(device, small_shape(), {.seq_len = 64}, dtype);
  const at::Tensor tokens = (at::arange(129) * 37)
                                .remainder(256)
                                .narrow(0, 0, 128)
                                .view({2, 64})
                                .to(device.torch_device());
  const at::Tensor targets = (tokens + 37).remainder(256);
  at::Tensor h = tiny.model.embed(tokens);
  for (const LayerPtr& layer : tiny.model.layers()) {
    const auto* routed = dynamic_cast<const ExpertLayer*>(layer.get());
    if (routed != nullptr && in_pieces) {
      const AttendedAtOnce attended = attend(*routed, h);
      h = routed->merge(attended.residual,
                        routed->experts(attended.tokens, attended.weights, attended.counts),
                        attended.places);
    } else {
      h = TinyDeepseek::run_layer(layer, h);
    }
  }
  const at::Tensor loss = tiny.model.loss(h, targets, &TinyDeepseek::run_layer);
  loss.backward();
  OneBackward result{loss.detach().cpu(), {}, {}};
  for (const at::Tensor& loads : tiny.model.expert_loads()) {
    result.loads.push_back(loads.cpu());
  }
  tiny.model.balance(tiny.model.expert_loads());
  for (const NamedParameter& parameter : tiny.factory.parameters()) {
    result.gradients.push_back({parameter.name, parameter.tensor.grad().cpu()});
  }
  return result;
}

void expect_same(const OneBackward& found, const OneBackward& expected) {
  EXPECT_TRUE(found.loss.equal(expected.loss));
  for (size_t i = 0; i < expected.loads.size(); ++i) {
    EXPECT_TRUE(found.loads[i].equal(expected.loads[i])) << i;
  }
  for (size_t i = 0; i < expected.gradients.size(); ++i) {
    EXPECT_TRUE(found.gradients[i].tensor.equal(expected.gradients[i].tensor))
        << expected.gradients[i].name;
  }
}

// In float32 the CPU adds the two parts of a norm's gradient to the residual's one by one, the
// device their sum: there only the loss has the same bits.
TEST(DeepseekV3Device, LossLoadsAndGradientsInBfloat16AreTheCpus) {
  const std::unique_ptr<Device> cpu = cpu_device();
  const OneBackward expected = run_on(*cpu, at::kBFloat16);
  for (const bool late_copies : {false, true}) {
    const std::unique_ptr<Device> device = sim_device(tiny_device(late_copies));
    expect_same(run_on(*device, at::kBFloat16), expected);
    EXPECT_EQ(device->num_races(), 0) << device->first_race();
  }
}

TEST(DeepseekV3Device, LossInFloat32IsTheCpus) {
  const std::unique_ptr<Device> cpu = cpu_device();
  const std::unique_ptr<Device> device = sim_device(tiny_device());
  EXPECT_TRUE(run_on(*device, at::kFloat).loss.equal(run_on(*cpu, at::kFloat).loss));
  EXPECT_EQ(device->num_races(), 0) << device->first_race();
}

TEST(DeepseekV3Device, LayersInPiecesAreTheWholeOnes) {
  for (const c10::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    const std::unique_ptr<Device> device = sim_device(tiny_device());
    expect_same(run_on(*device, dtype, /*in_pieces=*/true), run_on(*device, dtype));
    EXPECT_EQ(device->num_races(), 0) << device->first_race();
  }
}

TEST(DeepseekV3Device, NoPieceOfALayerMakesTheHostWait) {
  const std::unique_ptr<Device> device = sim_device(tiny_device());
  const TinyDeepseek free(*device, tiny_deepseek(), {.seq_len = 8});
  const TinyDeepseek forced(
      *device, tiny_deepseek(), {.seq_len = 8, .shard = {}, .force_load_balance = true});
  const at::Tensor h = at::ones({1, 8, 32}, device->torch_device());
  const auto copies_of = [](const std::function<void()>& work) {
    const sim::Counters before = sim::simulator().counters(0);
    work();
    const sim::Counters after = sim::simulator().counters(0);
    EXPECT_EQ(after.num_copies_in, before.num_copies_in);
    return after.num_copies_out - before.num_copies_out;
  };
  const std::vector<int64_t> even(8, 3);
  const std::vector<int64_t> uneven = {0, 1, 2, 3, 4, 5, 9, 0};
  const at::Tensor rows = at::ones({24, 32}, device->torch_device());
  const at::Tensor weights = at::ones({24, 1}, device->torch_device());
  EXPECT_EQ(copies_of([&] { TinyDeepseek::run_layer(free.model.layers()[1], h); }), 0);
  const auto attend_on = [&](const TinyDeepseek& tiny) {
    const Routed routed = tiny.expert_layer(1).route(h, /*counts=*/true);
    tiny.expert_layer(1).attend(routed);
    return tiny.expert_layer(1).known_counts(routed);
  };
  EXPECT_EQ(copies_of([&] { EXPECT_TRUE(attend_on(free).empty()); }), 0);
  EXPECT_EQ(copies_of([&] { EXPECT_EQ(attend_on(forced), even); }), 0);
  EXPECT_EQ(copies_of([&] { free.expert_layer(1).experts(rows, weights, even); }), 0);
  EXPECT_EQ(copies_of([&] { free.expert_layer(1).experts(rows, weights, uneven); }), 0);
}

// Layers behind the dense ones, in a dry run on a device with more memory than there is.
struct DryLayer {
  std::unique_ptr<Device> device;
  TinyDeepseek model;
  int64_t seq_len;

  static DeviceConfig large() {
    DeviceConfig config;
    config.preset = "ascend-910b";
    config.memory.value = size_t{1} << 40;
    config.dry_run = true;
    return config;
  }
  static DeepseekV3Shape one_routed_layer(const std::string& flavor) {
    DeepseekV3Shape shape = deepseek_v3_shape(flavor);
    shape.num_layers = 1;
    shape.num_dense_layers = 0;
    return shape;
  }
  DryLayer(const std::string& flavor, bool force, int64_t seq_len = 4096)
      : device(sim_device(large())),
        model(*device,
              one_routed_layer(flavor),
              {.seq_len = seq_len, .shard = {}, .force_load_balance = force},
              at::kBFloat16),
        seq_len(seq_len) {}

  at::Tensor input() const {
    return at::zeros({1, seq_len, model.shape.dim},
                     at::TensorOptions().dtype(at::kBFloat16).device(device->torch_device()));
  }
  // Of embedding and head.
  double bytes_of_tables() const {
    return 2.0 * 2.0 * static_cast<double>(model.shape.vocab_size * model.shape.dim);
  }
};

TEST(DeepseekV3Dry, RoutedLayerTakesPlausibleTimeAndMemory) {
  for (const std::string flavor : {"16B", "671B"}) {
    SCOPED_TRACE(flavor);
    const DryLayer dry(flavor, /*force=*/false);
    const at::Tensor input = dry.input().requires_grad_();
    dry.device->reset_peak_memory();
    const TimeMark begin = dry.device->mark();
    const at::Tensor output = TinyDeepseek::run_layer(dry.model.model.layers()[0], input);
    output.backward(at::ones_like(output));
    const double seconds = dry.device->elapsed_ms(begin, dry.device->mark()) / 1e3;
    const DeepseekV3Shape& shape = dry.model.shape;
    const double head = 6.0 * static_cast<double>(shape.vocab_size * shape.dim);
    const double tokens = static_cast<double>(dry.seq_len);
    // Half of the attention is masked out, which the formula does not know.
    const double flops =
        tokens * (shape.flops_per_token(0) - head) +
        tokens * (shape.flops_per_token(dry.seq_len) - shape.flops_per_token(0)) / 2;
    const double share = flops / dry.device->peak_flops(at::kBFloat16) / seconds;
    EXPECT_GT(share, 0.2) << seconds;
    EXPECT_LT(share, 1.0) << seconds;
    const double layer = 2.0 * static_cast<double>(shape.num_parameters()) - dry.bytes_of_tables();
    const double peak = static_cast<double>(dry.device->memory().peak_allocated_bytes);
    const double rows = tokens * static_cast<double>(shape.moe.experts_per_token);
    EXPECT_GT(peak, 2 * layer + dry.bytes_of_tables());
    EXPECT_LT(peak,
              2 * layer + dry.bytes_of_tables() +
                  2 * rows * static_cast<double>(8 * shape.dim + 8 * shape.moe.ffn_dim) +
                  2 * tokens * static_cast<double>(30 * shape.attention.num_heads * 192));
    RecordProperty(flavor + "_ms", std::to_string(seconds * 1e3));
    RecordProperty(flavor + "_peak_gib", std::to_string(peak / 0x1p30));
    RecordProperty(flavor + "_share_of_peak_flops", std::to_string(share));
  }
}

// What one step takes after the parameters are there.
struct StepFigures {
  double ms = 0;
  int64_t num_ops = 0;
  size_t bytes = 0;  // at the peak, beyond the parameters
};

StepFigures step_on(bool dry_run) {
  DeviceConfig config = tiny_device();
  config.dry_run = dry_run;
  const std::unique_ptr<Device> device = sim_device(config);
  TinyDeepseek tiny(*device, small_shape(), {.seq_len = 64});
  const at::Tensor tokens =
      at::zeros({2, 64}, at::TensorOptions().dtype(at::kLong).device(device->torch_device()));
  device->elapsed_ms(device->mark(), device->mark());
  device->reset_peak_memory();
  const TimeMark begin = device->mark();
  const size_t before = device->memory().peak_allocated_bytes;
  const int64_t num_ops = sim::simulator().counters(0).num_ops;
  tiny.loss(tokens, tokens).backward();
  tiny.model.balance(tiny.model.expert_loads());
  return {device->elapsed_ms(begin, device->mark()),
          sim::simulator().counters(0).num_ops - num_ops,
          device->memory().peak_allocated_bytes - before};
}

TEST(DeepseekV3Dry, StepCostsWhatTheRealOneCosts) {
  const StepFigures real = step_on(/*dry_run=*/false);
  const StepFigures dry = step_on(/*dry_run=*/true);
  EXPECT_EQ(dry.ms, real.ms);
  EXPECT_EQ(dry.num_ops, real.num_ops);
  EXPECT_EQ(dry.bytes, real.bytes);
  EXPECT_GT(dry.num_ops, 300);
}

TEST(DeepseekV3Dry, PiecesNeedAForcedBalance) {
  {
    const DryLayer dry("16B", /*force=*/false, 64);
    try {
      attend(dry.model.expert_layer(0), dry.input());
      FAIL();
    } catch (const UsageError& error) {
      EXPECT_NE(std::string(error.what()).find("--debug.moe-force-load-balance"),
                std::string::npos);
    }
  }
  const DryLayer dry("16B", /*force=*/true, 64);
  const ExpertLayer& layer = dry.model.expert_layer(0);
  const AttendedAtOnce attended = attend(layer, dry.input());
  EXPECT_EQ(attended.counts, std::vector<int64_t>(64, 6));
  const at::Tensor returned = layer.experts(attended.tokens, attended.weights, attended.counts);
  const at::Tensor merged = layer.merge(attended.residual, returned, attended.places);
  EXPECT_EQ(merged.sizes(), dry.input().sizes());
}

}  // namespace
}  // namespace swapline::trainer
