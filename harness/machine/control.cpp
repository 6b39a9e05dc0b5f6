#include "harness/machine/control.h"

#include "harness/machine/machine.h"
#include "harness/machine/vendor.h"

using swapline::harness::Locked;
using swapline::harness::Machine;
using swapline::harness::stream_of_vendor;
using swapline::harness::TouchedBytes;

namespace {

const char* lent(const std::string& text) {
  thread_local std::string held;
  held = text;
  return held.c_str();
}

}  // namespace

extern "C" {

int harness_launch(void* stream,
                   const char* label,
                   const HarnessTouchedBytes* touched,
                   size_t num_touched,
                   void (*run)(void*),
                   void* context,
                   void (*forget)(void*)) {
  const Locked machine;
  if (machine->is_broken || machine->is_faulty("launch")) {
    return -1;
  }
  std::vector<TouchedBytes> bytes;
  for (size_t i = 0; i < num_touched; ++i) {
    bytes.push_back({touched[i].begin, touched[i].bytes, touched[i].is_write != 0});
  }
  machine->launch(stream_of_vendor(stream), label, bytes, [=] {
    run(context);
    forget(context);
  });
  return 0;
}

void harness_finish(void* stream) {
  const Locked machine;
  machine->finish(stream_of_vendor(stream));
}

int harness_set_mode(const char* mode) {
  const Locked machine;
  return machine->set_mode(mode) ? 0 : -1;
}

int64_t harness_num_lines() {
  const Locked machine;
  return static_cast<int64_t>(machine->log.lines().size());
}
const char* harness_line(int64_t index) {
  const Locked machine;
  return lent(machine->log.lines().at(static_cast<size_t>(index)));
}
int64_t harness_count(const char* word) {
  const Locked machine;
  return machine->log.count_of(word);
}
void harness_clear_log() {
  const Locked machine;
  machine->log.clear();
}

int64_t harness_num_races() {
  const Locked machine;
  return static_cast<int64_t>(machine->races().size());
}
const char* harness_race(int64_t index) {
  const Locked machine;
  return lent(machine->races().at(static_cast<size_t>(index)));
}
void harness_clear_races() {
  const Locked machine;
  machine->clear_races();
}

int64_t harness_device_bytes(int device) {
  const Locked machine;
  return static_cast<int64_t>(machine->memory.device_bytes(device));
}
int64_t harness_pinned_bytes() {
  const Locked machine;
  return static_cast<int64_t>(machine->memory.pinned_bytes());
}
void harness_set_capacity(int64_t device_bytes, int64_t pinned_bytes) {
  const Locked machine;
  if (device_bytes >= 0) {
    machine->memory.device_capacity = static_cast<size_t>(device_bytes);
  }
  if (pinned_bytes >= 0) {
    machine->memory.pinned_capacity = static_cast<size_t>(pinned_bytes);
  }
}

void harness_drop_waits(int waiter, int of) {
  const Locked machine;
  machine->drop_waits(waiter, of);
}
void harness_fail(const char* what, int64_t after) {
  const Locked machine;
  machine->fail(what, after);
}
void harness_break(int yes) {
  const Locked machine;
  machine->is_broken = yes != 0;
}

}  // extern "C"
