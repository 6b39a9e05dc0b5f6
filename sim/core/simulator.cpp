#include "sim/core/simulator.h"

#include "sim/core/simulator_impl.h"

#include <algorithm>
#include <cmath>

namespace swapline::sim {
namespace {

constexpr size_t kPooledStreams = 32;
constexpr size_t kRacesKept = 100;
// The host needs this long to find that something is not done yet; so that a loop around a query
// gets on.
constexpr Nanos kQueryTime = 100;

}  // namespace

Simulator::Impl::Impl(SimulatorOptions given)
    : options(std::move(given)),
      devices(options.num_devices),
      pinned(!options.dry_run, options.round_pinned) {
  actors.emplace_back(0, kHost);
  for (int index = 0; index < options.num_devices; ++index) {
    Stream stream;
    stream.actor = static_cast<Actor>(actors.size());
    actors.emplace_back(index, 0);
    devices[index].streams.push_back(std::move(stream));
    devices[index].counters.num_streams = 1;
  }
}

Stream& Simulator::Impl::stream(int device_index, StreamId id) {
  Device& owner = device(device_index);
  if (id < 0 || static_cast<size_t>(id) >= owner.streams.size()) {
    throw std::out_of_range("device " + std::to_string(device_index) + " has no stream " +
                            std::to_string(id));
  }
  return owner.streams[id];
}

const Stream& Simulator::Impl::stream(int device_index, StreamId id) const {
  return const_cast<Impl*>(this)->stream(device_index, id);
}

Device& Simulator::Impl::device(int index) {
  if (index < 0 || static_cast<size_t>(index) >= devices.size()) {
    throw std::out_of_range("there is no device " + std::to_string(index));
  }
  return devices[index];
}

void Simulator::Impl::enqueue(Stream& stream) {
  if (stream.host_version != host_version) {
    stream.clock.join(host_clock);
    stream.host_version = host_version;
  }
  stream.clock.advance(stream.actor);
}

void Simulator::Impl::start(Stream& stream) {
  enqueue(stream);
  late.demand(stream.clock);
}

void Simulator::Impl::check(const Stream& stream,
                            std::string_view op,
                            std::span<const Access> accesses) {
  if (options.check_races) {
    for (const Access& access : accesses) {
      note(stream.actor, stream.clock.at(stream.actor), stream.clock, op, access);
    }
  }
}

void Simulator::Impl::note(Actor actor,
                           uint64_t tick,
                           const VectorClock& clock,
                           std::string_view op,
                           const Access& access) {
  conflicts.clear();
  accesses.note({actor, tick, &clock, op}, access, conflicts);
  for (const AccessLog::Conflict& conflict : conflicts) {
    report({describe(conflict.first_actor, conflict.first_op, conflict.first_is_write),
            describe(actor, op, access.is_write),
            conflict.begin,
            conflict.end,
            find_memory(conflict.begin) == nullptr});
  }
}

void Simulator::Impl::report(Race race) {
  ++num_races;
  if (races.size() < kRacesKept) {
    races.push_back(std::move(race));
  }
}

RaceAccess Simulator::Impl::describe(Actor actor, std::string_view op, bool is_write) const {
  const auto [device, stream] = actors[actor];
  return {std::string(op), device, stream, is_write};
}

void Simulator::Impl::host_learns(const VectorClock& clock) {
  host_clock.join(clock);
  ++host_version;
  late.demand(host_clock);
}

void Simulator::Impl::note_host_wait(int index, const std::string& for_what) {
  ++device(index).counters.num_host_waits;
  if (options.log) {
    log.say("HOSTWAIT", for_what);
  }
}

void Simulator::Impl::host_waits(int index, Nanos until, const VectorClock& clock) {
  host_spends(index, "wait", until - device(index).host);
  host_learns(clock);
}

void Simulator::Impl::host_spends(int index, std::string_view on_what, Nanos duration) {
  if (duration <= 0) {
    return;
  }
  Nanos& host = device(index).host;
  if (options.trace) {
    trace.span(index, Lane::kHost, kHost, on_what, host, host + duration);
  }
  host += duration;
}

std::shared_ptr<EventState> Simulator::Impl::record(int device_index, StreamId id) {
  Stream& source = stream(device_index, id);
  enqueue(source);
  // Reached by the stream no earlier than the host enqueued it.
  const Nanos at = std::max(source.time, device(device_index).host);
  const int number = options.log ? num_events++ : 0;
  if (options.log) {
    log.say("record", log_name(source) + " e" + std::to_string(number));
  }
  return std::make_shared<EventState>(
      EventState{device_index, at, source.clock, source.actor, number});
}

bool Simulator::Impl::is_done(const EventState& event) {
  Device& owner = device(event.device);
  if (event.time > owner.host) {
    owner.host += kQueryTime;
    return false;
  }
  host_learns(event.clock);
  return true;
}

void Simulator::Impl::wait_for_device(int index) {
  VectorClock all;
  Nanos until = 0;
  for (const Stream& each : device(index).streams) {
    until = std::max(until, each.time);
    all.join(each.clock);
  }
  host_waits(index, until, all);
}

void Simulator::Impl::check_not_lost() const {
  if (options.faults.lose_devices) {
    throw DeviceLost("the device is lost (injected fault)");
  }
}

bool Simulator::Impl::is_faulty(int64_t& countdown) {
  return countdown >= 0 && countdown-- == 0;
}

Simulator::Simulator(SimulatorOptions options)
    : impl_(std::make_unique<Impl>(std::move(options))) {}
Simulator::~Simulator() = default;

const SimulatorOptions& Simulator::options() const {
  return impl_->options;
}

void Simulator::set_faults(const Faults& faults) {
  const std::lock_guard lock(impl_->mutex);
  impl_->options.faults = faults;
  impl_->num_jitters = 0;
}

StreamId Simulator::new_stream(int device) {
  const std::lock_guard lock(impl_->mutex);
  Device& owner = impl_->device(device);
  if (owner.streams.size() > kPooledStreams) {
    return static_cast<StreamId>(1 + owner.next_pooled_stream++ % kPooledStreams);
  }
  Stream stream;
  stream.actor = static_cast<Actor>(impl_->actors.size());
  const auto id = static_cast<StreamId>(owner.streams.size());
  impl_->actors.emplace_back(device, id);
  owner.streams.push_back(std::move(stream));
  ++owner.counters.num_streams;
  return id;
}

void Simulator::synchronize_stream(int device, StreamId stream) {
  const std::lock_guard lock(impl_->mutex);
  impl_->check_not_lost();
  Stream& waited = impl_->stream(device, stream);
  impl_->note_host_wait(device, "stream " + log_name(waited));
  impl_->host_waits(device, waited.time, waited.clock);
}

void Simulator::synchronize_device(int device) {
  const std::lock_guard lock(impl_->mutex);
  impl_->check_not_lost();
  impl_->note_host_wait(device, "device " + std::to_string(device));
  impl_->wait_for_device(device);
}

bool Simulator::is_stream_done(int device, StreamId stream) const {
  const std::lock_guard lock(impl_->mutex);
  impl_->check_not_lost();
  const Stream& queried = impl_->stream(device, stream);
  return impl_->is_done({device, queried.time, queried.clock});
}

std::shared_ptr<EventState> Simulator::record(int device, StreamId stream) {
  const std::lock_guard lock(impl_->mutex);
  impl_->check_not_lost();
  return impl_->record(device, stream);
}

void Simulator::wait(int device, StreamId stream, const EventState& event) {
  const std::lock_guard lock(impl_->mutex);
  impl_->check_not_lost();
  Stream& waiting = impl_->stream(device, stream);
  if (impl_->options.log) {
    impl_->log.say(
        "wait",
        log_name(waiting) + " e" + std::to_string(event.number) + " of " + log_name(event.actor));
  }
  waiting.clock.join(event.clock);
  waiting.time = std::max(waiting.time, event.time);
}

bool Simulator::is_done(const EventState& event) const {
  const std::lock_guard lock(impl_->mutex);
  impl_->check_not_lost();
  return impl_->is_done(event);
}

void Simulator::synchronize(const EventState& event) {
  const std::lock_guard lock(impl_->mutex);
  impl_->check_not_lost();
  if (event.time > impl_->device(event.device).host) {
    impl_->note_host_wait(event.device, "event e" + std::to_string(event.number));
  }
  impl_->host_waits(event.device, event.time, event.clock);
}

Nanos Simulator::time_of(const EventState& event) {
  return event.time;
}

void Simulator::begin_op(int device,
                         StreamId stream,
                         std::string_view name,
                         std::span<const Access> accesses) {
  const std::lock_guard lock(impl_->mutex);
  impl_->check_not_lost();
  if (impl_->is_faulty(impl_->options.faults.fail_launch)) {
    throw LaunchError("launch of " + std::string(name) + " on device " + std::to_string(device) +
                      " failed (injected fault)");
  }
  Stream& runs = impl_->stream(device, stream);
  if (impl_->options.log) {
    impl_->log.say("op", log_name(runs) + " " + std::string(name));
  }
  impl_->start(runs);
  impl_->check(runs, name, accesses);
  impl_->note_mapped(runs, name, accesses);
}

void Simulator::end_op(int device,
                       StreamId stream,
                       std::string_view name,
                       const Cost& cost,
                       std::span<const Access> outputs) {
  const std::lock_guard lock(impl_->mutex);
  Device& owner = impl_->device(device);
  Stream& runs = impl_->stream(device, stream);
  impl_->check(runs, name, outputs);

  const DeviceSpec& spec = impl_->options.spec;
  const double seconds =
      std::max(cost.flops / spec.flops(cost.precision), cost.bytes / spec.memory_bytes_per_s);
  impl_->host_spends(device, "launch", spec.host_op_time);
  const Nanos begin = std::max(runs.time, owner.host);
  const Nanos body = begin + spec.launch_latency;
  runs.time = std::max(body + static_cast<Nanos>(std::llround(seconds * 1e9)),
                       impl_->move_mapped(owner, body, cost));
  ++owner.counters.num_ops;
  if (impl_->options.trace) {
    impl_->trace.span(device,
                      Lane::kCompute,
                      stream,
                      name,
                      begin,
                      runs.time,
                      {std::llround(cost.mapped_bytes_in), std::llround(cost.mapped_bytes_out)});
  }
}

void Simulator::host_access(std::string_view name, const void* data, size_t bytes, bool is_write) {
  const std::lock_guard lock(impl_->mutex);
  if (bytes == 0 || !impl_->options.check_races || !impl_->pinned.contains(data)) {
    return;
  }
  const uint64_t tick = impl_->host_clock.advance(kHostActor);
  ++impl_->host_version;
  const auto begin = reinterpret_cast<uintptr_t>(data);
  impl_->note(kHostActor, tick, impl_->host_clock, name, {begin, begin + bytes, is_write});
}

Nanos Simulator::host_time(int device) const {
  const std::lock_guard lock(impl_->mutex);
  return impl_->device(device).host;
}

Nanos Simulator::stream_time(int device, StreamId stream) const {
  const std::lock_guard lock(impl_->mutex);
  return impl_->stream(device, stream).time;
}

void Simulator::advance_host(int device, Nanos duration) {
  const std::lock_guard lock(impl_->mutex);
  impl_->device(device).host += duration;
}

Counters Simulator::counters(int device) const {
  const std::lock_guard lock(impl_->mutex);
  return impl_->device(device).counters;
}

int64_t Simulator::num_races() const {
  const std::lock_guard lock(impl_->mutex);
  return impl_->num_races;
}

std::vector<Race> Simulator::races() const {
  const std::lock_guard lock(impl_->mutex);
  return impl_->races;
}

void Simulator::clear_races() {
  const std::lock_guard lock(impl_->mutex);
  impl_->num_races = 0;
  impl_->races.clear();
}

std::vector<std::string> Simulator::log_lines() const {
  const std::lock_guard lock(impl_->mutex);
  return impl_->log.lines();
}

void Simulator::clear_log() {
  const std::lock_guard lock(impl_->mutex);
  impl_->log.clear();
}

std::string Simulator::trace_json() const {
  const std::lock_guard lock(impl_->mutex);
  return impl_->trace.json();
}

void Simulator::clear_trace() {
  const std::lock_guard lock(impl_->mutex);
  impl_->trace.clear();
}

void Simulator::name_stream(int device, StreamId stream, std::string name) {
  const std::lock_guard lock(impl_->mutex);
  impl_->trace.name_stream(device, stream, std::move(name));
}

}  // namespace swapline::sim
