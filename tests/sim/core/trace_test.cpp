// The trace is Chrome JSON with a row per lane and a memory curve by kind.
#include "tests/sim/core/machine.h"

#include <map>
#include <string>

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace swapline::sim {
namespace {

using nlohmann::json;

class TraceTest : public ::testing::Test {
 protected:
  static SimulatorOptions machine() {
    SimulatorOptions options = tiny_machine();
    options.trace = true;
    return options;
  }
  // A little of everything, on both devices.
  void run_program() {
    side_ = sim_.new_stream(0);
    data_ = sim_.allocate(0, 0, 2 * kMiB);
    sim_.set_memory_kind(data_, MemoryKind::kParameters);
    pinned_ = sim_.allocate_pinned(2 * kMiB);
    void* there = sim_.allocate(1, 0, 2 * kMiB);
    copy_in(sim_, 0, pinned_, data_, 1'000'000);
    run(sim_, 0, "mm \"quoted\\\"", {}, {1e8});
    run(sim_, side_, "side work", {}, {1e8});
    copy_out(sim_, 0, data_, pinned_, 1'000'000);
    sim_.copy(0, 0, {0, data_, 1, there, 1000, true, "peer copy"});
    sim_.synchronize_device(0);
    sim_.free(there);
  }
  json events() const { return json::parse(sim_.trace_json()).at("traceEvents"); }
  // Names of the rows of a device that have a span.
  static std::map<std::string, int> rows(const json& events, int device) {
    std::map<std::string, int> rows;
    for (const json& event : events) {
      if (event.at("ph") == "M" && event.at("name") == "thread_name" && event.at("pid") == device) {
        rows[event.at("args").at("name")] = event.at("tid");
      }
    }
    return rows;
  }
  static json span(const json& events, const std::string& name) {
    for (const json& event : events) {
      if (event.at("ph") == "X" && event.at("name") == name) {
        return event;
      }
    }
    return {};
  }

  Simulator sim_{machine()};
  StreamId side_ = 0;
  void* data_ = nullptr;
  void* pinned_ = nullptr;
};

TEST_F(TraceTest, EveryLaneHasARow) {
  run_program();
  const auto found = rows(events(), 0);
  for (const char* lane : {"host", "compute", "stream 1", "H2D", "D2H", "peer"}) {
    EXPECT_EQ(found.count(lane), 1U) << lane;
  }
}

TEST_F(TraceTest, SpansLieInTheirRowsWithTheirTimes) {
  run_program();
  const json all = events();
  const auto found = rows(all, 0);
  const json copy = span(all, "copy in");
  ASSERT_FALSE(copy.is_null());
  EXPECT_EQ(copy.at("tid"), found.at("H2D"));
  EXPECT_EQ(copy.at("dur").get<double>(), static_cast<double>(copy_time(1'000'000)) / 1000);
  EXPECT_EQ(span(all, "copy out").at("tid"), found.at("D2H"));
  EXPECT_EQ(span(all, "side work").at("tid"), found.at("stream 1"));
  const json product = span(all, "mm \"quoted\\\"");
  ASSERT_FALSE(product.is_null()) << "names are escaped";
  EXPECT_EQ(product.at("tid"), found.at("compute"));
  EXPECT_NEAR(product.at("ts").get<double>(),
              copy.at("ts").get<double>() + copy.at("dur").get<double>(),
              1e-6);
}

TEST_F(TraceTest, HostRowShowsWhereTheHostWaits) {
  run_program();
  const json all = events();
  const json wait = span(all, "wait");
  ASSERT_FALSE(wait.is_null());
  EXPECT_EQ(wait.at("tid"), rows(all, 0).at("host"));
  EXPECT_NEAR(wait.at("ts").get<double>() + wait.at("dur").get<double>(),
              static_cast<double>(sim_.host_time(0)) / 1000,
              1e-6);
}

TEST_F(TraceTest, MemoryIsACounterByKind) {
  run_program();
  bool is_found = false;
  for (const json& event : events()) {
    if (event.at("ph") == "C" && event.at("pid") == 0) {
      is_found = true;
      EXPECT_EQ(event.at("name"), "memory");
      for (const char* kind :
           {"parameters", "gradients", "optimizer_states", "layer_inputs", "other"}) {
        EXPECT_TRUE(event.at("args").contains(kind)) << kind;
      }
    }
  }
  EXPECT_TRUE(is_found);
}

TEST_F(TraceTest, StreamsCanBeNamed) {
  run_program();
  sim_.name_stream(0, side_, "swap out");
  bool is_found = false;
  for (const json& event : events()) {
    is_found = is_found || (event.at("ph") == "M" && event.at("args").at("name") == "swap out");
  }
  EXPECT_TRUE(is_found);
}

TEST_F(TraceTest, ClearedTraceIsStillWellFormed) {
  run_program();
  sim_.clear_trace();
  for (const json& event : events()) {
    EXPECT_EQ(event.at("ph"), "M");
  }
}

TEST(TraceOff, NothingIsKeptUnlessAsked) {
  Simulator sim(tiny_machine());
  run(sim, 0, "work");
  EXPECT_EQ(sim.trace_json().find("work"), std::string::npos);
}

}  // namespace
}  // namespace swapline::sim
