#include "python/src/sim_exchange.h"

#include "sim/torch/alias.h"
#include "sim/torch/runtime.h"
#include "sim/torch/sim.h"

#include <algorithm>
#include <stdexcept>
#include <utility>

#include <ATen/core/ivalue.h>
#include <ATen/core/jit_type.h>
#include <c10/core/StreamGuard.h>

namespace swapline::python {

using sim::simulator;

Exchange::Exchange(std::shared_ptr<Exchanges> owner,
                   LaneKey lane,
                   ExchangeRequest request,
                   sim::StreamId stream,
                   std::shared_ptr<sim::EventState> event)
    : Work(-1, request.type),
      owner_(std::move(owner)),
      lane_(lane),
      request_(std::move(request)),
      stream_(stream),
      event_(std::move(event)),
      ready_(sim::Simulator::time_of(*event_)) {}

void Exchange::arrive(std::chrono::milliseconds timeout) {
  const std::lock_guard lock(arriving_);
  if (has_arrived_) {
    return;
  }
  try {
    arrival_ = arrive_(timeout);
  } catch (...) {
    error_ = std::current_exception();
  }
  has_arrived_ = true;
  arrive_ = nullptr;
}

bool Exchange::isCompleted() {
  owner_->settle(*this, kNoTimeout);
  return exception() != nullptr || simulator().is_done(*event_);
}

std::vector<at::Tensor> Exchange::result() {
  return request_.writes;
}

bool Exchange::wait(std::chrono::milliseconds timeout) {
  owner_->settle(*this, timeout);
  // Also when it failed: nothing of it is under way then.
  simulator().wait(request_.device, sim::current_stream(request_.device), *event_);
  if (request_.host_waits) {
    simulator().synchronize(*event_);
  }
  owner_->release(*this);
  if (const std::exception_ptr error = exception()) {
    std::rethrow_exception(error);
  }
  return true;
}

c10::intrusive_ptr<c10::ivalue::Future> Exchange::getFuture() {
  owner_->settle(*this, kNoTimeout);
  const std::lock_guard lock(future_mutex_);
  if (future_ == nullptr) {
    future_ = c10::make_intrusive<c10::ivalue::Future>(
        c10::ListType::create(c10::TensorType::get()),
        std::vector<c10::Device>{sim::device(request_.device)});
    if (const std::exception_ptr error = exception()) {
      future_->setError(error);
    } else {
      // It is done when this stream has come as far as it is now.
      const c10::StreamGuard guard(sim::to_stream(request_.device, stream_));
      future_->markCompleted(c10::IValue(request_.writes));
    }
  }
  return future_;
}

ExchangePtr Exchanges::begin(LaneKey key, ExchangeRequest request) {
  std::vector<sim::Access> accesses;
  for (const at::Tensor& tensor : request.reads) {
    accesses.push_back(sim::access_of(tensor, false, request.name));
  }
  for (const at::Tensor& tensor : request.writes) {
    accesses.push_back(sim::access_of(tensor, true, request.name));
  }
  release_done();
  const std::lock_guard lock(mutex_);
  const int device = request.device;
  const auto [stream, is_new] = lanes_[key].streams.try_emplace(device);
  if (is_new) {
    stream->second = simulator().new_stream(device);
  }
  const auto before = simulator().record(device, sim::current_stream(device));
  simulator().wait(device, stream->second, *before);
  auto event = simulator().begin_exchange(device, stream->second, request.name, accesses);
  return c10::make_intrusive<Exchange>(
      shared_from_this(), key, std::move(request), stream->second, std::move(event));
}

void Exchanges::start(const ExchangePtr& exchange, Exchange::Arrive arrive) {
  exchange->arrive_ = std::move(arrive);
  const std::lock_guard lock(mutex_);
  lanes_[exchange->lane_].open.push_back(exchange);
  held_.push_back(exchange);
}

void Exchanges::cancel(const ExchangePtr& exchange) {
  const int device = exchange->request_.device;
  simulator().wait(device, sim::current_stream(device), *exchange->event_);
}

sim::Nanos Exchanges::end_of(LaneKey lane) const {
  const std::lock_guard lock(mutex_);
  const auto found = lanes_.find(lane);
  return found == lanes_.end() ? 0 : found->second.end;
}

void Exchanges::settle(Exchange& exchange, std::chrono::milliseconds timeout) {
  for (;;) {
    ExchangePtr first;
    {
      const std::lock_guard lock(mutex_);
      if (exchange.is_settled_) {
        return;
      }
      first = lanes_[exchange.lane_].open.front();
    }
    first->arrive(first.get() == &exchange ? timeout : kNoTimeout);
    const std::lock_guard lock(mutex_);
    if (!first->is_settled_) {  // by another thread
      Lane& lane = lanes_[exchange.lane_];
      finish(lane, *first);
      lane.open.pop_front();
    }
  }
}

void Exchanges::finish(Lane& lane, Exchange& exchange) {
  exchange.is_settled_ = true;
  if (exchange.error_ == nullptr) {
    const Arrival& arrival = exchange.arrival_;
    const sim::Nanos begin = std::max({arrival.begin, exchange.ready_, lane.end});
    lane.end = begin + arrival.duration;
    simulator().end_exchange(*exchange.event_,
                             exchange.stream_,
                             exchange.request_.name,
                             exchange.request_.moved_bytes,
                             begin,
                             lane.end);
  }
  exchange.finish(exchange.error_);
}

void Exchanges::settle(int device) {
  std::list<ExchangePtr> begun;
  {
    const std::lock_guard lock(mutex_);
    begun = held_;
  }
  for (const ExchangePtr& exchange : begun) {
    if (exchange->request_.device == device) {
      settle(*exchange, kNoTimeout);  // its error waits for whoever waits for it
      simulator().synchronize(*exchange->event_);
      release(*exchange);
    }
  }
}

void Exchanges::release(Exchange& exchange) {
  ExchangePtr last;  // tensors must not die under the lock: Python may have to be asked
  std::vector<at::Tensor> reads;
  const std::lock_guard lock(mutex_);
  reads.swap(exchange.request_.reads);
  const auto found = std::find_if(
      held_.begin(), held_.end(), [&](const ExchangePtr& each) { return each.get() == &exchange; });
  if (found != held_.end()) {
    last = std::move(*found);
    held_.erase(found);
  }
}

void Exchanges::release_done() {
  std::vector<ExchangePtr> done;
  const std::lock_guard lock(mutex_);
  for (auto each = held_.begin(); each != held_.end();) {
    const Exchange& exchange = **each;
    const bool is_over =
        exchange.is_settled_ && sim::Simulator::time_of(*exchange.event_) <=
                                    simulator().host_time(exchange.request_.device);
    if (is_over && simulator().is_done(*exchange.event_)) {
      done.push_back(std::move(*each));
      each = held_.erase(each);
    } else {
      ++each;
    }
  }
}

void Exchanges::fail_open(const char* why) {
  for (auto& [key, lane] : lanes_) {
    for (const ExchangePtr& exchange : lane.open) {
      exchange->is_settled_ = true;
      exchange->finish(std::make_exception_ptr(std::runtime_error(why)));
    }
    lane.open.clear();
  }
}

void Exchanges::forget_machine() {
  std::list<ExchangePtr> held;
  const std::lock_guard lock(mutex_);
  fail_open("the simulated machine was replaced before the exchange was waited for");
  lanes_.clear();
  held.swap(held_);
}

void Exchanges::close() {
  std::list<ExchangePtr> held;
  const std::lock_guard lock(mutex_);
  fail_open("the process group was destroyed before the exchange was waited for");
  held.swap(held_);
}

}  // namespace swapline::python
