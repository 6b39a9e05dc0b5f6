// A machine of two devices with a block of each kind of memory, and what tests say of its log.
#pragma once

#include "harness/machine/machine.h"

#include <cstring>
#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace swapline::harness::testing {

class MachineTest : public ::testing::Test {
 protected:
  static constexpr size_t kBytes = 1024;

  void SetUp() override {
    std::memset(pinned_, 1, kBytes);
    machine_.log.clear();
  }

  void copy_in(void* to) { ASSERT_TRUE(machine_.copy(side_, to, pinned_, kBytes)); }
  void record(Stream& stream) { machine_.record(stream, *event_); }
  // A kernel that adds 1 to each byte.
  void add_one(Stream& stream, char* data) {
    machine_.launch(stream, "add one", {{data, kBytes, false}, {data, kBytes, true}}, [data] {
      for (size_t i = 0; i < kBytes; ++i) {
        ++data[i];
      }
    });
  }
  int64_t count(const std::string& word) const { return machine_.log.count_of(word); }
  void expect_races(size_t num) const {
    EXPECT_EQ(machine_.races().size(), num)
        << (machine_.races().empty() ? "" : machine_.races().front());
  }

  Machine machine_;
  Stream& main_ = machine_.default_stream(0);
  Stream& side_ = machine_.make_stream(0, 0);
  Event* event_ = machine_.make_event(0, 0);
  char* data_ = static_cast<char*>(machine_.allocate_device(kBytes, 0));
  char* pinned_ = static_cast<char*>(machine_.allocate_pinned(kBytes, 0));
};

}  // namespace swapline::harness::testing
