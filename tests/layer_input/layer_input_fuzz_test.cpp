// Random schedules on random machines against ordinary autograd: forwards, backwards in any order,
// evaluation, dropped passes, exceptions, hints, sizes, failing pins, jitter. 500 cases; more with
// RC_PARAMS="max_success=5000", a failing one again with the seed that it prints.
#include "sim/torch/idle.h"
#include "tests/support/sim_test.h"
#include "tests/support/tiny_model.h"

#include <cstdlib>
#include <ostream>
#include <stdexcept>
#include <string>
#include <vector>

#include <rapidcheck.h>

namespace swapline {
namespace {

using testing::MachineOptions;
using testing::random_tensor;
using testing::same_bits;
using testing::SwappedLayers;
using testing::TinyModel;

enum class Do {
  kForward,
  kBackward,
  kEval,
  kDrop,
  kThrowInForward,
  kThrowInBackward,
  kHint,
  kAhead
};

struct Action {
  Do what = Do::kForward;
  int64_t number = 0;  // rows, place of a pass, layer or name, as the action needs it
};

struct Case {
  MachineOptions machine;
  LayerInputOptions options;
  testing::TinyModelOptions model;
  int64_t failing_pin = -1;
  std::vector<Action> actions;
};

std::ostream& operator<<(std::ostream& out, const Case& c) {
  out << "layers " << c.model.num_layers << " keep_last " << c.options.keep_last << " prefetch "
      << c.options.prefetch << " swapping_out " << c.options.max_swapping_out << " host bytes "
      << c.options.max_host_bytes << " late " << c.machine.late_copies << " slow "
      << c.machine.copy_slowdown << " pin " << c.failing_pin << " actions";
  for (const Action& action : c.actions) {
    out << " " << static_cast<int>(action.what) << ":" << action.number;
  }
  return out;
}

Case any_case() {
  const auto below = [](int64_t end) { return *rc::gen::inRange<int64_t>(0, end); };
  Case c;
  c.machine.late_copies = below(2) == 0;
  c.machine.copy_slowdown = std::vector<double>{1, 20, 1000}[below(3)];
  c.machine.copy_jitter = below(3) == 0 ? 30 : 0;
  c.machine.seed = static_cast<uint64_t>(below(1000));
  c.model = {.num_layers = 1 + below(5), .batch = 4, .width = 7};
  c.options.num_layers = below(3) == 0 ? 0 : c.model.num_layers;
  c.options.keep_last = below(4) - 1;
  c.options.prefetch = below(4);
  c.options.max_swapping_out = below(5) - 1;
  c.options.max_host_bytes = below(4) == 0 ? 600 : 0;
  c.failing_pin = below(4) - 1;
  const int64_t num_actions = 3 + below(10);
  for (int64_t i = 0; i < num_actions; ++i) {
    // Forwards and backwards more often than the rest.
    const int64_t what = below(15);
    const Do kinds[] = {
        Do::kEval, Do::kDrop, Do::kThrowInForward, Do::kThrowInBackward, Do::kHint, Do::kAhead};
    c.actions.push_back({what < 5   ? Do::kForward
                         : what < 9 ? Do::kBackward
                                    : kinds[what - 9],
                         below(40)});
  }
  return c;
}

// One model, with swap or without, that takes the actions.
class Player {
 public:
  Player(const testing::TinyModelOptions& options, LayerInputs* inputs)
      : model_(options), inputs_(inputs) {}

