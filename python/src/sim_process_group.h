// torch.distributed's backend for the simulated device: "swapline".
//
// Numbers travel by a gloo backend of the group's own, on CPU aliases of the device tensors, so a
// reduction has the bits that gloo gives on the CPU. Virtual time travels beside them: a collective
// starts when its last rank is ready and ends on all ranks at one time.
//
// With n ranks, and for each rank the bytes that a ring algorithm moves over its slowest link, a
// collective takes  peer_latency + moved / peer_bytes_per_s  of the DeviceSpec, or launch_latency
// when n is 1. The largest figure of all ranks counts.
//
//   all_reduce                   2 (n-1)/n of its tensor
//   all_gather, reduce_scatter   (n-1)/n of the whole
//   broadcast, reduce            its tensor
//   gather, scatter              n-1 pieces at the root
//   all_to_all                   what leaves the rank, or what comes if that is more
//   barrier                      nothing
//
// A message takes peer_latency + bytes / peer_bytes_per_s from when both sides are ready. A send is
// buffered: the sender goes on when its bytes have left, whether or not anybody receives.
//
// Numbers are computed eagerly, so wait() blocks the calling thread until the other ranks have come
// as far: a rank must not wait for what another sends only after something of this rank's future.
#pragma once

#include "python/src/bindings.h"
#include "python/src/sim_courier.h"
#include "python/src/sim_exchange.h"
#include "python/src/sim_network.h"

#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include <torch/csrc/distributed/c10d/Backend.hpp>

namespace swapline::python {

class SimProcessGroup final : public c10d::Backend {
 public:
  using WorkPtr = c10::intrusive_ptr<c10d::Work>;
  using Tensors = std::vector<at::Tensor>;
  using TensorLists = std::vector<std::vector<at::Tensor>>;

  // `network`: gloo, used by nobody else.
  explicit SimProcessGroup(c10::intrusive_ptr<c10d::Backend> network);
  ~SimProcessGroup() override;

  const std::string getBackendName() const override { return "swapline"; }
  c10::intrusive_ptr<Options> getBackendOptions() override { return network_->getBackendOptions(); }
  void setTimeout(std::chrono::milliseconds timeout) override { network_->setTimeout(timeout); }
  void setSequenceNumberForGroup() override { network_->setSequenceNumberForGroup(); }
  uint64_t getSequenceNumberForGroup() override { return network_->getSequenceNumberForGroup(); }
  void abort() override;
  void shutdown() override;  // waits until every message was taken

  WorkPtr broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) override;
  WorkPtr allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) override;
  WorkPtr allreduce_coalesced(Tensors& tensors,
                              const c10d::AllreduceCoalescedOptions& options) override;
  WorkPtr reduce(Tensors& tensors, const c10d::ReduceOptions& options) override;
  WorkPtr allgather(TensorLists& outputs,
                    Tensors& inputs,
                    const c10d::AllgatherOptions& options) override;
  WorkPtr _allgather_base(at::Tensor& output,
                          at::Tensor& input,
                          const c10d::AllgatherOptions& options) override;
  WorkPtr allgather_into_tensor_coalesced(Tensors& outputs,
                                          Tensors& inputs,
                                          const c10d::AllgatherOptions& options) override;
  WorkPtr gather(TensorLists& outputs,
                 Tensors& inputs,
                 const c10d::GatherOptions& options) override;
  WorkPtr scatter(Tensors& outputs,
                  TensorLists& inputs,
                  const c10d::ScatterOptions& options) override;
  WorkPtr reduce_scatter(Tensors& outputs,
                         TensorLists& inputs,
                         const c10d::ReduceScatterOptions& options) override;
  WorkPtr _reduce_scatter_base(at::Tensor& output,
                               at::Tensor& input,
                               const c10d::ReduceScatterOptions& options) override;
  WorkPtr reduce_scatter_tensor_coalesced(Tensors& outputs,
                                          Tensors& inputs,
                                          const c10d::ReduceScatterOptions& options) override;
  WorkPtr alltoall_base(at::Tensor& output,
                        at::Tensor& input,
                        std::vector<int64_t>& output_splits,
                        std::vector<int64_t>& input_splits,
                        const c10d::AllToAllOptions& options) override;
  WorkPtr alltoall(Tensors& outputs,
                   Tensors& inputs,
                   const c10d::AllToAllOptions& options) override;
  WorkPtr send(Tensors& tensors, int peer, int tag) override;
  WorkPtr recv(Tensors& tensors, int peer, int tag) override;
  WorkPtr recvAnysource(Tensors& tensors, int tag) override;
  WorkPtr barrier(const c10d::BarrierOptions& options) override;

 private:
  // Bytes on their way, and what is to be done when they have arrived.
  struct Underway {
    Underway() = default;
    // NOLINTNEXTLINE(google-explicit-constructor): most have nothing to do then
    Underway(WorkPtr given, std::function<void()> then = {})
        : work(std::move(given)), land(std::move(then)) {}
    WorkPtr work;
    std::function<void()> land;
  };

  // Begins the exchange and hands the bytes (`data`, not in a dry run) and the times to the
  // network.
  WorkPtr run(ExchangeRequest request, const std::function<Underway(Loan&)>& data);
  WorkPtr all_reduce(c10d::OpType type,
                     const char* name,
                     Tensors& tensors,
                     const c10d::ReduceOp& op,
                     const std::function<WorkPtr(Tensors&)>& data);
  WorkPtr receive(Tensors& tensors, LaneKey lane, const std::function<WorkPtr(Tensors&)>& data);
  size_t share(size_t whole) const;  // (n-1)/n of it

  const c10::intrusive_ptr<c10d::Backend> network_;
  const std::shared_ptr<Exchanges> exchanges_;
  std::mutex mutex_;  // what is begun goes to the network in the same order
  Courier courier_;
};

}  // namespace swapline::python
