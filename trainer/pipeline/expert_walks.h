// Walks of one micro-batch over the layers of a stage whose lanes share experts. A walk stops
// wherever something is under way: then the other walk, of another micro-batch in the other
// direction, may have the devices, or send what it has to send along. Both stop three times for
// each layer with experts.
#pragma once

#include "swapline/layer_input/layer_inputs.h"
#include "trainer/models/layer.h"
#include "trainer/parallel/lanes.h"
#include "trainer/pipeline/expert_run.h"
#include "trainer/pipeline/stage_graph.h"

#include <cstddef>
#include <functional>
#include <optional>
#include <span>
#include <utility>
#include <vector>

namespace swapline::trainer {

// A layer's run, from forward to backward.
struct LayerPass {
  std::vector<SavedInput> saved;    // with recompute, one a lane
  std::optional<ExpertRun> expert;  // of a layer with experts
  PerLane inputs;                   // of a layer without: leaf and end of its graph, if kept
  PerLane outputs;
};

// A micro-batch in a stage, from forward to backward.
struct MicrobatchPass {
  std::vector<LayerPass> layers;
  std::vector<StageGraph> embeddings;  // of the first stage
  PerLane loss_gradients;              // of the last stage
};

// What one stage runs with. All it names must outlive the walks.
struct StageSetting {
  std::vector<std::span<const LayerPtr>> layers;  // by lane
  std::vector<LayerInputs*> inputs;               // by lane; empty: none is saved
  const Lanes* forward_lanes = nullptr;
  const Lanes* backward_lanes = nullptr;
  const std::vector<CountCopies>* counts = nullptr;  // by lane
  bool recomputes = true;  // else the forward's graphs stay for the backward

  size_t num_lanes() const { return layers.size(); }
  size_t num_layers() const { return layers.front().size(); }

  // On each lane; empty when the layer has no experts.
  std::vector<const ExpertLayer*> experts_of(size_t layer) const;
};

// What walks in both directions have in common: shipments that leave between two pieces.
class ExpertWalk {
 public:
  // Of the last piece, until it is sent.
  const Shipment* shipment() const { return shipment_ ? &*shipment_ : nullptr; }
  void send();
  // Sends what there is of two walks as one, and waits for it.
  static void send_together(ExpertWalk& a, ExpertWalk& b);

 protected:
  explicit ExpertWalk(const Lanes& lanes) : lanes_(lanes) {}
  void leave(Shipment shipment) { shipment_ = std::move(shipment); }
  std::vector<PerLane> take_arrived();

 private:
  const Lanes& lanes_;
  std::optional<Shipment> shipment_;
  std::optional<Exchange> under_way_;
  std::vector<PerLane> arrived_;
};

class ForwardWalk : public ExpertWalk {
 public:
  // From the stage's input on each lane.
  ForwardWalk(const StageSetting& setting, MicrobatchPass& pass, PerLane hidden_states);

  // On to where counts or tokens are to travel, or to the end of the stage. What there was to send
  // must have been sent.
  void advance();
  bool is_done() const { return piece_ == Piece::kNone; }
  // Counts are under way; what waits for them will send so much from a lane. Else nothing.
  std::optional<int64_t> num_bytes_to_experts() const;
  PerLane take_output() { return std::move(hidden_); }

 private:
  // What comes next, of the next layer.
  enum class Piece { kRoute, kAttend, kExperts, kMerge, kNone };

  // Layers without experts, up to the next one with.
  void begin_layers();
  void save_inputs(LayerPass& layer);
  void run_whole(LayerPass& layer);
  void finish_layer();

  const StageSetting& setting_;
  MicrobatchPass& pass_;
  PerLane hidden_;
  size_t next_ = 0;
  Piece piece_ = Piece::kRoute;
};

class BackwardWalk : public ExpertWalk {
 public:
  // `receive`: the gradients of the stage's output, asked for when the last layer has run again.
  // `on_last_input`: called when the last of the inputs that the pass has saved was taken.
  BackwardWalk(const StageSetting& setting,
               MicrobatchPass& pass,
               std::function<PerLane()> receive,
               std::function<void()> on_last_input);

  void advance();
  bool is_done() const { return piece_ == Piece::kNone; }
  // Where no layer has asked for them, they are received here.
  PerLane take_gradients();

 private:
  enum class Piece { kAgain, kExperts, kAttend, kNone };

  void begin_layers();
  void run_whole(LayerPass& layer, PerLane inputs);
  void finish_layer();

  const StageSetting& setting_;
  MicrobatchPass& pass_;
  PerLane gradients_;
  std::function<PerLane()> receive_;  // none once it was called
  std::function<void()> on_last_input_;
  Piece piece_ = Piece::kAgain;
};

}  // namespace swapline::trainer
