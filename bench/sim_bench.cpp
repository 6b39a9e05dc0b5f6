// What the simulator costs: wall time of tiny operators on the simulated device against the CPU,
// and how many operators a second a dry run gets through.
//
// Expected: at most 2 x the CPU for tiny operators.
#include "sim/torch/sim.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

namespace {

namespace sim = swapline::sim;

constexpr int kCalls = 2000;  // in a run
constexpr int kRuns = 15;

double micros_per_call(const std::function<void()>& call) {
  const auto begin = std::chrono::steady_clock::now();
  for (int i = 0; i < kCalls; ++i) {
    call();
  }
  const std::chrono::duration<double, std::micro> spent = std::chrono::steady_clock::now() - begin;
  return spent.count() / kCalls;
}

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + values.size() / 2, values.end());
  return values[values.size() / 2];
}

using Work = std::function<std::function<void()>(const at::TensorOptions&)>;

const std::vector<std::pair<const char*, Work>> kWorks = {
    {"add_ (16)",
     [](const at::TensorOptions& options) {
       return [x = at::ones({16}, options), y = at::zeros({16}, options)]() mutable { x.add_(y); };
     }},
    {"add (16)",
     [](const at::TensorOptions& options) {
       return [x = at::ones({16}, options), y = at::zeros({16}, options)] { at::add(x, y); };
     }},
    {"mul (16)",
     [](const at::TensorOptions& options) {
       return [x = at::ones({16}, options), y = at::ones({16}, options)] { at::mul(x, y); };
     }},
    {"mm (16x16)",
     [](const at::TensorOptions& options) {
       return [x = at::ones({16, 16}, options), y = at::ones({16, 16}, options)] { at::mm(x, y); };
     }},
    {"silu (16)",
     [](const at::TensorOptions& options) {
       return [x = at::ones({16}, options)] { at::silu(x); };
     }},
};

sim::SimulatorOptions machine() {
  sim::SimulatorOptions options;
  options.spec = sim::preset("ascend-910b");
  return options;
}

// Runs alternate, so that a busy machine disturbs both sides alike.
void compare_with_cpu(bool check_races) {
  sim::SimulatorOptions options = machine();
  options.check_races = check_races;
  sim::configure(options);
  std::printf("\ntiny operators, race checker %s, median of %d runs of %d calls\n",
              check_races ? "on" : "off",
              kRuns,
              kCalls);
  std::printf("%-12s %10s %10s %8s\n", "operator", "cpu us", "sim us", "ratio");
  for (const auto& [name, make] : kWorks) {
    const auto on_cpu = make(at::TensorOptions());
    const auto on_sim = make(at::TensorOptions().device(sim::device()));
    std::vector<double> cpu;
    std::vector<double> simulated;
    std::vector<double> ratios;
    for (int run = 0; run < kRuns; ++run) {
      cpu.push_back(micros_per_call(on_cpu));
      simulated.push_back(micros_per_call(on_sim));
      ratios.push_back(simulated.back() / cpu.back());
    }
    std::printf(
        "%-12s %10.2f %10.2f %8.2f\n", name, median(cpu), median(simulated), median(ratios));
  }
}

void measure_dry_run() {
  sim::SimulatorOptions options = machine();
  options.dry_run = true;
  sim::configure(options);
  std::printf("\ndry run\n%-12s %10s %14s\n", "operator", "us", "operators/s");
  for (const auto& [name, make] : kWorks) {
    const auto call = make(at::TensorOptions().device(sim::device()));
    std::vector<double> micros;
    for (int run = 0; run < kRuns; ++run) {
      micros.push_back(micros_per_call(call));
    }
    std::printf("%-12s %10.2f %14.0f\n", name, median(micros), 1e6 / median(micros));
  }
}

}  // namespace

int main() {
  at::set_num_threads(1);
  compare_with_cpu(true);
  compare_with_cpu(false);
  measure_dry_run();
  return 0;
}
