// A whole run: what is printed around the loop, and the files it leaves.
#include "trainer/train.h"

#include "trainer/console.h"
#include "trainer/device.h"
#include "trainer/trainer.h"

#include <cstdio>
#include <stdexcept>

#include <c10/util/Exception.h>

namespace swapline::trainer {
namespace {

Config with_default_texts(Config config) {
  if (config.data.path.empty()) {
    config.data.path = SWAPLINE_DEFAULT_TEXTS;
  }
  return config;
}

void print_start(const Config& config, const Device& device) {
  std::printf("%s", settings_table(config).c_str());
  const MemoryReport memory = device.memory();
  std::printf("device %s%s%s",
              device.type().c_str(),
              device.preset().empty() ? "" : " as ",
              device.preset().c_str());
  if (memory.capacity_bytes > 0) {
    std::printf(", %.2f GiB", static_cast<double>(memory.capacity_bytes) / 0x1p30);
  }
  std::printf("%s\n",
              device.has_virtual_time()
                  ? ": times, tps, tflops and mfu are virtual, from the device's cost model"
                  : "");
  if (device.is_dry_run()) {
    std::printf("dry run: no numbers, so no loss and no grad_norm\n");
  }
  const std::string& recompute = config.activation_checkpoint.mode;
  if (config.swap_layer_input.enable && recompute != "full") {
    std::printf(
        "note: swap-layer-input.enable has no effect with activation-checkpoint.mode %s: no layer "
        "is recomputed from its input\n",
        recompute.c_str());
  }
  if (device.type() == "cpu" && recompute != "none") {
    std::printf("note: on the cpu no layer is recomputed; there is no device memory to save\n");
  }
}

// What the device said, in one line, and which options are left to turn.
std::string out_of_memory_message(const Config& config, const c10::OutOfMemoryError& error) {
  const std::string found = error.what_without_backtrace();
  std::string options;
  if (!config.optimizer.swap_optimizer) {
    options += "turn on --optimizer.swap-optimizer, ";
  }
  if (!config.swap_layer_input.enable) {
    options += "turn on --swap-layer-input.enable, ";
  }
  const bool has_chosen_memory = config.device.type == "sim";
  return found.substr(0, found.find('\n')) + "; " + options +
         "lower --training.local-batch-size or --training.seq-len" +
         (has_chosen_memory ? ", or raise --device.memory" : "");
}

void print_layout(const Layout& layout) {
  if (layout.num_devices() == 1) {
    return;
  }
  std::printf("%ld devices: pipeline of %ld, experts shared by %ld; %ld micro-batches of %ld\n",
              static_cast<long>(layout.num_devices()),
              static_cast<long>(layout.num_ranks()),
              static_cast<long>(layout.num_lanes),
              static_cast<long>(layout.num_microbatches),
              static_cast<long>(layout.microbatch_size));
  std::printf("schedule %s, a line for each rank\n%s",
              layout.schedule.name.c_str(),
              to_string(layout.schedule).c_str());
}

RunSummary run_all_steps(const Config& config, const Layout& layout, const Devices& devices) {
  Trainer trainer(config, layout, devices);
  std::printf("model %s %s, %.2f M parameters, %ld layers\n",
              config.model.name.c_str(),
              config.model.flavor.c_str(),
              static_cast<double>(trainer.figures().num_parameters) / 1e6,
              static_cast<long>(trainer.figures().num_layers));
  std::printf("data %s, %.2f MB of text\n",
              config.data.path.c_str(),
              static_cast<double>(trainer.text_bytes()) / 1e6);
  RunSummary summary = trainer.run();
  if (summary.steps.empty()) {
    std::printf("nothing is left to do: --training.steps %ld are taken\n",
                static_cast<long>(config.training.steps));
    return summary;
  }
  std::printf(
      "%s",
      summary_table(summary, trainer.rate_basis(), devices.front()->has_virtual_time()).c_str());
  return summary;
}

void write_outputs(const Config& config, const Device& device, const RunSummary& summary) {
  const std::string& folder = config.job.dump_folder;
  write_output(folder, "summary.json", summary_json(summary));
  std::printf("wrote %s/summary.json\n", folder.c_str());
  if (config.profiling.enable_trace) {
    write_output(folder, "trace.json", device.trace_json());
    std::printf("wrote %s/trace.json: open it in ui.perfetto.dev\n", folder.c_str());
  }
}

}  // namespace

void train(const Config& given) {
  const Config config = with_default_texts(given);
  const Layout layout = make_layout(config);
  const Devices devices =
      make_devices(config.device, layout.num_devices(), config.profiling.enable_trace);
  const Device& device = *devices.front();
  print_start(given, device);
  print_layout(layout);
  RunSummary summary;
  try {
    summary = run_all_steps(config, layout, devices);
  } catch (const c10::OutOfMemoryError& error) {
    throw std::runtime_error(out_of_memory_message(config, error));
  }
  if (!summary.steps.empty()) {
    write_outputs(config, device, summary);
  }
  if (summary.races > 0) {
    throw std::runtime_error(std::to_string(summary.races) + " races: " + device.first_race());
  }
}

}  // namespace swapline::trainer
