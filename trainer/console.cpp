// Text for the terminal.
#include "trainer/console.h"

#include "trainer/options.h"

#include <algorithm>
#include <cstdarg>

#include <unistd.h>

namespace swapline::trainer {
namespace {

__attribute__((format(printf, 1, 2))) std::string formatted(const char* format, ...) {
  char text[512];
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(text, sizeof(text), format, arguments);
  va_end(arguments);
  return text;
}

std::string with_commas(int64_t number) {
  const std::string digits = std::to_string(number);
  std::string text;
  for (size_t i = 0; i < digits.size(); ++i) {
    if (i > 0 && (digits.size() - i) % 3 == 0) {
      text.push_back(',');
    }
    text.push_back(digits[i]);
  }
  return text;
}

std::string number_or_none(const std::optional<double>& number, const char* format, int width) {
  char text[64];
  if (!number) {
    return formatted("%*s", width, "n/a");
  }
  std::snprintf(text, sizeof(text), format, width, *number);
  return text;
}

double sum_of(const std::vector<StepRecord>& steps, double StepRecord::*member) {
  double sum = 0;
  for (const StepRecord& step : steps) {
    sum += step.*member;
  }
  return sum;
}

double tokens_per_second(const std::vector<StepRecord>& steps, const RateBasis& basis) {
  const double ms = sum_of(steps, &StepRecord::step_ms);
  const auto tokens =
      static_cast<double>(basis.tokens_per_step) * static_cast<double>(steps.size());
  return ms > 0 ? tokens * 1000 / ms : 0;
}

std::string row(const std::string& name, const std::string& value) {
  return formatted("  %-24s ", name.c_str()) + value + "\n";
}

std::string percent(double part, double whole) {
  return whole > 0 ? formatted("%.2f%%", 100 * part / whole) : "n/a";
}

std::string memory_text(size_t reserved, const RateBasis& basis) {
  const auto bytes = static_cast<double>(reserved);
  return formatted("memory: %.2fGiB(", bytes / 0x1p30) +
         percent(bytes, static_cast<double>(basis.capacity_bytes)) + ")";
}

std::string bytes_by_use_text(const BytesByUse& bytes) {
  constexpr const char* kNames[] = {
      "other", "parameters", "gradients", "optimizer states", "layer inputs"};
  if (bytes == BytesByUse{}) {
    return "uses are not told apart on this device";
  }
  std::string text;
  for (size_t use : {1, 2, 3, 4, 0}) {
    text += (text.empty() ? "" : ", ") + std::string(kNames[use]) + " " + bytes_text(bytes[use]);
  }
  return text;
}

std::string memory_rows(const RunSummary& summary) {
  if (summary.capacity_bytes == 0) {
    return row("peak memory", "not measured on this device");
  }
  return row("peak memory",
             bytes_text(summary.peak_allocated_bytes) + " allocated, " +
                 bytes_text(summary.peak_reserved_bytes) + " reserved, of " +
                 bytes_text(summary.capacity_bytes)) +
         row("at the peak", bytes_by_use_text(summary.peak_bytes_by_use)) +
         row("pinned host memory", bytes_text(summary.host.peak_pinned_bytes));
}

std::string layer_input_rows(const LayerInputSummary& inputs) {
  if (!inputs.enabled) {
    return row("layer inputs", "stay on the device");
  }
  return row("layer inputs",
             formatted("swapped, %s a step, at most %ld beyond the running layer's own, exposed "
                       "%.3f ms a step",
                       bytes_text(static_cast<size_t>(inputs.swapped_bytes_per_step)).c_str(),
                       static_cast<long>(inputs.peak_resident_inputs),
                       inputs.exposed_ms_per_step));
}

std::string optimizer_rows(const OptimizerSummary& optimizer) {
  const std::string mapped =
      optimizer.mapped_bytes == 0
          ? ""
          : row("mapped states", bytes_text(optimizer.mapped_bytes) + " in host memory");
  if (!optimizer.swap) {
    return row("optimizer states",
               bytes_text(optimizer.state_bytes - optimizer.mapped_bytes) + " on the device") +
           mapped;
  }
  return row("optimizer states",
             formatted("swapped, %s in %ld chunks, at most %s on the device in a step, %s outside",
                       bytes_text(optimizer.state_bytes - optimizer.mapped_bytes).c_str(),
                       static_cast<long>(optimizer.num_chunks),
                       bytes_text(optimizer.arena_bytes + optimizer.scratch_bytes).c_str(),
                       bytes_text(optimizer.state_bytes_on_device_outside_step).c_str())) +
         mapped +
         row("optimizer step",
             formatted("%.3f ms (in %.3f, update %.3f, out %.3f, exposed %.3f)",
                       optimizer.step_ms,
                       optimizer.h2d_ms,
                       optimizer.update_ms,
                       optimizer.d2h_ms,
                       optimizer.exposed_ms));
}

}  // namespace

std::string log_line(const std::vector<StepRecord>& steps, const RateBasis& basis) {
  const StepRecord& last = steps.back();
  size_t reserved = 0;
  for (const StepRecord& step : steps) {
    reserved = std::max(reserved, step.peak_reserved_bytes);
  }
  const double tps = tokens_per_second(steps, basis);
  const double flops = tps * basis.flops_per_token;
  const double exposed = sum_of(steps, &StepRecord::exposed_ms) / static_cast<double>(steps.size());
  const auto percent = [](double part, double whole) {
    return whole > 0 ? formatted("%.2f%%", 100 * part / whole) : std::string("n/a");
  };
  return formatted("step: %2ld  ", static_cast<long>(last.step)) +
         "loss: " + number_or_none(last.loss, "%*.5f", 8) +
         "  grad_norm: " + number_or_none(last.grad_norm, "%*.4f", 7) + "  " +
         memory_text(reserved, basis) + "  tps: " + with_commas(static_cast<int64_t>(tps)) +
         formatted("  tflops: %.2f", flops / 1e12) + "  mfu: " + percent(flops, basis.peak_flops) +
         formatted("  exposed: %.2fms", exposed);
}

std::string validation_line(const ValidationRecord& record, const RateBasis& basis) {
  const auto tokens = static_cast<double>(basis.tokens_per_step * record.num_batches);
  const double tps = record.ms > 0 ? tokens * 1000 / record.ms : 0;
  return formatted("validate step: %2ld  ", static_cast<long>(record.step)) +
         "loss: " + number_or_none(record.loss, "%*.5f", 8) + "  " +
         memory_text(record.peak_reserved_bytes, basis) +
         "  tps: " + with_commas(static_cast<int64_t>(tps));
}

std::string settings_table(Config config) {
  Config defaults;
  const std::vector<Option> settings = option_table(config);
  const std::vector<Option> standard = option_table(defaults);
  std::string table = "settings (* differs from the default)\n";
  for (size_t i = 0; i < settings.size(); ++i) {
    const std::string value = value_text(settings[i]);
    const char mark = value == value_text(standard[i]) ? ' ' : '*';
    table += formatted("  %c %-40s ", mark, settings[i].name.c_str()) + value + "\n";
  }
  return table;
}

std::string summary_table(const RunSummary& summary, const RateBasis& basis, bool is_virtual_time) {
  const StepRecord& first = summary.steps.front();
  const StepRecord& last = summary.steps.back();
  std::vector<double> step_ms;
  for (const StepRecord& step : summary.steps) {
    step_ms.push_back(step.step_ms);
  }
  const double ms = median(step_ms);
  const double tps = ms > 0 ? static_cast<double>(basis.tokens_per_step) * 1000 / ms : 0;
  return std::string("summary") + (is_virtual_time ? " (times are virtual)\n" : "\n") +
         row("steps", std::to_string(summary.steps.size())) +
         row("loss",
             number_or_none(first.loss, "%*.5f", 0) + " -> " +
                 number_or_none(last.loss, "%*.5f", 0)) +
         row("step",
             formatted("%.3f ms, %s tokens/s (median)",
                       ms,
                       with_commas(static_cast<int64_t>(tps)).c_str())) +
         memory_rows(summary) + layer_input_rows(summary.layer_input) +
         optimizer_rows(summary.optimizer) + row("races", std::to_string(summary.races));
}

ProgressBar::ProgressBar(bool wanted, int64_t num_steps)
    : is_shown_(wanted && isatty(STDERR_FILENO) != 0), num_steps_(num_steps) {}

ProgressBar::~ProgressBar() {
  clear();
}

void ProgressBar::draw(int64_t step) {
  if (!is_shown_) {
    return;
  }
  constexpr int64_t kWidth = 40;
  const auto filled = static_cast<size_t>(kWidth * step / num_steps_);
  std::fprintf(stderr,
               "\r[%s%s] %ld/%ld",
               std::string(filled, '=').c_str(),
               std::string(kWidth - filled, ' ').c_str(),
               static_cast<long>(step),
               static_cast<long>(num_steps_));
}

void ProgressBar::clear() {
  if (is_shown_) {
    std::fprintf(stderr, "\r\033[K");
  }
}

}  // namespace swapline::trainer
