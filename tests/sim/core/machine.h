// A small simulated machine for tests, and short words for work on it.
#pragma once

#include "sim/core/simulator.h"

#include <cstdint>
#include <cstring>
#include <string_view>
#include <vector>

namespace swapline::sim {

inline constexpr Nanos kLaunch = 2000;       // preset tiny: an operator takes this on its stream
inline constexpr Nanos kHostOp = 1000;       // and this on the host
inline constexpr Nanos kCopyLatency = 5000;  // and a copy this, besides its bytes
inline constexpr size_t kMiB = size_t{1} << 20;

inline SimulatorOptions tiny_machine() {
  SimulatorOptions options;
  options.spec = preset("tiny");
  options.num_devices = 2;
  return options;
}

// Preset tiny moves 10 bytes a nanosecond over its links.
inline Nanos copy_time(size_t bytes) {
  return kCopyLatency + static_cast<Nanos>(bytes / 10);
}

inline Access access(const void* data, size_t bytes, bool is_write) {
  const auto begin = reinterpret_cast<uintptr_t>(data);
  return {begin, begin + bytes, is_write};
}
inline Access reads(const void* data, size_t bytes) {
  return access(data, bytes, false);
}
inline Access writes(const void* data, size_t bytes) {
  return access(data, bytes, true);
}

inline void run(Simulator& sim,
                StreamId stream,
                std::string_view name,
                const std::vector<Access>& accesses = {},
                const Cost& cost = {},
                int device = 0) {
  sim.begin_op(device, stream, name, accesses);
  sim.end_op(device, stream, name, cost, {});
}

inline void copy_in(Simulator& sim,
                    StreamId stream,
                    const void* src,
                    void* dst,
                    size_t bytes,
                    bool non_blocking = true) {
  sim.copy(0, stream, {kHost, src, 0, dst, bytes, non_blocking, "copy in"});
}

inline void copy_out(Simulator& sim,
                     StreamId stream,
                     const void* src,
                     void* dst,
                     size_t bytes,
                     bool non_blocking = true) {
  sim.copy(0, stream, {0, src, kHost, dst, bytes, non_blocking, "copy out"});
}

// Makes `waiting` wait for everything that `stream` holds now.
inline void order(Simulator& sim, StreamId stream, StreamId waiting) {
  sim.wait(0, waiting, *sim.record(0, stream));
}

inline bool is_filled(const void* data, size_t bytes, unsigned char value) {
  const std::vector<unsigned char> expected(bytes, value);
  return std::memcmp(data, expected.data(), bytes) == 0;
}

}  // namespace swapline::sim
