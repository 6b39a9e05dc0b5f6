// Tells the race checker when CPU operators read or write pinned memory.
#pragma once

namespace swapline::sim {

void watch_host_ops(bool on);

}  // namespace swapline::sim
