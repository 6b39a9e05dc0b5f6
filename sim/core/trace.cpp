#include "sim/core/trace.h"

#include <cstdio>
#include <set>
#include <utility>

namespace swapline::sim {
namespace {

constexpr const char* kKindNames[kNumMemoryKinds] = {
    "other", "parameters", "gradients", "optimizer_states", "layer_inputs"};

std::string quoted(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      out += '\\';
    }
    out += c < ' ' ? ' ' : c;
  }
  return out + "\"";
}

std::string micros(Nanos nanos) {
  char text[40];
  std::snprintf(text, sizeof text, "%.3f", static_cast<double>(nanos) / 1000.0);
  return text;
}

// The row of a lane: one for the host, one a stream for compute, one for each engine.
int row(Lane lane, StreamId stream) {
  switch (lane) {
    case Lane::kHost:
      return 0;
    case Lane::kCompute:
      return 10 + stream;
    case Lane::kHostToDevice:
      return 100;
    case Lane::kDeviceToHost:
      return 101;
    case Lane::kPeer:
      return 102;
  }
  return 0;
}

std::string row_name(Lane lane, StreamId stream) {
  switch (lane) {
    case Lane::kHost:
      return "host";
    case Lane::kCompute:
      return stream == 0 ? "compute" : "stream " + std::to_string(stream);
    case Lane::kHostToDevice:
      return "H2D";
    case Lane::kDeviceToHost:
      return "D2H";
    case Lane::kPeer:
      return "peer";
  }
  return "";
}

// Marks an operator that addressed pinned memory; nothing for any other.
std::string mapped_bytes(const MappedBytes& mapped) {
  if (mapped.in == 0 && mapped.out == 0) {
    return "";
  }
  return ",\"args\":{\"mapped_bytes_in\":" + std::to_string(mapped.in) +
         ",\"mapped_bytes_out\":" + std::to_string(mapped.out) + "}";
}

std::string metadata(const char* what, int device, int row, std::string_view name) {
  return "{\"ph\":\"M\",\"pid\":" + std::to_string(device) + ",\"tid\":" + std::to_string(row) +
         ",\"name\":\"" + what + "\",\"args\":{\"name\":" + quoted(name) + "}}";
}

}  // namespace

void Trace::span(int device,
                 Lane lane,
                 StreamId stream,
                 std::string_view name,
                 Nanos begin,
                 Nanos end,
                 MappedBytes mapped) {
  spans_.push_back({device, lane, stream, std::string(name), begin, end, mapped});
}

void Trace::memory(int device, Nanos at, const BytesByKind& bytes) {
  memory_.push_back({device, at, bytes});
}

void Trace::name_stream(int device, StreamId stream, std::string name) {
  names_.push_back({device, stream, std::move(name)});
}

void Trace::clear() {
  spans_.clear();
  memory_.clear();
}

std::string Trace::json() const {
  std::string out = "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n";
  std::set<std::pair<int, int>> rows;
  for (const Span& span : spans_) {
    const int tid = row(span.lane, span.stream);
    if (rows.insert({span.device, tid}).second) {
      out += metadata("thread_name", span.device, tid, row_name(span.lane, span.stream)) + ",\n";
    }
    out += "{\"ph\":\"X\",\"pid\":" + std::to_string(span.device) +
           ",\"tid\":" + std::to_string(tid) + ",\"name\":" + quoted(span.name) +
           ",\"ts\":" + micros(span.begin) + ",\"dur\":" + micros(span.end - span.begin) +
           mapped_bytes(span.mapped) + "},\n";
  }
  for (const StreamName& named : names_) {
    const int tid = row(Lane::kCompute, named.stream);
    if (rows.count({named.device, tid}) != 0) {
      out += metadata("thread_name", named.device, tid, named.name) + ",\n";
    }
  }
  for (const Memory& sample : memory_) {
    out += "{\"ph\":\"C\",\"pid\":" + std::to_string(sample.device) +
           ",\"name\":\"memory\",\"ts\":" + micros(sample.at) + ",\"args\":{";
    for (int kind = 0; kind < kNumMemoryKinds; ++kind) {
      out += std::string(kind == 0 ? "" : ",") + "\"" + kKindNames[kind] +
             "\":" + std::to_string(sample.bytes[kind]);
    }
    out += "}},\n";
  }
  return out + metadata("process_name", 0, 0, "device 0") + "\n]}\n";
}

}  // namespace swapline::sim
