// A vendor's runtime in host memory: devices whose streams are queues of work that runs when a mode
// says so, or when somebody waits for it. Knows neither CUDA nor ACL nor torch.
//
// A wait that is missing makes wrong bytes in one of the modes; vector clocks over byte ranges
// report it as a race in all of them. An event carries the clock of what is before it; the host
// takes over what it has waited for, or asked for and found done. All host threads are one host.
//
// One lock around all of it: work runs on the thread that lets it run.
#pragma once

#include "harness/machine/memory_map.h"
#include "sim/core/access_log.h"
#include "sim/core/call_log.h"
#include "sim/core/vector_clock.h"

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

namespace swapline::harness {

// When work runs that nobody has waited for yet. Hardware could choose any of these.
enum class Mode {
  kEager,        // at once
  kLate,         // when somebody waits
  kLateCopies,   // copies between host and device, and what is behind them: when somebody waits
  kLateCompute,  // kernels, and what is behind them: when somebody waits
  kRandom,       // in bursts
};

enum class Kind { kKernel, kHostCopy, kOther };

struct TouchedBytes {
  const void* begin = nullptr;
  size_t bytes = 0;
  bool is_write = false;
};

struct Stream;

// One record of an event.
struct EventRecord {
  Stream* stream = nullptr;
  uint64_t position = 0;  // of the record in its stream
  bool is_done = false;
  double ms = 0;  // when it was
  sim::VectorClock clock;
};

struct Event {
  int number = 0;
  int device = 0;
  unsigned flags = 0;
  std::shared_ptr<EventRecord> record;  // the last one; null: never recorded
};

struct Work {
  std::string label;
  Kind kind = Kind::kOther;
  std::function<void()> run;
  std::shared_ptr<EventRecord> records;
  std::shared_ptr<EventRecord> waits_for;
};

struct Stream {
  int number = 0;
  int device = 0;
  int priority = 0;
  sim::Actor actor = 0;
  uint64_t num_enqueued = 0;
  uint64_t num_done = 0;
  std::deque<Work> queue;
  sim::VectorClock clock;  // at the end of the queue
};

class Machine {
 public:
  // As the environment has it (harness/README.md).
  Machine();
  // The process's, as a vendor's runtime is. Never destroyed: torch calls late.
  static Machine& get();

  std::recursive_mutex mutex;  // held by whoever calls anything below
  sim::CallLog log;
  MemoryMap memory;
  int num_devices = 2;
  // Every call fails from now on, as after an illegal access.
  bool is_broken = false;

  // False: there is no such mode.
  bool set_mode(const std::string& text);

  // Stream `device` is the device's default stream; others follow as they are made.
  Stream& default_stream(int device) { return *streams_.at(static_cast<size_t>(device)); }
  Stream& make_stream(int device, int priority);
  Event* make_event(int device, unsigned flags);

  void launch(Stream& stream,
              const std::string& label,
              const std::vector<TouchedBytes>& touched,
              std::function<void()> run);
  // As the runtime does it: from pageable memory it is read at once, into it the host waits. False:
  // it was told to fail.
  bool copy(Stream& stream, void* to, const void* from, size_t bytes);
  // The host waits for it.
  bool copy_now(Stream& stream, void* to, const void* from, size_t bytes);
  // By the host at once, behind nothing but what the host has waited for.
  bool copy_unordered(void* to, const void* from, size_t bytes);
  void fill(Stream& stream, void* data, int value, size_t bytes);
  void record(Stream& stream, Event& event);
  void wait(Stream& stream, const Event& event);
  void call_host(Stream& stream, std::function<void()> function);

  // The host asks, or waits.
  bool is_done(const Stream& stream);
  bool is_done(const Event& event);
  void synchronize(Stream& stream);
  void synchronize(const Event& event);
  void synchronize_device(int device);
  // The host waits without having been asked to.
  void block(const std::string& why);
  // Runs what the stream holds. Nobody's call: no line, and the host is not taken as ordered
  // behind.
  void finish(Stream& stream);

  // nullptr: refused.
  void* allocate_device(size_t bytes, int device);
  void* allocate_pinned(size_t bytes, int device);
  bool free_device(void* data);
  bool free_pinned(void* data);

  // Of "device-allocation", "pinned-allocation", "copy", "launch": the one behind `after` others
  // fails.
  void fail(const std::string& what, int64_t after) { failing_[what] = after; }
  bool is_faulty(const std::string& what);

  // Waits of one stream for another, by their numbers, are not made: what a program without them
  // does.
  void drop_waits(int waiter, int of) { dropped_ = {waiter, of}; }

  const std::vector<std::string>& races() const { return races_; }
  void clear_races() { races_.clear(); }

 private:
  void note(sim::Actor actor,
            uint64_t tick,
            const sim::VectorClock& clock,
            const std::string& label,
            const std::vector<TouchedBytes>& touched);
  void enqueue(Stream& stream, Work work, const std::vector<TouchedBytes>& touched = {});
  bool free_block(const char* word, void* data);
  void check_device(const Stream& stream, const std::string& label, const void* data, bool is_copy);
  void drain(Stream& stream, uint64_t position);
  void run_head(Stream& stream);
  bool may_run(const Stream& stream) const;
  void progress();
  void run_a_burst();
  void host_learns(Stream& stream);

  Mode mode_ = Mode::kLate;
  std::mt19937 random_;
  std::vector<std::unique_ptr<Stream>> streams_;
  sim::VectorClock host_;
  sim::AccessLog accesses_;
  std::vector<sim::AccessLog::Conflict> conflicts_;
  std::vector<std::string> races_;
  std::unordered_map<std::string, int64_t> failing_;
  std::pair<int, int> dropped_ = {-1, -1};
  int num_events_ = 0;
};

// As the log has them.
std::string stream_name(const Stream& stream);
std::string event_name(const Event& event);

}  // namespace swapline::harness
