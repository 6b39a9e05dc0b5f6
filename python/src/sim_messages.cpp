// The messages of the process group: one rank to one other.
#include "python/src/sim_network.h"
#include "python/src/sim_process_group.h"

#include <algorithm>
#include <utility>

namespace swapline::python {

using c10d::OpType;

SimProcessGroup::WorkPtr SimProcessGroup::send(Tensors& tensors, int peer, int tag) {
  courier_.check();
  check_message("send", tensors);
  const size_t num_bytes = tensors[0].nbytes();
  ExchangeRequest request = request_of(OpType::SEND, "send", tensors, {});
  request.moved_bytes = num_bytes;
  const LaneKey lane{LaneKey::Kind::kSend, peer};
  const std::lock_guard lock(mutex_);
  const ExchangePtr exchange = exchanges_->begin(lane, std::move(request));
  const sim::Nanos begin = std::max(exchange->ready(), exchanges_->end_of(lane));
  try {
    Tensors message{pack(tensors[0], begin)};
    courier_.post(network_->send(message, peer, tag));
  } catch (...) {
    exchanges_->cancel(exchange);
    throw;
  }
  exchanges_->start(exchange, [begin, num_bytes](std::chrono::milliseconds) {
    return Arrival{begin, transfer_time(num_bytes)};
  });
  exchanges_->settle(*exchange, kNoTimeout);
  return exchange;
}

SimProcessGroup::WorkPtr SimProcessGroup::receive(Tensors& tensors,
                                                  LaneKey lane,
                                                  const std::function<WorkPtr(Tensors&)>& data) {
  courier_.check();
  check_message("recv", tensors);
  const size_t num_bytes = tensors[0].nbytes();
  ExchangeRequest request = request_of(OpType::RECV, "recv", {}, tensors);
  request.moved_bytes = num_bytes;
  const std::lock_guard lock(mutex_);
  const ExchangePtr exchange = exchanges_->begin(lane, std::move(request));
  const at::Tensor message = empty_message(tensors[0]);
  WorkPtr arriving;
  try {
    Tensors messages{message};
    arriving = data(messages);
  } catch (...) {
    exchanges_->cancel(exchange);
    throw;
  }
  const at::Tensor into = tensors[0];
  exchanges_->start(exchange, [arriving, message, into, num_bytes](auto timeout) {
    arriving->wait(timeout);
    Arrival arrival;
    arrival.begin = unpack(message, into);
    arrival.duration = transfer_time(num_bytes);
    arrival.source = arriving->sourceRank();
    return arrival;
  });
  return exchange;
}

SimProcessGroup::WorkPtr SimProcessGroup::recv(Tensors& tensors, int peer, int tag) {
  return receive(tensors, {LaneKey::Kind::kReceive, peer}, [&](Tensors& message) {
    return network_->recv(message, peer, tag);
  });
}

SimProcessGroup::WorkPtr SimProcessGroup::recvAnysource(Tensors& tensors, int tag) {
  return receive(tensors, {LaneKey::Kind::kReceiveAny}, [&](Tensors& message) {
    return network_->recvAnysource(message, tag);
  });
}

}  // namespace swapline::python
