// Processes killed while they save.
#include "swapline/checkpoint/checkpoint_store.h"
#include "tests/checkpoint/tensors_on_disk.h"
#include "tests/trainer/temporary_folder.h"

#include <csignal>
#include <random>

#include <ATen/ops/full.h>
#include <gtest/gtest.h>

#include <sys/wait.h>
#include <unistd.h>

namespace swapline {
namespace {

constexpr int kNumKills = 200;
constexpr int64_t kElements = 5000;

CheckpointContent content_of(int64_t step) {
  const auto value = static_cast<float>(step);
  CheckpointContent content;
  for (const char* name : {"a", "b", "c"}) {
    content.tensors.push_back({name, {at::full({kElements}, value)}});
  }
  content.scalars["state.json"] = {{"step", step}};
  return content;
}

// Every checkpoint that is there is whole. Returns the latest.
int64_t check_all(const CheckpointStore& store) {
  const std::vector<int64_t> steps = store.steps();
  for (const int64_t step : steps) {
    const TensorReader reader(store.path(step));
    for (const char* name : {"a", "b", "c"}) {
      EXPECT_TRUE(testing::has_same_bits(testing::read_from(reader, name),
                                         at::full({kElements}, static_cast<float>(step))));
    }
    EXPECT_EQ(read_scalars(store.path(step) + "/state.json"), (Scalars{{"step", step}}));
  }
  return steps.empty() ? -1 : steps.back();
}

// The child saves one step after the other, new ones and some again, and is killed at any moment.
TEST(InterruptedSave, AWholeCheckpointIsAlwaysThere) {
  const trainer::TemporaryFolder folder;
  const CheckpointStore store(folder.path("c"), {.keep_latest_k = 2, .file_bytes = 30'000});
  store.save(0, content_of(0));
  std::mt19937 random(7);
  std::uniform_int_distribution<useconds_t> moment(0, 12'000);
  int64_t latest = 0;
  int64_t num_leftovers = 0;
  for (int kill_number = 0; kill_number < kNumKills; ++kill_number) {
    const pid_t child = fork();
    if (child == 0) {
      for (int64_t step = latest;; ++step) {
        store.save(step, content_of(step));
      }
    }
    usleep(moment(random));
    kill(child, SIGKILL);
    int status = 0;
    waitpid(child, &status, 0);
    ASSERT_TRUE(WIFSIGNALED(status)) << "the child ended by itself: " << status;
    const int64_t now = check_all(store);
    ASSERT_GE(now, latest);
    latest = now;
    for (const auto& entry : std::filesystem::directory_iterator(store.folder())) {
      num_leftovers += entry.path().filename().string().starts_with(".") ? 1 : 0;
    }
  }
  EXPECT_GT(latest, 0);
  EXPECT_GT(num_leftovers, kNumKills / 20) << "no child was killed inside a save";
}

}  // namespace
}  // namespace swapline
