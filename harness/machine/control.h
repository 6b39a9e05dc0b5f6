// What a fake runtime offers beyond the vendor's own functions: work of any kind on its streams,
// its log, its figures, its faults. In C, so that Python reaches it with ctypes. Texts that come
// back are good until the thread's next call.
#pragma once

#include <cstddef>
#include <cstdint>

extern "C" {

struct HarnessTouchedBytes {
  const void* begin;
  size_t bytes;
  int is_write;
};

// Enqueues `run(context)` on the vendor's stream; `forget(context)` is called once, behind it. 0,
// or -1: it was told to fail, and neither will be called.
int harness_launch(void* stream,
                   const char* label,
                   const HarnessTouchedBytes* touched,
                   size_t num_touched,
                   void (*run)(void*),
                   void* context,
                   void (*forget)(void*));
// Runs what the vendor's stream holds, as if by chance.
void harness_finish(void* stream);

// "eager", "late", "late-copies", "late-compute", "random:SEED" (machine.h says what they are).
// Runs what is enqueued first. -1: no such mode.
int harness_set_mode(const char* mode);

// The log (call_log.h has its words), and how often a word was said since it was cleared.
int64_t harness_num_lines();
const char* harness_line(int64_t index);
int64_t harness_count(const char* word);
void harness_clear_log();

int64_t harness_num_races();
const char* harness_race(int64_t index);
void harness_clear_races();

int64_t harness_device_bytes(int device);
int64_t harness_pinned_bytes();
// Bytes of each device, and that can be pinned; below 0: as it is.
void harness_set_capacity(int64_t device_bytes, int64_t pinned_bytes);

// Waits of stream `waiter` for stream `of` (numbers as in the log) are not made. -1, -1: all are.
void harness_drop_waits(int waiter, int of);
// Of "device-allocation", "pinned-allocation", "copy", "launch": the one behind `after` others
// fails.
void harness_fail(const char* what, int64_t after);
// Every call of the vendor's fails, as after an illegal access; or no more.
void harness_break(int yes);
}