  void play(const Action& action) {
    const auto place = in_flight_.empty() ? 0 : action.number % in_flight_.size();
    switch (action.what) {
      case Do::kForward:
        in_flight_.push_back(forward(action.number, -1));
        break;
      case Do::kBackward:
      case Do::kDrop:
        if (!in_flight_.empty()) {
          const at::Tensor loss = in_flight_[place];
          in_flight_.erase(in_flight_.begin() + static_cast<std::ptrdiff_t>(place));
          if (action.what == Do::kBackward) {
            loss.backward();
          }
        }
        break;
      case Do::kEval: {
        const c10::NoGradGuard no_grad;
        forward(action.number, -1);
        break;
      }
      case Do::kThrowInForward:
        expect_throw([&] { forward(action.number, 1); });
        break;
      case Do::kThrowInBackward:
        // What the layers above have added is dropped in both models.
        expect_throw([&] { forward(action.number, 2).backward(); });
        clear_grads();
        break;
      case Do::kHint:
        if (inputs_ != nullptr) {
          inputs_->prefetch(action.number % 5);
        }
        break;
      case Do::kAhead:
        if (inputs_ != nullptr) {
          inputs_->recompute_ahead(action.number % 5);
        }
        break;
    }
  }
  void finish() {
    while (!in_flight_.empty()) {
      in_flight_.back().backward();
      in_flight_.pop_back();
    }
  }
  std::vector<at::Tensor> grads() const { return model_.grads_on_cpu(); }

 private:
  // `at_call`: the middle layer throws when it is called so often; -1: never.
  at::Tensor forward(int64_t number, int at_call) {
    if (inputs_ != nullptr && number % 3 != 0) {
      inputs_->begin_microbatch(number % 5);
    }
    const int64_t width = model_.options().width;
    at::Tensor h = model_.embed(random_tensor({1 + number, width}, 50 + number));
    const auto calls = std::make_shared<int>(0);
    const int64_t throwing = at_call > 0 ? model_.options().num_layers / 2 : -1;
    for (int64_t i = 0; i < model_.options().num_layers; ++i) {
      const auto layer = [this, i, throwing, calls, at_call](const at::Tensor& in) {
        if (i == throwing && (++*calls == at_call || inputs_ == nullptr)) {
          throw std::runtime_error("a layer gives up");
        }
        return model_.run_layer(i, in);
      };
      h = inputs_ == nullptr ? layer(h) : inputs_->recompute(layer, h);
    }
    return h.square().mean();
  }
  template <class Call>
  static void expect_throw(const Call& call) {
    bool has_thrown = false;
    try {
      call();
    } catch (const std::exception&) {
      has_thrown = true;
    }
    RC_ASSERT(has_thrown);
  }
  void clear_grads() {
    for (const at::Tensor& parameter : model_.parameters()) {
      parameter.mutable_grad() = at::Tensor();
    }
  }

  TinyModel model_;
  LayerInputs* inputs_;
  std::vector<at::Tensor> in_flight_;
};

void check_case(const Case& c) {
  sim::configure(testing::machine(c.machine));
  {
    SwapContextOptions context;
    context.host.slab_bytes = 4096;
    SwappedLayers swapped(c.options, context);
    sim::Faults faults = testing::machine(c.machine).faults;
    faults.fail_pinned_allocation = c.failing_pin;
    sim::simulator().set_faults(faults);
    Player with(c.model, &swapped.inputs);
    Player without(c.model, nullptr);
    for (const Action& action : c.actions) {
      with.play(action);
      without.play(action);
    }
    with.finish();
    without.finish();
    RC_ASSERT(same_bits(with.grads(), without.grads()));
    swapped.context->settle_all();
    RC_ASSERT(swapped.inputs.stats().resident_inputs == 0);
    RC_ASSERT(swapped.context->host().stats().requested_bytes == 0U);
  }
  RC_ASSERT(sim::simulator().num_races() == 0);
  sim::wait_until_idle();
  RC_ASSERT(sim::simulator().live_bytes() == 0U);
}

class LayerInputFuzzTest : public testing::SimTest {};

TEST_F(LayerInputFuzzTest, AnyScheduleHasTheBitsOfOrdinaryAutograd) {
  // Read by rapidcheck at its first check; what the caller has set stays.
  setenv("RC_PARAMS", "max_success=500", /*overwrite=*/0);
  EXPECT_TRUE(rc::check([] {
    const Case c = any_case();
    RC_LOG() << c << "\n";
    check_case(c);
  }));
}

}  // namespace
}  // namespace swapline
