// Sizes and arithmetic of each flavor against the published figures.
#include "tests/trainer/models/tiny_deepseek.h"

namespace swapline::trainer {
namespace {

// 671B is 671,026,404,352 plus the 58 x 256 biases that choose experts, which are no parameters.
TEST(DeepseekV3Shapes, HaveThePublishedNumbersOfParameters) {
  EXPECT_EQ(deepseek_v3_shape("debugmodel").num_parameters(), 7'272'448);
  EXPECT_EQ(deepseek_v3_shape("16B").num_parameters(), 15'706'484'224);
  EXPECT_EQ(deepseek_v3_shape("671B").num_parameters(), 671'026'404'352);
}

// The published module has 11.5B parameters of its own, besides the model's embedding and head.
TEST(DeepseekV3Shapes, MtpModuleAddsItsLayerAndProjection) {
  Config config = config_of("671B");
  const int64_t without = model_figures(config).num_parameters;
  config.training.num_mtp_modules = 1;
  const ModelFigures figures = model_figures(config);
  EXPECT_EQ(figures.num_parameters - without, 11'610'067'968);
  EXPECT_EQ(figures.num_mtp_layers, 1);
  EXPECT_EQ(figures.num_layers, 61);
}

// 37B active, 2.4B in the 16B model: 6 a parameter, the embedding looked up, plus the attention.
TEST(DeepseekV3Shapes, FlopsCountWhatATokenMeets) {
  const DeepseekV3Shape big = deepseek_v3_shape("671B");
  const double attention = 6.0 * 61 * 128 * (192 + 128) * 4096;
  EXPECT_NEAR((big.flops_per_token(4096) - attention) / 6, 37.55e9 - 129280 * 7168, 0.02e9);
  const DeepseekV3Shape small = deepseek_v3_shape("16B");
  EXPECT_NEAR(small.flops_per_token(0) / 6, 2.66e9 - 102400 * 2048, 0.02e9);
}

TEST(DeepseekV3Shapes, UnknownNamesNameThoseThereAre) {
  EXPECT_NE(usage_error([] { deepseek_v3_shape("9B"); }).find("debugmodel, 16B, 671B"),
            std::string::npos);
  Config config = config_of("16B");
  config.model.name = "llama4";
  EXPECT_NE(usage_error([&] { model_figures(config); }).find("llama3, deepseek_v3"),
            std::string::npos);
}

TEST(DeepseekV3Shapes, MtpModulesAreNotForLlama3) {
  Config config;
  config.training.num_mtp_modules = 1;
  EXPECT_NE(usage_error([&] { model_figures(config); }).find("--training.num-mtp-modules"),
            std::string::npos);
}

}  // namespace
}  // namespace swapline::trainer
