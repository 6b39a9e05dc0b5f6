// The fixture of every test that runs on the simulated device: a fresh machine with the race
// checker on, and at the end no race, no copy left behind and no byte held.
#pragma once

#include "sim/torch/idle.h"
#include "sim/torch/sim.h"

#include <cstdint>
#include <string>
#include <utility>

#include <gtest/gtest.h>

namespace swapline::testing {

struct MachineOptions {
  std::string preset = "tiny";
  bool late_copies = false;
  double copy_slowdown = 1;
  double copy_jitter = 0;
  uint64_t seed = 0;
  size_t capacity_bytes = 0;  // 0: the preset's
  bool trace = false;
};

inline sim::SimulatorOptions machine(const MachineOptions& options = {}) {
  sim::SimulatorOptions made;
  made.spec = sim::preset(options.preset);
  made.num_devices = 2;
  made.capacity_bytes = options.capacity_bytes;
  made.late_copies = options.late_copies;
  made.trace = options.trace;
  made.faults.copy_slowdown = options.copy_slowdown;
  made.faults.copy_jitter = options.copy_jitter;
  made.faults.seed = options.seed;
  return made;
}

class SimTest : public ::testing::Test {
 protected:
  void SetUp() override { use_machine(); }

  // Everything made on the machine must be gone: use the body's scopes.
  void TearDown() override {
    if (expects_races_) {
      EXPECT_GT(sim::simulator().num_races(), 0) << "the race was not found";
    } else {
      EXPECT_EQ(sim::simulator().num_races(), 0) << first_race();
    }
    sim::wait_until_idle();
    EXPECT_EQ(sim::simulator().live_bytes(), 0U) << "something is still held";
    sim::simulator().set_faults({});
    sim::simulator().clear_races();
  }

  // A new machine; everything on the old one must be gone.
  void use_machine(const MachineOptions& options = {}) { sim::configure(machine(options)); }

  static sim::Simulator& sim() { return sim::simulator(); }
  static c10::Device device(int index = 0) { return sim::device(index); }
  static void set_faults(const sim::Faults& faults) { sim().set_faults(faults); }
  // This test provokes a race: none found is a failure.
  void expect_races() { expects_races_ = true; }
  static std::string first_race() {
    return sim().num_races() == 0 ? "" : sim().races().front().describe();
  }

 private:
  bool expects_races_ = false;
};

}  // namespace swapline::testing
