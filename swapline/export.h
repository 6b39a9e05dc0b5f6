// SWAPLINE_API marks what libswapline shows; everything else is hidden.
#pragma once

#define SWAPLINE_API __attribute__((visibility("default")))
