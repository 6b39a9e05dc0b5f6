// The inside of the simulated machine, shared by the files that implement it.
#pragma once

#include "sim/core/access_log.h"
#include "sim/core/caching_allocator.h"
#include "sim/core/call_log.h"
#include "sim/core/engine.h"
#include "sim/core/late_copies.h"
#include "sim/core/pinned_memory.h"
#include "sim/core/simulator.h"
#include "sim/core/trace.h"
#include "sim/core/vector_clock.h"

#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace swapline::sim {

struct EventState {
  int device = 0;
  Nanos time = 0;     // when everything before it is done
  VectorClock clock;  // what everything before it is
  Actor actor = 0;    // the stream it was recorded on
  int number = 0;     // in the log
};

struct Stream {
  Actor actor = 0;
  Nanos time = 0;  // when its last work is done
  VectorClock clock;
  uint64_t host_version = 0;  // of the host clock last joined
};

// A freed block that another stream may still use.
struct HeldBlock {
  uintptr_t begin = 0;
  std::vector<std::shared_ptr<EventState>> uses;
};

// The last operator of a stream that addressed a block of pinned memory.
struct MappedUse {
  Actor actor = 0;
  uint64_t tick = 0;
  std::string op;
  Access access;
};

struct Device {
  std::vector<Stream> streams;
  size_t next_pooled_stream = 0;
  Nanos host = 0;  // the clock of the host thread that drives this device
  Engine h2d;      // both directions when the link is half duplex
  Engine d2h;
  Engine peer;
  std::unique_ptr<CachingAllocator> memory;  // made at the first allocation
  std::vector<HeldBlock> held;
  Counters counters;
};

// A stream as the log has it: numbered through all devices, each device's first before all others.
inline std::string log_name(Actor actor) {
  return "s" + std::to_string(actor - 1);
}
inline std::string log_name(const Stream& stream) {
  return log_name(stream.actor);
}

struct Simulator::Impl {
  explicit Impl(SimulatorOptions given);

  // Throws DeviceLost when the devices are.
  void check_not_lost() const;

  Stream& stream(int device, StreamId id);
  const Stream& stream(int device, StreamId id) const;
  Device& device(int index);
  CachingAllocator& memory(int index);
  CachingAllocator* find_memory(uintptr_t address, int* device_index = nullptr);

  // Enqueues an action on the stream: it knows what the host knows, and gets its own tick.
  void enqueue(Stream& stream);
  // The same for an action that may touch bytes now: makes late copies ordered before it happen.
  void start(Stream& stream);
  void check(const Stream& stream, std::string_view op, std::span<const Access> accesses);
  void note(Actor actor,
            uint64_t tick,
            const VectorClock& clock,
            std::string_view op,
            const Access& access);
  void report(Race race);
  RaceAccess describe(Actor actor, std::string_view op, bool is_write) const;
  void host_learns(const VectorClock& clock);
  void note_host_wait(int device, const std::string& for_what);
  void host_waits(int device, Nanos until, const VectorClock& clock);
  // The host of `device` is busy; a span in its lane of the trace.
  void host_spends(int device, std::string_view on_what, Nanos duration);
  std::shared_ptr<EventState> record(int device, StreamId stream);
  bool is_done(const EventState& event);
  void wait_for_device(int index);

  void run_copy(int device, StreamId stream, const CopyRequest& request);
  Nanos transfer_time(size_t bytes, double bytes_per_s, Nanos latency);

  // Pinned memory that operators address themselves. note_mapped: which blocks an operator uses.
  // move_mapped: books its bytes on the link from `ready` on and returns when they have moved.
  // check_mapped: the host is about to free a block.
  void note_mapped(const Stream& stream, std::string_view op, std::span<const Access> accesses);
  Nanos move_mapped(Device& owner, Nanos ready, const Cost& cost);
  void check_mapped(uintptr_t block);

  void free_now(int device, uintptr_t begin);
  void release_held(int device);
  void sample_memory(int device, StreamId stream);

  SimulatorOptions options;
  mutable std::mutex mutex;
  std::vector<Device> devices;
  std::vector<std::pair<int, StreamId>> actors;  // actor -> its stream; the host first
  VectorClock host_clock;
  uint64_t host_version = 1;
  AccessLog accesses;
  CallLog log = CallLog(nullptr);
  int num_events = 0;
  LateCopies late;
  PinnedMemory pinned;
  std::map<uintptr_t, std::vector<MappedUse>> mapped_uses;  // by block
  Trace trace;
  std::map<uintptr_t, std::set<std::pair<int, StreamId>>> recorded_streams;  // by block

  // Faults: how many of each are left before one fails; -1: none will.
  bool is_faulty(int64_t& countdown);
  uint64_t num_jitters = 0;

  int64_t num_races = 0;
  std::vector<Race> races;
  std::vector<AccessLog::Conflict> conflicts;
};

}  // namespace swapline::sim
