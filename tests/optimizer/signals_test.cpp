// Signals that arrive at any moment of a step, and are handled, change nothing.
#include "tests/optimizer/training.h"

#include <csignal>
#include <map>
#include <string>

#include <sys/time.h>

namespace swapline::testing {
namespace {

volatile std::sig_atomic_t num_signals = 0;

void count_signal(int /*number*/) {
  num_signals = num_signals + 1;
}

// A timer that interrupts the process every 50 µs, for as long as it lives.
class Interrupts {
 public:
  Interrupts() {
    struct sigaction action = {};
    action.sa_handler = count_signal;  // without SA_RESTART: system calls end early
    sigaction(SIGALRM, &action, &before_);
    const itimerval often = {{0, 50}, {0, 50}};
    setitimer(ITIMER_REAL, &often, nullptr);
  }
  ~Interrupts() {
    const itimerval never = {};
    setitimer(ITIMER_REAL, &never, nullptr);
    sigaction(SIGALRM, &before_, nullptr);
  }

 private:
  struct sigaction before_ = {};
};

using SignalsTest = OptimizerTest;

TEST_F(SignalsTest, StepsThatAreInterruptedHaveTheSameBits) {
  std::map<std::string, at::Tensor> results[2];
  for (const bool interrupted : {false, true}) {
    const auto groups = plain_groups({{300, 200}, {1000}, {33}});
    const Gradients gradients(groups, 20, false);
    Adam adam(make_context(), groups);
    {
      const auto interrupts = interrupted ? std::make_unique<Interrupts>() : nullptr;
      for (int step = 0; step < 20; ++step) {
        gradients.set(groups, step);
        adam.prefetch();
        adam.step();
      }
    }
    results[interrupted ? 1 : 0] = snapshot(adam, groups);
  }
  EXPECT_GT(num_signals, 10);
  expect_equal(results[1], results[0]);
}

}  // namespace
}  // namespace swapline::testing
