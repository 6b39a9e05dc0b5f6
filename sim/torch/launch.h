// One operator on a simulated device: stand-ins for its tensors, the order check before it runs,
// its outputs moved to the device, and its cost afterwards.
//
//   Launch launch("aten::silu", device_index);
//   auto x = launch.in(input);              // a CPU tensor, or a Meta one in a dry run
//   launch.begin();
//   at::Tensor y = launch.out(at::silu(x)); // a device tensor
//   launch.end();
#pragma once

#include "sim/core/simulator.h"
#include "sim/torch/alias.h"
#include "sim/torch/cost.h"

#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/util/SmallVector.h>

namespace swapline::sim {

class Launch {
 public:
  // Runs on the current stream of `device`. `name` must outlive the launch.
  Launch(const char* name, int device);

  bool is_dry() const { return is_dry_; }

  // Stand-ins. Undefined tensors and tensors that are not on the device come back as they are.
  at::Tensor in(const at::Tensor& tensor) { return stand_in(tensor, true, false); }
  at::Tensor inout(const at::Tensor& tensor) { return stand_in(tensor, true, true); }
  at::Tensor overwritten(const at::Tensor& tensor) { return stand_in(tensor, false, true); }
  // A stand-in for the geometry alone: the operator does not touch the bytes.
  at::Tensor shape_only(const at::Tensor& tensor) { return stand_in(tensor, false, false); }

  void begin();
  // A result of the operator, as a device tensor: the argument itself when the result is its
  // stand-in, a view when it shares an argument's memory, otherwise a new tensor.
  at::Tensor out(const at::Tensor& result);
  // Carries what the kernel did to the geometry of written arguments (resized outputs) back.
  void finish_written();
  void end(double flops = 0);

  // Only the rows that make up `result_bytes` were read of what was given, not all of it.
  void set_gathered(double result_bytes);
  void set_precision(c10::ScalarType dtype);

 private:
  struct Argument {
    at::Tensor original;
    at::Tensor alias;
    bool is_written;
  };
  struct SharedStorage {
    c10::StorageImpl* original;
    c10::Storage alias;
  };

  at::Tensor stand_in(const at::Tensor& tensor, bool reads, bool writes);
  void add_cost(const at::Tensor& tensor, bool reads, bool writes);
  const c10::Storage& alias_of(const c10::Storage& storage);
  void carry_back(const Argument& argument);

  const char* name_;
  int device_;
  StreamId stream_;
  bool is_dry_;
  bool has_precision_ = false;
  Cost cost_;
  c10::SmallVector<Access, 8> accesses_;
  c10::SmallVector<Access, 4> outputs_;
  c10::SmallVector<Argument, 8> arguments_;
  c10::SmallVector<SharedStorage, 8> storages_;
};

}  // namespace swapline::sim
