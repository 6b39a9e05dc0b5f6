// The host's side of an optimizer over very many small parameters.
#pragma once

namespace swapline::bench {

// 100,000 fp32 parameters. Prints what construction and a step take on the host, swapped beside
// plain, and whether the claims hold.
bool compare_many();

}  // namespace swapline::bench
