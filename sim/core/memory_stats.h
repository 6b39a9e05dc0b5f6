// What a simulated device's allocator reports.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace swapline::sim {

enum class MemoryKind { kOther, kParameters, kGradients, kOptimizerStates, kLayerInputs };
inline constexpr int kNumMemoryKinds = 5;
using BytesByKind = std::array<size_t, kNumMemoryKinds>;  // indexed by MemoryKind

struct DeviceMemoryStats {
  size_t capacity_bytes = 0;
  size_t allocated_bytes = 0;  // in blocks that someone holds
  size_t peak_allocated_bytes = 0;
  size_t reserved_bytes = 0;  // in segments taken from the device, cached blocks included
  size_t peak_reserved_bytes = 0;
  size_t held_bytes = 0;  // freed by the owner, kept back for another stream (record_stream)
  int64_t num_allocations = 0;
  int64_t num_segments_allocated = 0;
  int64_t num_retries = 0;  // allocations that had to flush the cache first
  int64_t num_out_of_memory = 0;
  BytesByKind bytes_by_kind{};
  BytesByKind peak_bytes_by_kind{};  // at the moment of peak_allocated_bytes
};

struct PinnedMemoryStats {
  size_t allocated_bytes = 0;
  size_t peak_allocated_bytes = 0;
  int64_t num_allocations = 0;  // from the system
};

}  // namespace swapline::sim
