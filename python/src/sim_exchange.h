// What a process group does with the machines of other processes, in virtual time.
//
// An exchange (a collective, a message) runs on a stream of its lane, behind what the current
// stream holds when it is begun, as one that nothing else of the machine can see. It is settled
// when the others' times have arrived: then it has a begin and an end, the bytes are in place, and
// a stream can wait for it. Exchanges of a lane run one after another and are settled in order; a
// lane is the group's collectives, or the messages to or from one peer. Exchanges of different
// lanes do not compete for the link.
//
//   begin      accesses checked, this machine's ready time known
//   start      the caller hands the bytes and the ready time to the network
//   settle     blocks the calling thread until the network has brought everything (never its lock)
//   wait       settle, and the current stream waits for the end
#pragma once

#include "sim/core/simulator.h"
#include "sim/torch/pending_work.h"

#include <chrono>
#include <deque>
#include <exception>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/distributed/c10d/Work.hpp>

namespace swapline::python {

class Exchanges;

// What the others said. `begin`: not before this, this machine's own ready time left aside.
struct Arrival {
  sim::Nanos begin = 0;
  sim::Nanos duration = 0;
  int source = -1;  // of a message
};

// Which exchanges wait for each other.
struct LaneKey {
  enum class Kind { kCollectives, kSend, kReceive, kReceiveAny } kind;
  int peer = -1;
  auto operator<=>(const LaneKey&) const = default;
};

struct ExchangeRequest {
  c10d::OpType type = c10d::OpType::UNKNOWN;
  const char* name = "";
  int device = 0;
  std::vector<at::Tensor> reads = {};  // kept alive until the exchange is waited for or done
  std::vector<at::Tensor> writes = {};
  size_t moved_bytes = 0;   // by this machine, for the counters
  bool host_waits = false;  // wait() is for the host too
};

class Exchange final : public c10d::Work {
 public:
  // Blocks until the network has brought everything; throws its errors. Called once.
  using Arrive = std::function<Arrival(std::chrono::milliseconds timeout)>;

  Exchange(std::shared_ptr<Exchanges> owner,
           LaneKey lane,
           ExchangeRequest request,
           sim::StreamId stream,
           std::shared_ptr<sim::EventState> event);

  sim::Nanos ready() const { return ready_; }

  // At the host's virtual time. Blocks until it is settled: whether the network has brought a
  // message can only be found by waiting.
  bool isCompleted() override;
  int sourceRank() const override { return arrival_.source; }
  std::vector<at::Tensor> result() override;
  // The current stream of the device waits. The numbers are there afterwards. `timeout`: of the
  // network, for a message.
  bool wait(std::chrono::milliseconds timeout) override;
  void synchronize() override { wait(kNoTimeout); }
  void blockCurrentStream() override { wait(kNoTimeout); }
  // Settles the exchange; done when the exchange is.
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;

 private:
  friend class Exchanges;

  void arrive(std::chrono::milliseconds timeout);

  const std::shared_ptr<Exchanges> owner_;
  const LaneKey lane_;
  ExchangeRequest request_;
  const sim::StreamId stream_;
  const std::shared_ptr<sim::EventState> event_;
  const sim::Nanos ready_;

  std::mutex arriving_;  // before the next three
  Arrive arrive_;
  bool has_arrived_ = false;
  Arrival arrival_;
  std::exception_ptr error_;

  bool is_settled_ = false;  // with the owner's lock
  std::mutex future_mutex_;
  c10::intrusive_ptr<c10::ivalue::Future> future_;
};

using ExchangePtr = c10::intrusive_ptr<Exchange>;

// Thread-safe. Owned by its group and by the exchanges that are not waited for yet.
class Exchanges final : public sim::PendingWork, public std::enable_shared_from_this<Exchanges> {
 public:
  // Throws c10::Error when a tensor's memory is not there; nothing was begun then.
  ExchangePtr begin(LaneKey lane, ExchangeRequest request);
  // It is under way: `arrive` tells how it went.
  void start(const ExchangePtr& exchange, Exchange::Arrive arrive);
  // It could not be started: the current stream goes on as if it had never begun.
  void cancel(const ExchangePtr& exchange);
  // When the lane's last settled exchange ended.
  sim::Nanos end_of(LaneKey lane) const;

  void settle(Exchange& exchange, std::chrono::milliseconds timeout);
  void settle(int device) override;
  void forget_machine() override;
  // Fails what is under way and lets go of everything.
  void close();

 private:
  friend class Exchange;

  struct Lane {
    std::map<int, sim::StreamId> streams;  // by device
    sim::Nanos end = 0;
    std::deque<ExchangePtr> open;
  };

  void finish(Lane& lane, Exchange& exchange);
  void fail_open(const char* why);
  void release(Exchange& exchange);
  void release_done();

  mutable std::mutex mutex_;
  std::map<LaneKey, Lane> lanes_;
  std::list<ExchangePtr> held_;  // begun and not waited for: their tensors must live
};

}  // namespace swapline::python
