// Copies of the simulated machine: engines, time, faults, and when the bytes move.
#include "sim/core/simulator.h"
#include "sim/core/simulator_impl.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>

namespace swapline::sim {
namespace {

// The next of a sequence of well-mixed numbers in [0, 1), by its index (splitmix64's finaliser).
double mixed(uint64_t seed, uint64_t index) {
  uint64_t z = seed + (index + 1) * 0x9e3779b97f4a7c15ULL;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
  return static_cast<double>((z ^ (z >> 31)) >> 11) * 0x1p-53;
}

std::string address_text(const void* data) {
  char text[32];
  std::snprintf(text, sizeof text, "%p", data);
  return text;
}

}  // namespace

Nanos Simulator::Impl::transfer_time(size_t bytes, double bytes_per_s, Nanos latency) {
  const Faults& faults = options.faults;
  double factor = faults.copy_slowdown;
  if (faults.copy_jitter > 0) {
    factor *= 1 + faults.copy_jitter * mixed(faults.seed, num_jitters++);
  }
  return latency + std::llround(static_cast<double>(bytes) / bytes_per_s * factor * 1e9);
}

void Simulator::Impl::run_copy(int index, StreamId id, const CopyRequest& request) {
  Device& owner = device(index);
  Stream& runs = stream(index, id);
  const DeviceSpec& spec = options.spec;
  const bool in = request.src_device == kHost;
  const bool out = request.dst_device == kHost;

  host_spends(index, "launch", spec.host_op_time);
  const Nanos ready = std::max(runs.time, owner.host);
  Nanos begin = ready;
  Nanos duration = 0;
  Lane lane = Lane::kCompute;
  if (in || out) {
    duration = transfer_time(
        request.bytes, in ? spec.h2d_bytes_per_s : spec.d2h_bytes_per_s, spec.copy_latency);
    Engine& engine = in || !spec.full_duplex ? owner.h2d : owner.d2h;
    begin = engine.book(ready, duration, owner.host);
    lane = in ? Lane::kHostToDevice : Lane::kDeviceToHost;
    ++(in ? owner.counters.num_copies_in : owner.counters.num_copies_out);
    (in ? owner.counters.bytes_in : owner.counters.bytes_out) +=
        static_cast<int64_t>(request.bytes);
  } else if (request.src_device == request.dst_device) {
    duration = spec.launch_latency + std::llround(2.0 * static_cast<double>(request.bytes) /
                                                  spec.memory_bytes_per_s * 1e9);
    ++owner.counters.num_ops;
  } else {
    duration = transfer_time(request.bytes, spec.peer_bytes_per_s, spec.peer_latency);
    begin = device(request.src_device).peer.book(ready, duration, 0);
    lane = Lane::kPeer;
  }
  runs.time = begin + duration;
  if (options.trace) {
    trace.span(index, lane, id, request.name, begin, runs.time);
  }
}

void Simulator::copy(int device, StreamId stream, const CopyRequest& request) {
  const std::lock_guard lock(impl_->mutex);
  if (request.bytes == 0) {
    return;
  }
  impl_->check_not_lost();
  const bool in = request.src_device == kHost;
  const bool out = request.dst_device == kHost;
  if ((in || out) && impl_->is_faulty(impl_->options.faults.fail_copy)) {
    throw CopyError("copy of " + std::to_string(request.bytes) + " bytes " + (in ? "to" : "from") +
                    " device " + std::to_string(device) + " failed (injected fault)");
  }
  const auto src = reinterpret_cast<uintptr_t>(request.src);
  const auto dst = reinterpret_cast<uintptr_t>(request.dst);
  const bool pinned =
      in ? impl_->pinned.contains(request.src) : impl_->pinned.contains(request.dst);
  const bool host_waits = (in || out) && !(request.non_blocking && pinned);
  const bool is_late = impl_->options.late_copies && (in || out) && !host_waits;
  Stream& runs = impl_->stream(device, stream);
  if (impl_->options.log) {
    const auto place = [&](int side) {
      return side != kHost ? "device" : pinned ? "pinned" : "pageable";
    };
    impl_->log.say("copy",
                   log_name(runs) + " " + place(request.src_device) + "->" +
                       place(request.dst_device) + " " + std::to_string(request.bytes) + " B " +
                       address_text(request.src) + " -> " + address_text(request.dst));
  }
  if (is_late) {
    impl_->enqueue(runs);  // touches nothing yet: copies before it may stay late too
  } else {
    impl_->start(runs);
  }
  // Pageable memory is not followed: the host waits for its copies, so nothing can go wrong there.
  std::vector<Access> accesses;
  if (!in || pinned) {
    accesses.push_back({src, src + request.bytes, false});
  }
  if (!out || pinned) {
    accesses.push_back({dst, dst + request.bytes, true});
  }
  impl_->check(runs, request.name, accesses);
  impl_->run_copy(device, stream, request);

  if (!impl_->options.dry_run) {
    if (is_late) {
      impl_->late.add(runs.actor,
                      runs.clock.at(runs.actor),
                      runs.clock,
                      request.dst,
                      request.src,
                      request.bytes);
    } else {
      std::memmove(request.dst, request.src, request.bytes);
    }
  }
  if (host_waits) {
    ++impl_->device(device).counters.num_blocking_copies;
    if (impl_->options.log) {
      impl_->log.say("BLOCKS", "a copy on " + log_name(runs));
    }
    impl_->host_waits(device, runs.time, runs.clock);
  }
}

}  // namespace swapline::sim
