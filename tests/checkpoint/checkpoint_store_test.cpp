// Which checkpoints there are, which stay, and what a failing disk leaves.
#include "swapline/checkpoint/checkpoint_store.h"

#include "tests/checkpoint/faulty_file_ops.h"
#include "tests/checkpoint/tensors_on_disk.h"
#include "tests/support/errors.h"
#include "tests/trainer/temporary_folder.h"

#include <filesystem>
#include <set>

#include <ATen/ops/full.h>
#include <ATen/ops/sum.h>
#include <c10/util/Exception.h>
#include <gtest/gtest.h>

namespace swapline {
namespace {

namespace fs = std::filesystem;

using testing::FaultyFileOps;
using testing::has_same_bits;
using ::testing::HasSubstr;
using testing::message_of;
using trainer::TemporaryFolder;
using Steps = std::vector<int64_t>;

CheckpointContent content_of(double value) {
  CheckpointContent content;
  content.tensors = {{"a", {at::full({7}, value)}}, {"b", {at::full({2, 3}, value)}}};
  content.scalars["state.json"] = {{"value", value}};
  return content;
}

void expect_holds(const std::string& path, double value) {
  const TensorReader reader(path);
  EXPECT_TRUE(has_same_bits(testing::read_from(reader, "a"), at::full({7}, value))) << path;
  EXPECT_TRUE(has_same_bits(testing::read_from(reader, "b"), at::full({2, 3}, value))) << path;
  EXPECT_EQ(read_scalars(path + "/state.json"), (Scalars{{"value", value}})) << path;
}

std::set<std::string> names_in(const std::string& folder) {
  std::set<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) {
    names.insert(entry.path().filename().string());
  }
  return names;
}

TEST(CheckpointStore, SavesAndFinds) {
  const TemporaryFolder folder;
  const CheckpointStore store(folder.path("deep/checkpoint"));
  EXPECT_EQ(store.steps(), Steps{});
  store.save(10, content_of(1));
  store.save(9, content_of(2));
  store.save(100, content_of(3));
  EXPECT_EQ(store.steps(), (Steps{9, 10, 100}));
  expect_holds(store.path(10), 1);
  expect_holds(store.path(9), 2);
  EXPECT_EQ(store.path(100), folder.path("deep/checkpoint/step-100"));
}

TEST(CheckpointStore, OnlyWholeNamesAreCheckpoints) {
  const TemporaryFolder folder;
  for (const char* name : {"step-5",
                           "step-",
                           "step-x",
                           "step-5x",
                           "my-step-6",
                           "step--7",
                           "step-08",
                           ".unfinished-step-9",
                           "step-99999999999999999999",
                           "6"}) {
    fs::create_directory(folder.path(name));
  }
  EXPECT_EQ(CheckpointStore(folder.path()).steps(), Steps{5});
}

TEST(CheckpointStore, KeepsTheLatest) {
  const TemporaryFolder folder;
  const CheckpointStore store(folder.path("c"), {.keep_latest_k = 3});
  for (int64_t step = 1; step <= 6; ++step) {
    store.save(step, content_of(static_cast<double>(step)));
    EXPECT_EQ(store.steps().size(), static_cast<size_t>(std::min<int64_t>(step, 3)));
  }
  EXPECT_EQ(store.steps(), (Steps{4, 5, 6}));
  EXPECT_EQ(names_in(folder.path("c")), (std::set<std::string>{"step-4", "step-5", "step-6"}));
}

// Training went on from an older checkpoint: what is there from before has higher steps.
TEST(CheckpointStore, TheOneJustWrittenAlwaysStays) {
  const TemporaryFolder folder;
  for (const int64_t step : {10, 20, 30}) {
    CheckpointStore(folder.path("c")).save(step, content_of(1));
  }
  const CheckpointStore one(folder.path("c"), {.keep_latest_k = 2});
  one.save(5, content_of(2));
  EXPECT_EQ(one.steps(), (Steps{5, 30}));
  const CheckpointStore only(folder.path("c"), {.keep_latest_k = 1});
  only.save(4, content_of(3));
  EXPECT_EQ(only.steps(), Steps{4});
  expect_holds(only.path(4), 3);
}

TEST(CheckpointStore, ReplacesOneOfTheSameStep) {
  const TemporaryFolder folder;
  const CheckpointStore store(folder.path("c"));
  store.save(10, content_of(1));
  store.save(10, content_of(2));
  expect_holds(store.path(10), 2);
  EXPECT_EQ(names_in(folder.path("c")), std::set<std::string>{"step-10"});
}

TEST(CheckpointStore, LeftoversAreRemovedByTheNextSaveAndNothingElse) {
  const TemporaryFolder folder;
  const CheckpointStore store(folder.path("c"));
  store.save(10, content_of(1));
  for (const char* name :
       {".unfinished-step-11", ".deleted-step-3", ".unfinished-step-x", ".other", "mine"}) {
    fs::create_directory(folder.path("c/" + std::string(name)));
  }
  folder.write("c/.unfinished-step-11/half", "x");
  store.save(12, content_of(2));
  EXPECT_EQ(names_in(folder.path("c")),
            (std::set<std::string>{"step-10", "step-12", ".unfinished-step-x", ".other", "mine"}));
}

TEST(CheckpointStore, EverythingIsSyncedBeforeItGetsItsName) {
  const TemporaryFolder folder;
  std::vector<std::string> operations;
  const auto ops = std::make_shared<FaultyFileOps>([&](const auto& operation, const auto& path) {
    operations.push_back(operation + " " + fs::path(path).filename().string());
  });
  CheckpointContent content;
  content.tensors = {{"a", {at::full({7}, 1.0)}}};
  content.scalars["state.json"] = {{"value", 1.0}};
  CheckpointStore(folder.path("c"), {.ops = ops}).save(3, content);
  EXPECT_EQ(operations,
            (std::vector<std::string>{"make_folder c",
                                      "make_folder .unfinished-step-3",
                                      "create model-00001-of-00001.safetensors",
                                      "write model-00001-of-00001.safetensors",
                                      "write model-00001-of-00001.safetensors",
                                      "sync model-00001-of-00001.safetensors",
                                      "create model.safetensors.index.json",
                                      "write model.safetensors.index.json",
                                      "sync model.safetensors.index.json",
                                      "create state.json",
                                      "write state.json",
                                      "sync state.json",
                                      "sync_folder .unfinished-step-3",
                                      "rename .unfinished-step-3",
                                      "sync_folder c"}));
}

// Whatever fails and whenever: those before are there and whole, what failed is there whole or not
// at all, and the next save works. `stays_broken`: all that comes behind fails too.
void expect_survives_every_failure(int64_t step, const Steps& before, bool stays_broken) {
  int64_t num_operations = 0;
  for (bool has_failed = true; has_failed; ++num_operations) {
    const TemporaryFolder folder;
    for (const int64_t old_step : before) {
      CheckpointStore(folder.path("c")).save(old_step, content_of(1));
    }
    int64_t count = 0;
    const auto ops = std::make_shared<FaultyFileOps>([&](const auto& operation, const auto& path) {
      const int64_t index = count++;
      const bool fails = stays_broken ? index >= num_operations : index == num_operations;
      TORCH_CHECK(!fails, path, ": ", operation, " failed: disk full");
    });
    const CheckpointStore store(folder.path("c"), {.keep_latest_k = 2, .ops = ops});
    const std::string message = message_of([&] { store.save(step, content_of(2)); });
    has_failed = !message.empty();
    if (has_failed) {
      EXPECT_THAT(message, HasSubstr("disk full"));
    }
    const Steps steps = store.steps();
    for (const int64_t there : steps) {
      const bool is_new =
          there == step &&
          testing::read_from(TensorReader(store.path(there)), "a").sum().item<float>() == 14;
      EXPECT_TRUE(is_new || has_failed || there != step);
      expect_holds(store.path(there), is_new ? 2 : 1);
    }
    const bool is_last_there = std::count(steps.begin(), steps.end(), before.back()) == 1;
    EXPECT_TRUE(is_last_there) << num_operations << ": " << message;
    const CheckpointStore after(folder.path("c"));
    after.save(99, content_of(99));
    EXPECT_EQ(names_in(folder.path("c")).size(), after.steps().size());
  }
  EXPECT_GT(num_operations, 15);
}

TEST(CheckpointStoreFailures, ANewCheckpointFailsOnce) {
  expect_survives_every_failure(10, {3, 4, 5}, /*stays_broken=*/false);
}

TEST(CheckpointStoreFailures, ANewCheckpointFailsForGood) {
  expect_survives_every_failure(10, {3, 4, 5}, /*stays_broken=*/true);
}

TEST(CheckpointStoreFailures, AReplacedCheckpointFailsOnce) {
  expect_survives_every_failure(5, {3, 5}, /*stays_broken=*/false);
}

TEST(CheckpointStoreFailures, AReplacedCheckpointFailsForGood) {
  expect_survives_every_failure(5, {3, 5}, /*stays_broken=*/true);
}

TEST(CheckpointStoreFailures, AFullDiskIsNotLeftFull) {
  const TemporaryFolder folder;
  const auto ops = std::make_shared<FaultyFileOps>([&](const auto& operation, const auto& path) {
    TORCH_CHECK(operation != "sync", path, ": syncing failed: disk full");
  });
  const CheckpointStore store(folder.path("c"), {.ops = ops});
  EXPECT_THAT(message_of([&] { store.save(1, content_of(1)); }), HasSubstr("syncing failed"));
  EXPECT_TRUE(fs::is_empty(folder.path("c")));
}

// The system's own words, on a place where nobody can write.
TEST(CheckpointStoreFailures, TheErrorNamesTheFolderAndTheReason) {
  const CheckpointStore store("/proc/nowhere");
  EXPECT_THAT(message_of([&] { store.save(1, content_of(1)); }), HasSubstr("/proc/nowhere"));
}

}  // namespace
}  // namespace swapline
