#include "sim/torch/pending_work.h"

#include <mutex>
#include <vector>

namespace swapline::sim {
namespace {

// Process-wide as the machine itself is.
struct Registry {
  std::mutex mutex;
  std::vector<std::weak_ptr<PendingWork>> all;
};

Registry& registry() {
  static auto* registry = new Registry;  // never destroyed: a device may be used by statics' ends
  return *registry;
}

// Owned, so that none dies while it is asked; asked without the lock, as the answer may take long.
std::vector<std::shared_ptr<PendingWork>> living() {
  Registry& known = registry();
  const std::lock_guard lock(known.mutex);
  std::vector<std::shared_ptr<PendingWork>> living;
  std::erase_if(known.all, [&](const std::weak_ptr<PendingWork>& each) {
    auto work = each.lock();
    const bool is_gone = work == nullptr;
    if (!is_gone) {
      living.push_back(std::move(work));
    }
    return is_gone;
  });
  return living;
}

}  // namespace

void add_pending_work(const std::shared_ptr<PendingWork>& work) {
  Registry& known = registry();
  const std::lock_guard lock(known.mutex);
  known.all.push_back(work);
}

void settle_pending_work(int device) {
  for (const auto& work : living()) {
    work->settle(device);
  }
}

void forget_machine_in_pending_work() {
  for (const auto& work : living()) {
    work->forget_machine();
  }
}

}  // namespace swapline::sim
