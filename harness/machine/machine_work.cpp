// What is enqueued: kernels, copies, events; with its line in the log and its races.
#include "harness/machine/machine.h"

#include <cstring>

namespace swapline::harness {

// Reads first: one operation may write what it reads.
void Machine::note(sim::Actor actor,
                   uint64_t tick,
                   const sim::VectorClock& clock,
                   const std::string& label,
                   const std::vector<TouchedBytes>& touched) {
  for (const bool writes : {false, true}) {
    for (const TouchedBytes& bytes : touched) {
      if (bytes.bytes == 0 || bytes.is_write != writes) {
        continue;
      }
      const auto begin = reinterpret_cast<uintptr_t>(bytes.begin);
      conflicts_.clear();
      accesses_.note(
          {actor, tick, &clock, label}, {begin, begin + bytes.bytes, writes}, conflicts_);
      for (const sim::AccessLog::Conflict& conflict : conflicts_) {
        races_.push_back("'" + label + "' " + (writes ? "writes" : "reads") + " what '" +
                         conflict.first_op + "' " + (conflict.first_is_write ? "writes" : "reads") +
                         ", unordered: " + std::to_string(conflict.end - conflict.begin) +
                         " bytes at " + address_text(reinterpret_cast<void*>(conflict.begin)));
        log.say("RACE", races_.back());
      }
    }
  }
}

void Machine::enqueue(Stream& stream, Work work, const std::vector<TouchedBytes>& touched) {
  stream.clock.join(host_);
  const uint64_t tick = stream.clock.advance(stream.actor);
  note(stream.actor, tick, stream.clock, stream_name(stream) + " " + work.label, touched);
  ++stream.num_enqueued;
  if (work.records) {
    work.records->stream = &stream;
    work.records->position = stream.num_enqueued;
    work.records->clock = stream.clock;
  }
  stream.queue.push_back(std::move(work));
  progress();
}

void Machine::check_device(const Stream& stream,
                           const std::string& label,
                           const void* data,
                           bool is_copy) {
  const Block* block = memory.find(data);
  if (block == nullptr && !is_copy) {
    log.say("WRONG", label + " on " + stream_name(stream) + " touches memory that is not there");
  } else if (block != nullptr && block->place == Place::kDevice && block->device != stream.device) {
    log.say("WRONG",
            label + " on " + stream_name(stream) + " of device " + std::to_string(stream.device) +
                " touches memory of device " + std::to_string(block->device));
  }
}

void Machine::launch(Stream& stream,
                     const std::string& label,
                     const std::vector<TouchedBytes>& touched,
                     std::function<void()> run) {
  log.say("op", stream_name(stream) + " " + label);
  for (const TouchedBytes& bytes : touched) {
    if (bytes.bytes > 0) {
      check_device(stream, label, bytes.begin, /*is_copy=*/false);
    }
  }
  enqueue(stream, {label, Kind::kKernel, std::move(run), nullptr, nullptr}, touched);
}

bool Machine::copy(Stream& stream, void* to, const void* from, size_t bytes) {
  if (is_faulty("copy")) {
    return false;
  }
  const Place source = memory.place_of(from);
  const Place target = memory.place_of(to);
  const std::string label = "copy " + place_name(source) + "->" + place_name(target);
  const std::string text = stream_name(stream) + " " + place_name(source) + "->" +
                           place_name(target) + " " + std::to_string(bytes) + " B " +
                           address_text(from) + " -> " + address_text(to);
  log.say("copy", text);
  const bool is_between_devices = source == Place::kDevice && target == Place::kDevice;
  if (!is_between_devices) {  // peers may be on either side
    check_device(stream, label, from, /*is_copy=*/true);
    check_device(stream, label, to, /*is_copy=*/true);
  }
  std::vector<TouchedBytes> touched;
  if (source != Place::kPageable) {
    touched.push_back({from, bytes, false});
  }
  if (target != Place::kPageable) {
    touched.push_back({to, bytes, true});
  }
  const Kind kind = is_between_devices ? Kind::kKernel : Kind::kHostCopy;
  if (source == Place::kPageable && target != Place::kPageable) {
    log.say("STAGED", text);
    const auto* begin = static_cast<const char*>(from);
    const auto staged = std::make_shared<std::vector<char>>(begin, begin + bytes);
    const auto run = [=] { std::memcpy(to, staged->data(), staged->size()); };
    enqueue(stream, {label, kind, run, nullptr, nullptr}, touched);
    return true;
  }
  const auto run = [=] { std::memmove(to, from, bytes); };
  enqueue(stream, {label, kind, run, nullptr, nullptr}, touched);
  if (target == Place::kPageable) {
    log.say("BLOCKS", "copy into pageable memory: " + text);
    finish(stream);
    host_learns(stream);
  }
  return true;
}

bool Machine::copy_now(Stream& stream, void* to, const void* from, size_t bytes) {
  if (!copy(stream, to, from, bytes)) {
    return false;
  }
  log.say("BLOCKS", "a synchronous copy on " + stream_name(stream));
  finish(stream);
  host_learns(stream);
  return true;
}

bool Machine::copy_unordered(void* to, const void* from, size_t bytes) {
  if (is_faulty("copy")) {
    return false;
  }
  const std::string text = place_name(memory.place_of(from)) + "->" +
                           place_name(memory.place_of(to)) + " " + std::to_string(bytes) + " B " +
                           address_text(from) + " -> " + address_text(to);
  log.say("copy", "host " + text);
  log.say("BLOCKS", "a synchronous copy: " + text);
  std::vector<TouchedBytes> touched;
  for (const TouchedBytes& touch :
       {TouchedBytes{from, bytes, false}, TouchedBytes{to, bytes, true}}) {
    if (memory.place_of(touch.begin) != Place::kPageable) {
      touched.push_back(touch);
    }
  }
  const uint64_t tick = host_.advance(sim::kHostActor);
  note(sim::kHostActor, tick, host_, "the host's copy", touched);
  std::memmove(to, from, bytes);
  return true;
}

void Machine::fill(Stream& stream, void* data, int value, size_t bytes) {
  log.say("fill", stream_name(stream) + " " + std::to_string(bytes) + " B " + address_text(data));
  check_device(stream, "fill", data, /*is_copy=*/false);
  const auto run = [=] { std::memset(data, value, bytes); };
  enqueue(stream, {"fill", Kind::kKernel, run, nullptr, nullptr}, {{data, bytes, true}});
}

void Machine::record(Stream& stream, Event& event) {
  if (event.device != stream.device) {
    log.say("WRONG",
            event_name(event) + " of device " + std::to_string(event.device) + " recorded on " +
                stream_name(stream) + " of device " + std::to_string(stream.device));
  }
  log.say("record", stream_name(stream) + " " + event_name(event));
  event.record = std::make_shared<EventRecord>();
  enqueue(stream, {"record " + event_name(event), Kind::kOther, {}, event.record, nullptr});
}

void Machine::wait(Stream& stream, const Event& event) {
  const std::string text = stream_name(stream) + " " + event_name(event);
  if (event.record == nullptr) {
    log.say("WARNING", text + ": a wait for an event that was never recorded is none");
    return;
  }
  const Stream& of = *event.record->stream;
  if (dropped_ == std::pair(stream.number, of.number)) {
    log.say("DROPPED", text + " of " + stream_name(of));
    return;
  }
  log.say("wait", text + " of " + stream_name(of));
  stream.clock.join(event.record->clock);
  enqueue(stream, {"wait " + event_name(event), Kind::kOther, {}, nullptr, event.record});
}

void Machine::call_host(Stream& stream, std::function<void()> function) {
  log.say("call", stream_name(stream));
  enqueue(stream, {"host function", Kind::kOther, std::move(function), nullptr, nullptr});
}

}  // namespace swapline::harness
