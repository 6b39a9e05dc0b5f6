// The devices, what the host asks of them and waits for, memory.
#include "harness/machine/machine.h"

#include <cstdio>
#include <cstdlib>

namespace swapline::harness {
namespace {

size_t mebibytes(const char* variable, size_t otherwise) {
  const char* text = std::getenv(variable);
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10) << 20;
}

}  // namespace

std::string event_name(const Event& event) {
  return "e" + std::to_string(event.number);
}

std::string stream_name(const Stream& stream) {
  return "s" + std::to_string(stream.number);
}

Machine& Machine::get() {
  static auto* machine = new Machine();
  return *machine;
}

Machine::Machine() : log(std::getenv("HARNESS_LOG")) {
  if (const char* text = std::getenv("HARNESS_DEVICES")) {
    num_devices = std::atoi(text);
  }
  if (const char* text = std::getenv("HARNESS_MODE"); text != nullptr && !set_mode(text)) {
    std::fprintf(stderr, "harness: HARNESS_MODE=%s is no mode\n", text);
    std::abort();
  }
  memory.device_capacity = mebibytes("HARNESS_MEMORY_MIB", memory.device_capacity);
  memory.pinned_capacity = mebibytes("HARNESS_PINNED_MIB", memory.pinned_capacity);
  for (int device = 0; device < num_devices; ++device) {
    make_stream(device, 0);
  }
}

Stream& Machine::make_stream(int device, int priority) {
  auto stream = std::make_unique<Stream>();
  stream->number = static_cast<int>(streams_.size());
  stream->device = device;
  stream->priority = priority;
  stream->actor = static_cast<sim::Actor>(stream->number + 1);  // behind the host
  streams_.push_back(std::move(stream));
  return *streams_.back();
}

Event* Machine::make_event(int device, unsigned flags) {
  log.count("event");
  return new Event{num_events_++, device, flags, nullptr};
}

// --- the host ---

bool Machine::is_done(const Stream& stream) {
  progress();
  if (!stream.queue.empty()) {
    return false;
  }
  host_.join(stream.clock);
  return true;
}

bool Machine::is_done(const Event& event) {
  log.count("query");
  progress();
  if (event.record != nullptr && !event.record->is_done) {
    return false;
  }
  if (event.record != nullptr) {
    host_.join(event.record->clock);
  }
  return true;
}

void Machine::synchronize(Stream& stream) {
  log.say("HOSTWAIT", "stream " + stream_name(stream));
  finish(stream);
  host_learns(stream);
}

void Machine::synchronize(const Event& event) {
  if (event.record == nullptr) {
    return;
  }
  if (!event.record->is_done) {
    log.say("HOSTWAIT", "event " + event_name(event));
    drain(*event.record->stream, event.record->position);
  }
  host_.join(event.record->clock);
}

void Machine::synchronize_device(int device) {
  log.say("HOSTWAIT", "device " + std::to_string(device));
  for (size_t i = 0; i < streams_.size(); ++i) {
    if (streams_[i]->device == device) {
      finish(*streams_[i]);
      host_learns(*streams_[i]);
    }
  }
}

void Machine::block(const std::string& why) {
  log.say("BLOCKS", why);
  for (size_t i = 0; i < streams_.size(); ++i) {
    finish(*streams_[i]);
    host_learns(*streams_[i]);
  }
}

// --- memory ---

void* Machine::allocate_device(size_t bytes, int device) {
  void* data =
      is_faulty("device-allocation") ? nullptr : memory.allocate(bytes, Place::kDevice, device);
  log.say(data == nullptr ? "REFUSED" : "malloc", std::to_string(bytes) + " B of device memory");
  return data;
}

void* Machine::allocate_pinned(size_t bytes, int device) {
  void* data =
      is_faulty("pinned-allocation") ? nullptr : memory.allocate(bytes, Place::kPinned, device);
  log.say(data == nullptr ? "REFUSED" : "pin", std::to_string(bytes) + " B of pinned memory");
  return data;
}

bool Machine::free_block(const char* word, void* data) {
  log.say(word, address_text(data));
  block(std::string(word) + " waits for all devices");
  const Block* found = memory.find(data);
  if (found == nullptr) {
    return false;
  }
  accesses_.forget(found->begin, found->begin + found->bytes);
  return memory.free(data);
}

bool Machine::free_device(void* data) {
  return free_block("free", data);
}

bool Machine::free_pinned(void* data) {
  return free_block("unpin", data);
}

bool Machine::is_faulty(const std::string& what) {
  const auto found = failing_.find(what);
  if (found == failing_.end() || found->second < 0) {
    return false;
  }
  return found->second-- == 0;
}

}  // namespace swapline::harness
