// Writing beside the caller: when it waits, and where errors come out.
#include "swapline/checkpoint/background_writer.h"

#include "tests/checkpoint/faulty_file_ops.h"
#include "tests/checkpoint/tensors_on_disk.h"
#include "tests/support/errors.h"
#include "tests/trainer/temporary_folder.h"

#include <atomic>
#include <chrono>
#include <future>
#include <thread>

#include <ATen/ops/full.h>
#include <c10/util/Exception.h>
#include <gtest/gtest.h>

namespace swapline {
namespace {

using testing::FaultyFileOps;
using testing::has_same_bits;
using ::testing::HasSubstr;
using testing::message_of;
using testing::read_from;
using trainer::TemporaryFolder;

CheckpointContent content_with(const at::Tensor& tensor) {
  CheckpointContent content;
  content.tensors = {{"a", {tensor}}};
  return content;
}

// A disk that writes nothing until it is told to.
struct Gate {
  std::promise<void> opens;
  std::shared_future<void> opened = opens.get_future().share();
  std::shared_ptr<FileOps> ops =
      std::make_shared<FaultyFileOps>([opened = opened](const auto& operation, const auto&) {
        if (operation == "create") {
          opened.wait();
        }
      });
};

TEST(BackgroundWriter, WritesWhileTheCallerGoesOn) {
  const TemporaryFolder folder;
  Gate gate;
  BackgroundWriter writer(CheckpointStore(folder.path("c"), {.ops = gate.ops}));
  writer.start(1, content_with(at::full({4}, 1.0)));
  EXPECT_TRUE(writer.is_writing());  // start() came back, and nothing can be written yet
  EXPECT_TRUE(writer.store().steps().empty());
  gate.opens.set_value();
  writer.wait();
  EXPECT_FALSE(writer.is_writing());
  EXPECT_TRUE(
      has_same_bits(read_from(TensorReader(writer.store().path(1)), "a"), at::full({4}, 1.0)));
}

// What the trainer does: the next update only after wait().
TEST(BackgroundWriter, WhatChangesAfterWaitIsNotInTheFile) {
  const TemporaryFolder folder;
  Gate gate;
  BackgroundWriter writer(CheckpointStore(folder.path("c"), {.ops = gate.ops}));
  const at::Tensor tensor = at::full({4}, 1.0);
  writer.start(1, content_with(tensor));
  std::thread opener([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    gate.opens.set_value();
  });
  writer.wait();
  tensor.fill_(2);
  opener.join();
  EXPECT_TRUE(
      has_same_bits(read_from(TensorReader(writer.store().path(1)), "a"), at::full({4}, 1.0)));
}

// The test before can fail: without the wait the file has the change.
TEST(BackgroundWriter, WhatChangesBeforeWaitIsInTheFile) {
  const TemporaryFolder folder;
  Gate gate;
  BackgroundWriter writer(CheckpointStore(folder.path("c"), {.ops = gate.ops}));
  const at::Tensor tensor = at::full({4}, 1.0);
  writer.start(1, content_with(tensor));
  tensor.fill_(2);
  gate.opens.set_value();
  writer.wait();
  EXPECT_TRUE(
      has_same_bits(read_from(TensorReader(writer.store().path(1)), "a"), at::full({4}, 2.0)));
}

TEST(BackgroundWriter, TheNextStartWaitsForTheOneBefore) {
  const TemporaryFolder folder;
  std::atomic<int> num_writing{0};
  std::atomic<int> most_writing{0};
  const auto ops = std::make_shared<FaultyFileOps>([&](const auto& operation, const auto&) {
    if (operation == "create") {
      most_writing = std::max(most_writing.load(), ++num_writing);
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
      --num_writing;
    }
  });
  BackgroundWriter writer(CheckpointStore(folder.path("c"), {.ops = ops}));
  for (int64_t step = 1; step <= 5; ++step) {
    writer.start(step, content_with(at::full({4}, 1.0)));
  }
  writer.wait();
  EXPECT_EQ(writer.store().steps().size(), 5U);
  EXPECT_EQ(most_writing, 1);
}

TEST(BackgroundWriter, AnErrorComesOutOnceAtTheNextCall) {
  const TemporaryFolder folder;
  bool fails = true;
  const auto ops = std::make_shared<FaultyFileOps>(
      [&](const auto&, const auto& path) { TORCH_CHECK(!fails, path, ": disk full"); });
  BackgroundWriter writer(CheckpointStore(folder.path("c"), {.ops = ops}));
  writer.start(1, content_with(at::full({4}, 1.0)));
  EXPECT_THAT(message_of([&] { writer.start(2, content_with(at::full({4}, 1.0))); }),
              HasSubstr("disk full"));
  EXPECT_FALSE(writer.is_writing());
  EXPECT_NO_THROW(writer.wait());
  writer.start(3, content_with(at::full({4}, 1.0)));
  EXPECT_THAT(message_of([&] { writer.wait(); }), HasSubstr("disk full"));
  fails = false;
  writer.start(4, content_with(at::full({4}, 1.0)));
  writer.wait();
  EXPECT_EQ(writer.store().steps(), std::vector<int64_t>{4});
}

TEST(BackgroundWriter, DestructionWaits) {
  const TemporaryFolder folder;
  const auto ops = std::make_shared<FaultyFileOps>(
      [](const auto&, const auto&) { std::this_thread::sleep_for(std::chrono::milliseconds(2)); });
  {
    BackgroundWriter writer(CheckpointStore(folder.path("c"), {.ops = ops}));
    writer.start(1, content_with(at::full({4}, 1.0)));
  }
  EXPECT_EQ(CheckpointStore(folder.path("c")).steps(), std::vector<int64_t>{1});
}

TEST(BackgroundWriter, HoldsTheTensorsUntilTheyAreWritten) {
  const TemporaryFolder folder;
  Gate gate;
  BackgroundWriter writer(CheckpointStore(folder.path("c"), {.ops = gate.ops}));
  at::Tensor tensor = at::full({4}, 3.0);
  const c10::weak_intrusive_ptr<c10::TensorImpl> watched(tensor.getIntrusivePtr());
  writer.start(1, content_with(tensor));
  tensor.reset();
  EXPECT_FALSE(watched.expired());
  gate.opens.set_value();
  writer.wait();
  EXPECT_TRUE(watched.expired());
}

}  // namespace
}  // namespace swapline
