// From the configuration's words to a model.
#include "trainer/models/model.h"

#include "trainer/models/deepseek_v3.h"
#include "trainer/models/llama3.h"

namespace swapline::trainer {
namespace {

constexpr const char* kLlama3 = "llama3";
constexpr const char* kDeepseekV3 = "deepseek_v3";

// True for deepseek_v3. Throws: UsageError for any other name but llama3.
bool is_deepseek_v3(const ModelConfig& model) {
  if (model.name != kLlama3 && model.name != kDeepseekV3) {
    throw UsageError("--model.name: found \"" + model.name + "\", allowed is one of: " + kLlama3 +
                     ", " + kDeepseekV3);
  }
  return model.name == kDeepseekV3;
}

Llama3Shape llama3_shape_of(const Config& config) {
  if (config.training.num_mtp_modules > 0) {
    throw UsageError("--training.num-mtp-modules: found " +
                     std::to_string(config.training.num_mtp_modules) +
                     ", allowed for llama3 is 0; only deepseek_v3 foretells more tokens");
  }
  Llama3Shape shape = llama3_shape(config.model.flavor);
  if (config.model.num_layers > 0) {
    shape.num_layers = config.model.num_layers;
  }
  return shape;
}

DeepseekV3Shape deepseek_v3_shape_of(const Config& config) {
  DeepseekV3Shape shape = deepseek_v3_shape(config.model.flavor);
  if (config.model.num_layers > 0) {
    shape.num_layers = config.model.num_layers;
  }
  shape.num_mtp_modules = config.training.num_mtp_modules;
  return shape;
}

// The figures that both kinds of shapes give.
template <typename Shape>
ModelFigures figures_of(const Shape& shape, int64_t seq_len) {
  ModelFigures figures;
  figures.num_parameters = shape.num_parameters();
  figures.num_layers = shape.num_layers;
  figures.dim = shape.dim;
  figures.flops_per_token = shape.flops_per_token(seq_len);
  const double head_flops = 6.0 * static_cast<double>(shape.vocab_size * shape.dim);
  figures.head_in_layers =
      head_flops * static_cast<double>(shape.num_layers) / (figures.flops_per_token - head_flops);
  return figures;
}

}  // namespace

ModelFigures model_figures(const Config& config) {
  if (!is_deepseek_v3(config.model)) {
    return figures_of(llama3_shape_of(config), config.training.seq_len);
  }
  const DeepseekV3Shape shape = deepseek_v3_shape_of(config);
  ModelFigures figures = figures_of(shape, config.training.seq_len);
  figures.num_mtp_layers = shape.num_mtp_modules;
  return figures;
}

std::unique_ptr<Model> make_model(const Config& config,
                                  const Placement& placement,
                                  ExpertShard shard,
                                  ParameterFactory& parameters) {
  if (!is_deepseek_v3(config.model)) {
    return std::make_unique<Llama3>(
        llama3_shape_of(config), config.training.seq_len, placement, parameters);
  }
  const DeepseekV3Options options{
      config.training.seq_len, shard, config.debug.moe_force_load_balance};
  return std::make_unique<DeepseekV3>(deepseek_v3_shape_of(config), options, placement, parameters);
}

}  // namespace swapline::trainer
