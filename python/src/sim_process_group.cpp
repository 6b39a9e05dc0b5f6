// The collectives of the process group.
#include "python/src/sim_process_group.h"

#include "python/src/sim_network.h"
#include "sim/torch/runtime.h"
#include "sim/torch/sim.h"

#include <algorithm>
#include <utility>

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>

namespace swapline::python {

using c10d::OpType;
using sim::simulator;

namespace {

using Tensors = SimProcessGroup::Tensors;

constexpr LaneKey kCollectives{LaneKey::Kind::kCollectives};

std::vector<int64_t> sizes_in_bytes(const Tensors& tensors) {
  std::vector<int64_t> sizes;
  for (const at::Tensor& tensor : tensors) {
    sizes.push_back(static_cast<int64_t>(tensor.nbytes()));
  }
  return sizes;
}

// The network is never waited for where a call is made.
template <typename Options>
Options asynchronous(Options options) {
  options.asyncOp = true;
  return options;
}

}  // namespace

SimProcessGroup::SimProcessGroup(c10::intrusive_ptr<c10d::Backend> network)
    : Backend(network->getRank(), network->getSize()),
      network_(std::move(network)),
      exchanges_(std::make_shared<Exchanges>()) {
  sim::add_pending_work(exchanges_);
}

SimProcessGroup::~SimProcessGroup() {
  exchanges_->close();
}

void SimProcessGroup::abort() {
  courier_.abort();
  exchanges_->close();
  network_->abort();
}

void SimProcessGroup::shutdown() {
  courier_.wait_for_all();
  network_->shutdown();
}

size_t SimProcessGroup::share(size_t whole) const {
  return whole / static_cast<size_t>(size_) * static_cast<size_t>(size_ - 1);
}

SimProcessGroup::WorkPtr SimProcessGroup::run(ExchangeRequest request,
                                              const std::function<Underway(Loan&)>& data) {
  courier_.check();
  const std::lock_guard lock(mutex_);
  const auto moved = static_cast<int64_t>(request.moved_bytes);
  const ExchangePtr exchange = exchanges_->begin(kCollectives, std::move(request));
  Loan loan;
  Underway bytes;
  WorkPtr times;
  // Of each rank: when it is ready, and what it moves.
  const at::Tensor table = at::empty({size_, 2}, at::kLong);
  try {
    if (data && !simulator().is_dry_run()) {
      bytes = data(loan);
    }
    at::Tensor own = at::empty({1, 2}, at::kLong);
    own.mutable_data_ptr<int64_t>()[0] = exchange->ready();
    own.mutable_data_ptr<int64_t>()[1] = moved;
    at::Tensor gathered = table;
    times = network_->_allgather_base(gathered, own);
  } catch (...) {
    exchanges_->cancel(exchange);
    throw;
  }
  const auto arrive = [loan, bytes, times, table](std::chrono::milliseconds timeout) {
    if (bytes.work) {
      bytes.work->wait(timeout);
    }
    if (bytes.land) {
      bytes.land();
    }
    loan.end();
    times->wait(timeout);
    const int64_t num_ranks = table.size(0);
    const auto* of_rank = table.const_data_ptr<int64_t>();
    Arrival arrival;
    int64_t most = 0;
    for (int64_t rank = 0; rank < num_ranks; ++rank) {
      arrival.begin = std::max<sim::Nanos>(arrival.begin, of_rank[2 * rank]);
      most = std::max(most, of_rank[2 * rank + 1]);
    }
    arrival.duration = num_ranks == 1 ? simulator().options().spec.launch_latency
                                      : transfer_time(static_cast<size_t>(most));
    return arrival;
  };
  exchanges_->start(exchange, arrive);
  return exchange;
}

SimProcessGroup::WorkPtr SimProcessGroup::broadcast(Tensors& tensors,
                                                    const c10d::BroadcastOptions& options) {
  const bool is_root = options.rootRank == rank_;
  ExchangeRequest request = request_of(
      OpType::BROADCAST, "broadcast", is_root ? tensors : Tensors(), is_root ? Tensors() : tensors);
  request.moved_bytes = size_ == 1 ? 0 : total_bytes(tensors);
  return run(std::move(request), [&](Loan& loan) {
    Tensors bytes = loan.bytes_of(tensors);
    return network_->broadcast(bytes, asynchronous(options));
  });
}

SimProcessGroup::WorkPtr SimProcessGroup::all_reduce(OpType type,
                                                     const char* name,
                                                     Tensors& tensors,
                                                     const c10d::ReduceOp& op,
                                                     const std::function<WorkPtr(Tensors&)>& data) {
  ExchangeRequest request = request_of(type, name, {}, tensors);
  request.moved_bytes = 2 * share(total_bytes(tensors));
  return run(std::move(request), [&](Loan& loan) {
    Tensors values = loan.values_of(tensors);
    scale_in_place(values, op);
    return data(values);
  });
}

SimProcessGroup::WorkPtr SimProcessGroup::allreduce(Tensors& tensors,
                                                    const c10d::AllreduceOptions& options) {
  auto given = asynchronous(options);
  given.reduceOp = without_factor(options.reduceOp);
  return all_reduce(
      OpType::ALLREDUCE, "all_reduce", tensors, options.reduceOp, [&](Tensors& values) {
        return network_->allreduce(values, given);
      });
}

SimProcessGroup::WorkPtr SimProcessGroup::allreduce_coalesced(
    Tensors& tensors, const c10d::AllreduceCoalescedOptions& options) {
  auto given = asynchronous(options);
  given.reduceOp = without_factor(options.reduceOp);
  return all_reduce(
      OpType::ALLREDUCE_COALESCED, "all_reduce", tensors, options.reduceOp, [&](Tensors& values) {
        return network_->allreduce_coalesced(values, given);
      });
}

SimProcessGroup::WorkPtr SimProcessGroup::reduce(Tensors& tensors,
                                                 const c10d::ReduceOptions& options) {
  // Every rank's tensor is written: gloo leaves partial sums in it.
  ExchangeRequest request = request_of(OpType::REDUCE, "reduce", {}, tensors);
  request.moved_bytes = size_ == 1 ? 0 : total_bytes(tensors);
  return run(std::move(request), [&](Loan& loan) {
    Tensors values = loan.values_of(tensors);
    scale_in_place(values, options.reduceOp);
    auto given = asynchronous(options);
    given.reduceOp = without_factor(options.reduceOp);
    return network_->reduce(values, given);
  });
}

SimProcessGroup::WorkPtr SimProcessGroup::allgather(TensorLists& outputs,
                                                    Tensors& inputs,
                                                    const c10d::AllgatherOptions& options) {
  ExchangeRequest request = request_of(OpType::ALLGATHER, "all_gather", inputs, flat(outputs));
  request.moved_bytes = share(total_bytes(request.writes));
  return run(std::move(request), [&](Loan& loan) {
    TensorLists into = loan.bytes_of(outputs);
    Tensors from = loan.bytes_of(inputs);
    return network_->allgather(into, from, asynchronous(options));
  });
}

SimProcessGroup::WorkPtr SimProcessGroup::_allgather_base(at::Tensor& output,
                                                          at::Tensor& input,
                                                          const c10d::AllgatherOptions& options) {
  Tensors outputs{output};
  Tensors inputs{input};
  ExchangeRequest request = request_of(OpType::_ALLGATHER_BASE, "all_gather", inputs, outputs);
  request.moved_bytes = share(total_bytes(outputs));
  return run(std::move(request), [&](Loan& loan) {
    at::Tensor into = loan.bytes_of(output);
    at::Tensor from = loan.bytes_of(input);
    return network_->_allgather_base(into, from, asynchronous(options));
  });
}

SimProcessGroup::WorkPtr SimProcessGroup::allgather_into_tensor_coalesced(
    Tensors& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) {
  ExchangeRequest request = request_of(OpType::ALLGATHER_COALESCED, "all_gather", inputs, outputs);
  request.moved_bytes = share(total_bytes(outputs));
  return run(std::move(request), [&](Loan& loan) {
    Tensors into = loan.bytes_of(outputs);
    Tensors from = loan.bytes_of(inputs);
    return network_->allgather_into_tensor_coalesced(into, from, asynchronous(options));
  });
}

SimProcessGroup::WorkPtr SimProcessGroup::gather(TensorLists& outputs,
                                                 Tensors& inputs,
                                                 const c10d::GatherOptions& options) {
  ExchangeRequest request = request_of(OpType::GATHER, "gather", inputs, flat(outputs));
  request.moved_bytes = total_bytes(inputs) * static_cast<size_t>(size_ - 1);
  return run(std::move(request), [&](Loan& loan) {
    TensorLists into = loan.bytes_of(outputs);
    Tensors from = loan.bytes_of(inputs);
    return network_->gather(into, from, asynchronous(options));
  });
}

SimProcessGroup::WorkPtr SimProcessGroup::scatter(Tensors& outputs,
                                                  TensorLists& inputs,
                                                  const c10d::ScatterOptions& options) {
  ExchangeRequest request = request_of(OpType::SCATTER, "scatter", flat(inputs), outputs);
  request.moved_bytes = total_bytes(outputs) * static_cast<size_t>(size_ - 1);
  return run(std::move(request), [&](Loan& loan) {
    Tensors into = loan.bytes_of(outputs);
    TensorLists from = loan.bytes_of(inputs);
    return network_->scatter(into, from, asynchronous(options));
  });
}

SimProcessGroup::WorkPtr SimProcessGroup::reduce_scatter(
    Tensors& outputs, TensorLists& inputs, const c10d::ReduceScatterOptions& options) {
  ExchangeRequest request =
      request_of(OpType::REDUCE_SCATTER, "reduce_scatter", flat(inputs), outputs);
  request.moved_bytes = share(total_bytes(request.reads));
  return run(std::move(request), [&](Loan& loan) {
    Tensors into = loan.values_of(outputs);
    TensorLists from;
    for (const Tensors& list : inputs) {
      from.push_back(scaled(loan.values_of(list), options.reduceOp));
    }
    auto given = asynchronous(options);
    given.reduceOp = without_factor(options.reduceOp);
    return network_->reduce_scatter(into, from, given);
  });
}

SimProcessGroup::WorkPtr SimProcessGroup::_reduce_scatter_base(
    at::Tensor& output, at::Tensor& input, const c10d::ReduceScatterOptions& options) {
  Tensors outputs{output};
  Tensors inputs{input};
  ExchangeRequest request =
      request_of(OpType::_REDUCE_SCATTER_BASE, "reduce_scatter", inputs, outputs);
  request.moved_bytes = share(total_bytes(inputs));
  return run(std::move(request), [&](Loan& loan) {
    at::Tensor into = loan.values_of(outputs)[0];
    at::Tensor from = scaled(loan.values_of(inputs), options.reduceOp)[0];
    auto given = asynchronous(options);
    given.reduceOp = without_factor(options.reduceOp);
    return network_->_reduce_scatter_base(into, from, given);
  });
}

SimProcessGroup::WorkPtr SimProcessGroup::reduce_scatter_tensor_coalesced(
    Tensors& outputs, Tensors& inputs, const c10d::ReduceScatterOptions& options) {
  ExchangeRequest request =
      request_of(OpType::REDUCE_SCATTER_TENSOR_COALESCED, "reduce_scatter", inputs, outputs);
  request.moved_bytes = share(total_bytes(inputs));
  return run(std::move(request), [&](Loan& loan) {
    Tensors into = loan.values_of(outputs);
    Tensors from = scaled(loan.values_of(inputs), options.reduceOp);
    auto given = asynchronous(options);
    given.reduceOp = without_factor(options.reduceOp);
    return network_->reduce_scatter_tensor_coalesced(into, from, given);
  });
}

SimProcessGroup::WorkPtr SimProcessGroup::alltoall_base(at::Tensor& output,
                                                        at::Tensor& input,
                                                        std::vector<int64_t>& output_splits,
                                                        std::vector<int64_t>& input_splits,
                                                        const c10d::AllToAllOptions& options) {
  Tensors outputs{output};
  Tensors inputs{input};
  auto into_splits = splits_in_bytes(output, output_splits, size_);
  auto from_splits = splits_in_bytes(input, input_splits, size_);
  ExchangeRequest request = request_of(OpType::ALLTOALL_BASE, "all_to_all", inputs, outputs);
  request.moved_bytes =
      std::max(total_bytes(inputs) - from_splits[rank_], total_bytes(outputs) - into_splits[rank_]);
  return run(std::move(request), [&](Loan& loan) {
    at::Tensor into = loan.bytes_of(output);
    at::Tensor from = loan.bytes_of(input);
    return network_->alltoall_base(into, from, into_splits, from_splits, asynchronous(options));
  });
}

SimProcessGroup::WorkPtr SimProcessGroup::alltoall(Tensors& outputs,
                                                   Tensors& inputs,
                                                   const c10d::AllToAllOptions& options) {
  const auto is_ranks =
      static_cast<int64_t>(outputs.size()) == size_ && static_cast<int64_t>(inputs.size()) == size_;
  TORCH_CHECK(is_ranks,
              "all_to_all takes a tensor for each of the ",
              size_,
              " ranks; got ",
              inputs.size(),
              " to send and ",
              outputs.size(),
              " to fill");
  ExchangeRequest request = request_of(OpType::ALLTOALL, "all_to_all", inputs, outputs);
  request.moved_bytes = std::max(total_bytes(inputs) - inputs[rank_].nbytes(),
                                 total_bytes(outputs) - outputs[rank_].nbytes());
  return run(std::move(request), [&](Loan& loan) -> Underway {
    // Gloo takes tensors of any size only as parts of one.
    at::Tensor from = at::cat(loan.bytes_of(inputs));
    at::Tensor into = at::empty({static_cast<int64_t>(total_bytes(outputs))}, at::kByte);
    const auto sizes = sizes_in_bytes(outputs);
    auto into_splits = sizes;  // these are moved from
    auto from_splits = sizes_in_bytes(inputs);
    auto work =
        network_->alltoall_base(into, from, into_splits, from_splits, asynchronous(options));
    return {work, [into, parts = loan.bytes_of(outputs), sizes] {
              const auto landed = into.split_with_sizes(sizes);
              for (size_t rank = 0; rank < parts.size(); ++rank) {
                parts[rank].copy_(landed[rank]);
              }
            }};
  });
}

SimProcessGroup::WorkPtr SimProcessGroup::barrier(const c10d::BarrierOptions& options) {
  ExchangeRequest request{OpType::BARRIER, "barrier"};
  const auto given = options.device.value_or(sim::device(-1)).index();
  request.device = !options.device_ids.empty() ? static_cast<int>(options.device_ids[0])
                   : given >= 0                ? given
                                               : sim::current_device();
  request.host_waits = true;
  return run(std::move(request), nullptr);
}

void init_process_group(py::module_& module) {
  module.def(
      "make_process_group",
      [](const c10::intrusive_ptr<c10d::Backend>& network) -> c10::intrusive_ptr<c10d::Backend> {
        return c10::make_intrusive<SimProcessGroup>(network);
      },
      ReleaseGil());
}

}  // namespace swapline::python
