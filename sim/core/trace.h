// Spans of virtual time and a memory curve, written as Chrome trace JSON (chrome://tracing,
// Perfetto). Not thread-safe.
#pragma once

#include "sim/core/memory_stats.h"
#include "sim/core/simulator.h"

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace swapline::sim {

// Bytes of pinned memory that an operator itself moved over the link.
struct MappedBytes {
  int64_t in = 0;
  int64_t out = 0;
};

class Trace {
 public:
  void span(int device,
            Lane lane,
            StreamId stream,
            std::string_view name,
            Nanos begin,
            Nanos end,
            MappedBytes mapped = {});
  void memory(int device, Nanos at, const BytesByKind& bytes);
  void name_stream(int device, StreamId stream, std::string name);
  void clear();

  std::string json() const;

 private:
  struct Span {
    int device;
    Lane lane;
    StreamId stream;
    std::string name;
    Nanos begin;
    Nanos end;
    MappedBytes mapped;
  };
  struct Memory {
    int device;
    Nanos at;
    BytesByKind bytes;
  };
  struct StreamName {
    int device;
    StreamId stream;
    std::string name;
  };

  std::vector<Span> spans_;
  std::vector<Memory> memory_;
  std::vector<StreamName> names_;
};

}  // namespace swapline::sim
