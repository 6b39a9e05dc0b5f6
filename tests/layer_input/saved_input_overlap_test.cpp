// Saved inputs where one micro-batch's forward runs piece by piece with another's backward: the
// bits of one without swap, two inputs resident besides the running layers', and no time lost while
// a copy is shorter than a layer.
#include "swapline/layer_input/saved_input.h"
#include "tests/layer_input/pipeline_stage.h"

#include <deque>
#include <optional>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

namespace swapline {
namespace {

using testing::kStageLayers;
using testing::PipelineStage;
using testing::same_bits;
using testing::stage_options;
using testing::SwappedLayers;

enum class Done { kEachLayer, kLastLayer, kNever };  // where layer_done() is called

struct Schedule {
  std::string name;
  size_t num_in_flight = 1;  // passes whose backward has not begun when one begins
  bool newest_first = false;
  Done done = Done::kLastLayer;
  int64_t offset = 0;  // the backward starts so many layers after the forward beside it
};

void PrintTo(const Schedule& schedule, std::ostream* out) {
  *out << schedule.name;
}

struct Flight {
  explicit Flight(int64_t microbatch) : microbatch(microbatch) {}
  int64_t microbatch;
  at::Tensor h;
  at::Tensor grad;
  std::vector<SavedInput> saved;
};

class Overlapped {
 public:
  Overlapped(LayerInputs& inputs, PipelineStage& stage, Schedule schedule)
      : inputs_(inputs), stage_(stage), schedule_(std::move(schedule)) {}

  void run(int64_t num_microbatches) {
    for (int64_t i = 0; i < num_microbatches; ++i) {
      inputs_.begin_microbatch(i);
      Flight next(i);
      next.h = stage_.received(i).detach() * 1;
      if (flights_.size() < schedule_.num_in_flight) {
        for (int64_t layer = 0; layer < kStageLayers; ++layer) {
          forward_layer(next, nullptr);
        }
      } else {
        Flight back = begin_backward();
        // Where the newest comes first, the next one is the one that runs forward now.
        hint_ = schedule_.newest_first ? std::nullopt : name_of_next();
        for (int64_t layer = 0; layer < kStageLayers; ++layer) {
          forward_layer(next, layer >= schedule_.offset ? &back : nullptr);
        }
        finish_backward(back);
      }
      flights_.push_back(std::move(next));
    }
    while (!flights_.empty()) {
      Flight back = begin_backward();
      hint_ = name_of_next();
      finish_backward(back);
    }
  }

 private:
  std::optional<int64_t> name_of_next() const {
    if (flights_.empty()) {
      return std::nullopt;
    }
    return (schedule_.newest_first ? flights_.back() : flights_.front()).microbatch;
  }
  Flight begin_backward() {
    Flight back = std::move(schedule_.newest_first ? flights_.back() : flights_.front());
    schedule_.newest_first ? flights_.pop_back() : flights_.pop_front();
    back.grad = stage_.gradient(back.microbatch);
    return back;
  }
  void finish_backward(Flight& back) {
    while (!back.saved.empty()) {
      backward_layer(back, [] {});
    }
  }
  // `back`'s newest layer runs backward between the pieces of `next`'s forward.
  void forward_layer(Flight& next, Flight* back) {
    const auto layer = static_cast<int64_t>(next.saved.size());
    next.saved.push_back(inputs_.save(next.h, layer > 0 ? &next.saved.back() : nullptr));
    const bool is_last = layer + 1 == kStageLayers;
    if (is_last && back == nullptr && next.microbatch > 0 && !schedule_.newest_first) {
      inputs_.prefetch(flights_.front().microbatch);
    }
    const at::Tensor in = std::exchange(next.h, at::Tensor());
    const auto& parameters = stage_.parameters();
    at::Tensor inner;
    const auto first_piece = [&] {
      const c10::NoGradGuard no_grad;
      inner = at::mm(in, parameters[2 * layer]);
    };
    if (back != nullptr) {
      backward_layer(*back, first_piece);
    } else {
      first_piece();
    }
    {
      const c10::NoGradGuard no_grad;
      next.h = in + at::mm(at::gelu(inner), parameters[2 * layer + 1]);
    }
    if (schedule_.done == Done::kEachLayer || (schedule_.done == Done::kLastLayer && is_last)) {
      next.saved.back().layer_done();
    }
  }
  template <typename Between>
  void backward_layer(Flight& back, const Between& between) {
    const auto layer = static_cast<int64_t>(back.saved.size()) - 1;
    {
      const at::Tensor input = back.saved.back().take().set_requires_grad(true);
      if (layer == 0 && hint_) {
        inputs_.prefetch(*hint_);  // nothing of this pass is left to prefetch
      }
      const at::Tensor output = stage_.run_layer(layer, input);
      between();
      output.backward(back.grad);
      back.grad = input.grad();
    }
    back.saved.back().finish();
    back.saved.pop_back();
  }

