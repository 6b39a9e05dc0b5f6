// Device tensors as the network sees them: CPU tensors over the same bytes.
#pragma once

#include "python/src/sim_exchange.h"
#include "sim/core/device_spec.h"

#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Storage.h>
#include <torch/csrc/distributed/c10d/Types.hpp>

namespace swapline::python {

// Index of the one simulated device they are on. Throws c10::Error naming `op` when they are not
// all there, or not contiguous.
int check_tensors(const char* op,
                  const std::vector<at::Tensor>& tensors,
                  const std::vector<at::Tensor>& more = {});
// A request for tensors that check_tensors() finds good.
ExchangeRequest request_of(c10d::OpType type,
                           const char* name,
                           std::vector<at::Tensor> reads,
                           std::vector<at::Tensor> writes);
// peer_latency + bytes / peer_bytes_per_s.
sim::Nanos transfer_time(size_t num_bytes);
// A message is one tensor.
void check_message(const char* op, const std::vector<at::Tensor>& tensors);

std::vector<at::Tensor> flat(const std::vector<std::vector<at::Tensor>>& lists);
size_t total_bytes(const std::vector<at::Tensor>& tensors);

// Device memory lent to the network, as CPU tensors over the same bytes. A thread of the network
// holds such a tensor a moment longer than it says that it is at work; the memory is held no longer
// than the loan lasts, or, when that never ends, than the last of them. Copies are of one loan.
class Loan {
 public:
  // The bytes, for what only moves them: of any dtype.
  at::Tensor bytes_of(const at::Tensor& tensor);
  std::vector<at::Tensor> bytes_of(const std::vector<at::Tensor>& tensors);
  std::vector<std::vector<at::Tensor>> bytes_of(const std::vector<std::vector<at::Tensor>>& lists);
  // The values, for what computes on them.
  std::vector<at::Tensor> values_of(const std::vector<at::Tensor>& tensors);
  // Nobody touches the bytes any more.
  void end() const { lent_->clear(); }

 private:
  using Lent = std::vector<c10::Storage>;

  c10::Storage lend(const c10::Storage& storage);

  std::shared_ptr<Lent> lent_ = std::make_shared<Lent>();
};

// Gloo has no PREMUL_SUM: values are scaled before it sums them. No other operation does anything.
c10d::ReduceOp without_factor(const c10d::ReduceOp& op);
void scale_in_place(const std::vector<at::Tensor>& values, const c10d::ReduceOp& op);
std::vector<at::Tensor> scaled(std::vector<at::Tensor> values, const c10d::ReduceOp& op);

// Rows of each rank, as bytes; no splits: equal shares.
std::vector<int64_t> splits_in_bytes(const at::Tensor& tensor,
                                     const std::vector<int64_t>& splits,
                                     int num_ranks);

// A message: when the sender began, how many bytes follow, and they (none in a dry run).
at::Tensor pack(const at::Tensor& tensor, sim::Nanos begin);
at::Tensor empty_message(const at::Tensor& tensor);
// Fills `tensor`; returns when the sender began. Throws c10::Error when another size was sent.
sim::Nanos unpack(const at::Tensor& message, const at::Tensor& tensor);

}  // namespace swapline::python
