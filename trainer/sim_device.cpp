// The simulated accelerator as the trainer's device: a library of its own, as loading the simulator
// takes the place that a real device's library may need.
#include "trainer/sim_device.h"

#include "sim/torch/sim.h"

#include <algorithm>

namespace swapline::trainer {
namespace {

constexpr sim::MemoryKind kKinds[] = {sim::MemoryKind::kOther,
                                      sim::MemoryKind::kParameters,
                                      sim::MemoryKind::kGradients,
                                      sim::MemoryKind::kOptimizerStates,
                                      sim::MemoryKind::kLayerInputs};

BytesByUse by_use(const sim::BytesByKind& by_kind) {
  BytesByUse bytes{};
  for (size_t use = 0; use < bytes.size(); ++use) {
    bytes[use] = by_kind[static_cast<size_t>(kKinds[use])];
  }
  return bytes;
}

class SimDevice : public Device {
 public:
  SimDevice(const DeviceConfig& config, int index)
      : Device(sim::device(index)), config_(config), index_(index) {}

  std::string type() const override { return "sim"; }
  std::string preset() const override { return config_.preset; }
  bool has_virtual_time() const override { return true; }
  bool is_dry_run() const override { return config_.dry_run; }

  double peak_flops(c10::ScalarType dtype) const override {
    const sim::DeviceSpec& spec = machine().options().spec;
    return dtype == c10::ScalarType::BFloat16 ? spec.float16_flops : spec.float32_flops;
  }

  double link_bytes_per_s() const override {
    const sim::DeviceSpec& spec = machine().options().spec;
    return std::min(spec.h2d_bytes_per_s, spec.d2h_bytes_per_s) / config_.link_slowdown;
  }
  double copy_latency_s() const override {
    return static_cast<double>(machine().options().spec.copy_latency) * 1e-9;
  }

  MemoryReport memory() const override {
    const sim::DeviceMemoryStats stats = machine().memory_stats(index_);
    return {stats.capacity_bytes,
            stats.peak_allocated_bytes,
            stats.peak_reserved_bytes,
            by_use(stats.bytes_by_kind),
            by_use(stats.peak_bytes_by_kind)};
  }

  void reset_peak_memory() override { machine().reset_peak_memory(index_); }

  void note_use(const c10::Storage& storage, MemoryUse use) override {
    sim::set_memory_kind(storage, kKinds[static_cast<size_t>(use)]);
  }

  int64_t num_races() const override { return machine().num_races(); }
  std::string first_race() const override {
    const std::vector<sim::Race> races = machine().races();
    return races.empty() ? "" : races.front().describe();
  }

  void name_stream(const c10::Stream& stream, const std::string& name) override {
    machine().name_stream(index_, static_cast<sim::StreamId>(stream.id()), name);
  }
  std::string trace_json() const override { return machine().trace_json(); }

 private:
  static sim::Simulator& machine() { return sim::simulator(); }

  DeviceConfig config_;
  int index_;
};

}  // namespace

void fill_sim_devices(Devices& devices,
                      const DeviceConfig& config,
                      int64_t count,
                      bool enable_trace) {
  sim::SimulatorOptions options;
  options.spec = sim::preset(config.preset);
  options.capacity_bytes = config.memory.value;
  options.dry_run = config.dry_run;
  options.check_races = config.check_races;
  options.late_copies = config.late_copies;
  options.trace = enable_trace;
  options.faults.copy_slowdown = config.link_slowdown;
  sim::configure(options);
  for (int index = 0; index < static_cast<int>(count); ++index) {
    devices.push_back(std::make_unique<SimDevice>(config, index));
  }
}

}  // namespace swapline::trainer
