// Tensors that travel between the stages of a pipeline, from device to device.
//
// Each pair of devices has a stream of its own for each kind of tensor, so that a tensor leaves as
// soon as it is made and its place is free, whatever else is on its way. A receiver names what it
// waits for one action ahead: then the copy runs under that action. The sender keeps a tensor until
// its copy is done, which its compute stream is told one action later, when that costs nothing.
#pragma once

#include "swapline/memory/shared_event.h"
#include "trainer/device.h"
#include "trainer/pipeline/schedule.h"

#include <compare>
#include <cstddef>
#include <map>
#include <tuple>
#include <vector>

#include <ATen/core/Tensor.h>

namespace swapline::trainer {

// One tensor on its way, of one lane (expert rank) of the pipeline.
struct Parcel {
  Transfer::Kind kind;
  int to_stage = 0;
  int microbatch = 0;
  int lane = 0;
  auto operator<=>(const Parcel&) const = default;
};

class PeerLinks {
 public:
  // `devices` must outlive the links.
  explicit PeerLinks(std::vector<Device*> devices);
  // After an exception tensors may be under way: their memory goes when their copies are done.
  ~PeerLinks();
  PeerLinks(const PeerLinks&) = delete;
  PeerLinks& operator=(const PeerLinks&) = delete;

  // The receiver's side, before it is needed: a place for the tensor on device `to`, free from now
  // on the current stream there. Asking twice is allowed.
  void expect(const Parcel& parcel, size_t from, size_t to, at::IntArrayRef sizes, at::ScalarType);
  // The sender's side, behind the tensor's producer on the current stream of `from`.
  void send(const Parcel& parcel, size_t from, at::Tensor tensor);
  bool is_sent(const Parcel& parcel) const;
  // The tensor, usable on the current stream of its device. Requires: expected and sent.
  at::Tensor receive(const Parcel& parcel);

  // Device `from` begins another action: what it sent before its last one is let go of.
  void begin_action(size_t from);
  // The end of a step: all that was sent is let go of.
  void finish();

 private:
  struct Place {
    size_t from = 0;
    size_t to = 0;
    at::Tensor tensor;
    SharedEvent is_free;
  };
  struct Departure {
    at::Tensor tensor;
    SharedEvent is_made;
  };
  struct Sent {
    Parcel parcel;
    at::Tensor tensor;
    SharedEvent is_copied;
    int actions = 0;  // of the sender since
  };

  void copy(const Parcel& parcel);
  c10::Stream stream_of(size_t device, size_t other, const Parcel& parcel);
  void let_go(size_t from, int least_actions);

  std::vector<Device*> devices_;
  std::map<std::tuple<size_t, size_t, Transfer::Kind>, c10::Stream> streams_;
  std::map<Parcel, Place> places_;
  std::map<Parcel, Departure> departures_;
  std::map<Parcel, std::pair<at::Tensor, SharedEvent>> arrived_;
  std::vector<std::vector<Sent>> sent_;  // by device, oldest first
};

}  // namespace swapline::trainer
