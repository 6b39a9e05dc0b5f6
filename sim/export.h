// SWAPLINE_SIM_API marks what libswapline_sim shows; everything else is hidden.
#pragma once

#define SWAPLINE_SIM_API __attribute__((visibility("default")))
