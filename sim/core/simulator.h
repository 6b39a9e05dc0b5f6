// The simulated machine: a host and several accelerators of one kind. Knows nothing of torch.
//
// Numbers are computed by the caller, eagerly; the simulator keeps virtual time, memory, and the
// order in which streams, events and the host make accesses happen. An operator is bracketed by
// begin_op and end_op. Deterministic: the same calls give the same figures on any machine.
// Thread-safe; all host threads count as one host.
#pragma once

#include "sim/core/device_spec.h"
#include "sim/core/faults.h"
#include "sim/core/memory_stats.h"
#include "sim/core/race.h"
#include "sim/export.h"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace swapline::sim {

struct SimulatorOptions {
  DeviceSpec spec;
  int num_devices = 8;
  size_t capacity_bytes = 0;  // per device; 0: spec.memory_bytes
  bool dry_run = false;       // addresses without memory behind them: nothing may touch them
  bool check_races = true;
  bool late_copies = false;  // move a non-blocking copy's bytes only when something ordered behind
                             // it runs; poison freed memory and destinations not yet written
  bool trace = false;
  bool log = false;  // keep log_lines()
  // Pinned allocations take powers of two, as torch's allocators for real devices ask for them.
  bool round_pinned = false;
  bool watch_host_ops = false;  // see CPU operators that touch pinned memory (torch backend only)
  Faults faults = {};
};

struct Cost {
  double flops = 0;
  double bytes = 0;  // of device memory, read and written
  // Of pinned host memory that the kernel itself reads and writes, over the link.
  double mapped_bytes_in = 0;
  double mapped_bytes_out = 0;
  Precision precision = Precision::kFloat32;
};

struct Access {
  uintptr_t begin = 0;
  uintptr_t end = 0;
  bool is_write = false;
};

enum class Lane { kHost, kCompute, kHostToDevice, kDeviceToHost, kPeer };

struct Counters {
  int64_t num_ops = 0;         // operators launched, copies not counted
  int64_t num_copies_in = 0;   // host to device
  int64_t num_copies_out = 0;  // device to host
  int64_t bytes_in = 0;
  int64_t bytes_out = 0;
  int64_t mapped_bytes_in = 0;  // read by operators from pinned memory
  int64_t mapped_bytes_out = 0;
  int64_t num_exchanges = 0;  // with other machines
  int64_t bytes_exchanged = 0;
  int64_t num_streams = 0;
  int64_t num_host_waits = 0;       // for a stream, an event that is not done, the device
  int64_t num_blocking_copies = 0;  // that the host waited for
};

struct OutOfMemory : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// What an event remembers: when it is done, and everything that is done by then.
struct EventState;

class SWAPLINE_SIM_API Simulator {
 public:
  explicit Simulator(SimulatorOptions options);
  ~Simulator();
  Simulator(const Simulator&) = delete;
  Simulator& operator=(const Simulator&) = delete;

  const SimulatorOptions& options() const;
  void set_faults(const Faults& faults);

  // Streams. Stream 0 of each device exists from the start; new ones come from a pool of 32, as on
  // real devices, and are handed out again in turn.
  StreamId new_stream(int device);
  void synchronize_stream(int device, StreamId stream);  // the host waits
  void synchronize_device(int device);
  bool is_stream_done(int device, StreamId stream) const;  // at the host's present time

  // Events.
  std::shared_ptr<EventState> record(int device, StreamId stream);
  void wait(int device, StreamId stream, const EventState& event);
  bool is_done(const EventState& event) const;
  void synchronize(const EventState& event);
  static Nanos time_of(const EventState& event);

  // Work. begin_op: makes late copies that are ordered before the operator happen and checks its
  // accesses. end_op: advances the clocks; `outputs` are accesses known only afterwards. Accesses
  // may lie in pinned memory: their bytes, in `cost`, occupy the link as copies do.
  void begin_op(int device,
                StreamId stream,
                std::string_view name,
                std::span<const Access> accesses);
  void end_op(int device,
              StreamId stream,
              std::string_view name,
              const Cost& cost,
              std::span<const Access> outputs);
  // A copy between the host, a device, or two devices, as work of one stream. The host waits for it
  // unless it is non-blocking and the host memory is pinned. Throws CopyError by fault.
  struct CopyRequest {
    int src_device = kHost;
    const void* src = nullptr;
    int dst_device = kHost;
    void* dst = nullptr;
    size_t bytes = 0;
    bool non_blocking = false;
    std::string_view name = "copy";
  };
  void copy(int device, StreamId stream, const CopyRequest& request);

  // Work that other machines take part in, such as a collective. begin_exchange: checks the
  // accesses as begin_op does; the event's time is when this machine is ready for it. end_exchange:
  // the others' times are known, and by them when it ran; only now may anything wait for the event.
  // `bytes`: what this machine moved.
  std::shared_ptr<EventState> begin_exchange(int device,
                                             StreamId stream,
                                             std::string_view name,
                                             std::span<const Access> accesses);
  void end_exchange(EventState& event,
                    StreamId stream,
                    std::string_view name,
                    size_t bytes,
                    Nanos begin,
                    Nanos end);

  // The host reads or writes memory itself (pinned buffers in flight are what this is about).
  void host_access(std::string_view name, const void* data, size_t bytes, bool is_write);

  // Device memory. Throws OutOfMemory naming used, reserved and capacity.
  void* allocate(int device, StreamId stream, size_t bytes);
  void free(void* data);
  // The block is not reused before what `stream` holds now is done.
  void record_stream(void* data, int device, StreamId stream);
  void empty_cache(int device);
  void set_memory_kind(const void* data, MemoryKind kind);
  // Memory that others take away from the device (bytes of capacity).
  void take_away(int device, size_t bytes);
  DeviceMemoryStats memory_stats(int device) const;
  void reset_peak_memory(int device);
  int device_of(const void* data) const;  // kHost when not device memory
  bool is_dry_run() const { return options().dry_run; }

  // Pinned host memory; `device`'s host pays the time. Throws std::bad_alloc by fault or when the
  // system refuses. A block freed while an operator may still address it is a race.
  void* allocate_pinned(size_t bytes, int device = 0);
  void free_pinned(void* data);
  bool is_pinned(const void* data, size_t bytes = 1) const;  // all in one block
  PinnedMemoryStats pinned_stats() const;
  void reset_peak_pinned();

  // Time.
  Nanos host_time(int device) const;
  Nanos stream_time(int device, StreamId stream) const;
  void advance_host(int device, Nanos duration);  // the host is busy with something else

  Counters counters(int device) const;

  // Races found since the last clear; the first 100 are kept in full.
  int64_t num_races() const;
  std::vector<Race> races() const;
  void clear_races();

  // What was asked of all devices, in order (call_log.h); streams and events numbered through.
  // Needs options().log.
  std::vector<std::string> log_lines() const;
  void clear_log();

  // Chrome/Perfetto JSON: lanes per device and a memory counter by kind. Needs options().trace.
  std::string trace_json() const;
  void clear_trace();
  // What the spans of a stream are called in the trace (default: "stream N", stream 0 "compute").
  void name_stream(int device, StreamId stream, std::string name);

  // Bytes that someone still owns, in all, on any device and in pinned memory. Blocks kept back for
  // a recorded stream have no owner.
  size_t live_bytes() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace swapline::sim
