// When to save and what to load.
#include "trainer/checkpoint_policy.h"

#include <gtest/gtest.h>

namespace swapline::trainer {
namespace {

std::string kinds(const CheckpointConfig& config, int64_t last_step) {
  std::string kinds;
  for (int64_t step = 1; step <= last_step; ++step) {
    const SaveKind kind = save_kind(config, step, last_step);
    kinds += kind == SaveKind::kNone ? '.' : kind == SaveKind::kFull ? 'F' : 'M';
  }
  return kinds;
}

TEST(CheckpointPolicy, SavesAtEachIntervalAndTheEnd) {
  CheckpointConfig config;
  config.interval = 3;
  EXPECT_EQ(kinds(config, 7), "..F..FM");
  EXPECT_EQ(kinds(config, 6), "..F..M");
  config.last_save_model_only = false;
  EXPECT_EQ(kinds(config, 6), "..F..F");
  config.enable_first_step_checkpoint = true;
  EXPECT_EQ(kinds(config, 7), "F.F..FF");
  EXPECT_EQ(kinds(config, 1), "F");
  config.load_only = true;
  EXPECT_EQ(kinds(config, 7), ".......");
}

TEST(CheckpointPolicy, GoesOnFromTheLatestOrTheOneNamed) {
  CheckpointConfig config;
  EXPECT_FALSE(checkpoint_to_load(config, "c", {}).has_value());
  EXPECT_EQ(checkpoint_to_load(config, "c", {5, 10})->path, "c/step-10");
  config.load_step = 5;
  EXPECT_EQ(checkpoint_to_load(config, "c", {5, 10})->path, "c/step-5");
  config.load_step = 0;
  EXPECT_EQ(checkpoint_to_load(config, "c", {0, 10})->path, "c/step-0");
  config.load_step = 6;
  EXPECT_THROW(checkpoint_to_load(config, "c", {5, 10}), UsageError);
  EXPECT_THROW(checkpoint_to_load(config, "c", {}), UsageError);
}

TEST(CheckpointPolicy, BeginsElsewhereOnlyWithoutCheckpointsOfItsOwn) {
  CheckpointConfig config;
  config.initial_load_path = "other";
  EXPECT_EQ(checkpoint_to_load(config, "c", {10})->path, "c/step-10");
  const auto model_only = checkpoint_to_load(config, "c", {});
  EXPECT_EQ(model_only->path, "other");
  EXPECT_TRUE(model_only->parts.empty());
  config.initial_load_model_only = false;
  config.exclude_from_loading = "train_state,lr-scheduler";
  EXPECT_EQ(checkpoint_to_load(config, "c", {})->parts,
            (CheckpointParts{kOptimizerPart, kDataPart}));
}

TEST(CheckpointPolicy, KnowsTheParts) {
  CheckpointConfig config;
  EXPECT_EQ(parts_to_load(config).size(), 4U);
  config.exclude_from_loading = "optimizer,lr_scheduler,dataloader,train_state";
  EXPECT_TRUE(parts_to_load(config).empty());
  for (const char* wrong : {"model", ",optimizer", "optimizer, dataloader"}) {
    config.exclude_from_loading = wrong;
    EXPECT_THROW(parts_to_load(config), UsageError) << wrong;
  }
}

}  // namespace
}  // namespace swapline::trainer
