// Spans of virtual time and a memory curve, written as Chrome trace JSON (chrome://tracing,
// Perfetto). Not thread-safe.
#pragma once

#include "sim/core/memory_stats.h"
#include "sim/core/simulator.h"

#include <string>
#include <string_view>
#include <vector>

namespace swapline::sim {

class Trace {
 public:
  void span(int device, Lane lane, StreamId stream, std::string_view name, Nanos begin, Nanos end);
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