  LayerInputs& inputs_;
  PipelineStage& stage_;
  Schedule schedule_;
  std::deque<Flight> flights_;
  std::optional<int64_t> hint_;  // the pass that goes backward next
};

struct Outcome {
  std::vector<at::Tensor> grads;
  LayerInputStats stats;
  double ns = 0;
};

Outcome run(const Schedule& schedule, const LayerInputOptions& options) {
  SwappedLayers swapped(options, testing::timed());
  PipelineStage stage(256);
  Outcome outcome;
  for (int step = 0; step < 3; ++step) {
    const double before = testing::device_ns();
    Overlapped(swapped.inputs, stage, schedule).run(5);
    outcome.ns = testing::device_ns() - before;
  }
  outcome.grads = stage.grads_on_cpu();
  outcome.stats = swapped.inputs.stats();
  EXPECT_EQ(outcome.stats.resident_inputs, 0);
  EXPECT_EQ(swapped.context->host().stats().requested_bytes, 0U);
  return outcome;
}

class SavedInputOverlapTest : public testing::SimTest,
                              public ::testing::WithParamInterface<Schedule> {};

TEST_P(SavedInputOverlapTest, NothingIsWaitedForAndTwoAreResident) {
  for (const int64_t most : {int64_t{1}, kAuto}) {
    use_machine({.late_copies = true, .copy_slowdown = 4});
    const Outcome plain = run(GetParam(), stage_options(1, /*enabled=*/false));
    const Outcome swapped = run(GetParam(), stage_options(most));
    EXPECT_TRUE(same_bits(plain.grads, swapped.grads));
    EXPECT_EQ(swapped.stats.exposed_out_ms + swapped.stats.exposed_in_ms, 0);
    EXPECT_LE(swapped.ns, plain.ns * 1.001);
    EXPECT_LE(swapped.stats.peak_resident_inputs, 2);
    EXPECT_EQ(swapped.stats.num_prefetch_misses, 0);
  }
}

TEST_P(SavedInputOverlapTest, OnASlowLinkTheBitsAndTheBoundHold) {
  for (const int64_t most : {int64_t{0}, int64_t{1}, kAuto}) {
    for (const bool late : {false, true}) {
      use_machine({.late_copies = late, .copy_slowdown = 200, .copy_jitter = 3});
      const Outcome plain = run(GetParam(), stage_options(1, /*enabled=*/false));
      const Outcome swapped = run(GetParam(), stage_options(most));
      EXPECT_TRUE(same_bits(plain.grads, swapped.grads));
      EXPECT_LE(swapped.stats.peak_resident_inputs, 2);
      EXPECT_GT(swapped.stats.exposed_out_ms, 0);
    }
  }
}

std::vector<Schedule> schedules() {
  return {{.name = "OneAhead"},
          {.name = "OneAheadEachLayerDone", .done = Done::kEachLayer},
          {.name = "TwoAheadOldestFirst", .num_in_flight = 2},
          {.name = "TwoAheadNewestFirst", .num_in_flight = 2, .newest_first = true},
          {.name = "ThreeAheadOffset", .num_in_flight = 3, .offset = 2},
          {.name = "NeverDone", .num_in_flight = 2, .done = Done::kNever}};
}

INSTANTIATE_TEST_SUITE_P(All,
                         SavedInputOverlapTest,
                         ::testing::ValuesIn(schedules()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace swapline
