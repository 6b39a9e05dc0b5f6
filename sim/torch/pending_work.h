// Work of a device that waits for other processes, such as a collective. Whoever waits for the
// whole device waits for it too.
#pragma once

#include "sim/export.h"

#include <memory>

namespace swapline::sim {

class SWAPLINE_SIM_API PendingWork {
 public:
  virtual ~PendingWork() = default;
  // The host waits until everything begun on `device` is done. Thread-safe.
  virtual void settle(int device) = 0;
  // The machine was replaced: its streams and times mean nothing any more.
  virtual void forget_machine() = 0;
};

// Asked as long as it lives.
SWAPLINE_SIM_API void add_pending_work(const std::shared_ptr<PendingWork>& work);

void settle_pending_work(int device);
void forget_machine_in_pending_work();

}  // namespace swapline::sim
