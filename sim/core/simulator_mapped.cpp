// Pinned host memory that operators address themselves: what their accesses cost on the link, and
// who may still be using a block when it is freed.
#include "sim/core/simulator.h"
#include "sim/core/simulator_impl.h"

#include <algorithm>
#include <cmath>

namespace swapline::sim {

void Simulator::Impl::note_mapped(const Stream& stream,
                                  std::string_view op,
                                  std::span<const Access> accesses) {
  for (const Access& access : accesses) {
    const uintptr_t block = pinned.block_of(reinterpret_cast<const void*>(access.begin));
    if (block == 0) {
      continue;
    }
    std::vector<MappedUse>& uses = mapped_uses[block];
    auto use = std::find_if(uses.begin(), uses.end(), [&](const MappedUse& candidate) {
      return candidate.actor == stream.actor;
    });
    if (use == uses.end()) {
      use = uses.insert(use, MappedUse());
    }
    *use = {stream.actor, stream.clock.at(stream.actor), std::string(op), access};
  }
}

// Reads and writes go on at once where the link has an engine for each direction.
Nanos Simulator::Impl::move_mapped(Device& owner, Nanos ready, const Cost& cost) {
  const DeviceSpec& spec = options.spec;
  const auto time = [&](double bytes, double bytes_per_s) {
    return bytes > 0 ? transfer_time(std::llround(bytes), bytes_per_s, 0) : 0;
  };
  const Nanos in = time(cost.mapped_bytes_in, spec.h2d_bytes_per_s);
  const Nanos out = time(cost.mapped_bytes_out, spec.d2h_bytes_per_s);
  owner.counters.mapped_bytes_in += std::llround(cost.mapped_bytes_in);
  owner.counters.mapped_bytes_out += std::llround(cost.mapped_bytes_out);
  if (!spec.full_duplex) {
    return owner.h2d.book_pieces(ready, in + out, owner.host);
  }
  return std::max(owner.h2d.book_pieces(ready, in, owner.host),
                  owner.d2h.book_pieces(ready, out, owner.host));
}

void Simulator::Impl::check_mapped(uintptr_t block) {
  const auto uses = mapped_uses.extract(block);
  if (uses.empty() || !options.check_races) {
    return;
  }
  for (const MappedUse& use : uses.mapped()) {
    if (host_clock.at(use.actor) < use.tick) {
      report({describe(use.actor, use.op, use.access.is_write),
              describe(kHostActor, "free of pinned memory", /*is_write=*/true),
              use.access.begin,
              use.access.end,
              /*is_host_memory=*/true});
    }
  }
}

}  // namespace swapline::sim
