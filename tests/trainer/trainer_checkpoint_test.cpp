// Writing beside training: whatever the disk's speed, a checkpoint holds what was there after its
// step.
#include "tests/checkpoint/faulty_file_ops.h"
#include "tests/trainer/temporary_folder.h"
#include "trainer/trainer.h"

#include <chrono>
#include <fstream>
#include <sstream>
#include <thread>

#include <c10/util/Exception.h>
#include <gtest/gtest.h>

namespace swapline::trainer {
namespace {

constexpr int kNumSteps = 3;

Config small_run(const TemporaryFolder& folder, const std::string& mode) {
  Config config;
  config.job.dump_folder = folder.path();
  config.data.path = folder.write("text.txt", std::string(5000, 'a') + std::string(5000, 'b'));
  config.model.num_layers = 1;
  config.training.steps = kNumSteps;
  config.training.seq_len = 16;
  config.training.local_batch_size = 1;
  config.checkpoint.enable = true;
  config.checkpoint.interval = 1;
  config.checkpoint.last_save_model_only = false;
  config.checkpoint.async_mode = mode;
  config.metrics.progress_bar = false;
  return config;
}

void train_with(const Config& config, std::shared_ptr<FileOps> ops) {
  const Layout layout = make_layout(config);
  const Devices devices = make_devices(config.device, layout.num_devices(), false);
  Trainer(config, layout, devices, std::move(ops)).run();
}

std::string content_of(const TemporaryFolder& folder, int step) {
  std::ostringstream content;
  content << std::ifstream(folder.path("checkpoint/step-" + std::to_string(step) +
                                       "/model-00001-of-00001.safetensors"),
                           std::ios::binary)
                 .rdbuf();
  return content.str();
}

// Each write lasts longer than a step does: without the wait before the optimizer's step, nearly
// all of a checkpoint would be from later steps.
std::shared_ptr<FileOps> slow_disk() {
  return std::make_shared<testing::FaultyFileOps>([](const auto& operation, const auto&) {
    if (operation == "write") {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
  });
}

void expect_same_beside_training(const std::function<void(Config&)>& change) {
  const TemporaryFolder at_once;
  Config config = small_run(at_once, "disabled");
  change(config);
  train_with(config, nullptr);
  const TemporaryFolder beside;
  config = small_run(beside, "async");
  change(config);
  train_with(config, slow_disk());
  for (int step = 1; step <= kNumSteps; ++step) {
    EXPECT_FALSE(content_of(at_once, step).empty());
    EXPECT_TRUE(content_of(at_once, step) == content_of(beside, step)) << step;
  }
}

TEST(TrainerCheckpoint, ASlowDiskSavesTheSameBesideTraining) {
  expect_same_beside_training([](Config& config) { config.optimizer.swap_optimizer = true; });
}

TEST(TrainerCheckpoint, ASlowDiskSavesTheSameWithStatesOnTheDevice) {
  expect_same_beside_training([](Config&) {});
}

// There the parameters themselves are written, not copies of them.
TEST(TrainerCheckpoint, ASlowDiskSavesTheSameOnTheCpu) {
  expect_same_beside_training([](Config& config) { config.device.type = "cpu"; });
}

TEST(TrainerCheckpoint, AFullDiskEndsTheRunAndLeavesWhatWasThere) {
  for (const std::string mode : {"disabled", "async"}) {
    const TemporaryFolder folder;
    int num_syncs = 0;
    const auto ops =
        std::make_shared<testing::FaultyFileOps>([&](const auto& operation, const auto& path) {
          num_syncs += operation == "sync_folder" ? 1 : 0;
          TORCH_CHECK(num_syncs < 3, path, ": disk full");
        });
    EXPECT_THROW(train_with(small_run(folder, mode), ops), c10::Error) << mode;
    EXPECT_FALSE(content_of(folder, 1).empty());
    EXPECT_TRUE(content_of(folder, 2).empty());
  }
}

}  // namespace
}  // namespace swapline::trainer
