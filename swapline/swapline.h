// What is public of Swapline: include this, or the one header you need.
#pragma once

#include "swapline/copy/copy_streams.h"         // CopyStreams: byte copies on two streams
#include "swapline/copy/stream_order.h"         // Wait, StreamOrder: who waits for whom
#include "swapline/layer_input/layer_inputs.h"  // LayerInputs: recompute with swap built in
#include "swapline/layer_input/wrappers.h"      // the same for frameworks with their own recompute
#include "swapline/memory/host_pool.h"          // HostPool: pinned memory in exact pieces
#include "swapline/optimizer/adam.h"            // Adam and AdamW with states in host memory
#include "swapline/swap/eligibility.h"          // is_valid_for_swap: what may be swapped
#include "swapline/swap/swap_context.h"         // SwapContext: streams and pool of a device
#include "swapline/swap/swap_group.h"           // SwapGroup: tensors that move as one
