// A model's layer as the trainer runs it: as a whole, with parts of it run again by themselves in
// backward, or in pieces between which tokens travel to their experts and back.
// Shapes: B sequences, T tokens, D = dim, K experts a token, N = B * T * K.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>

namespace swapline::trainer {

// Parts that --activation-checkpoint.selective-part can name.
enum class LayerPart { kNorm, kAttentionCore, kFeedForward };

// A part: one tensor from several. Calling it again with the same inputs gives the same bits.
using PartFunction = std::function<at::Tensor(const std::vector<at::Tensor>& inputs)>;

// How the parts of a layer are run. This one just calls them.
class PartRunner {
 public:
  virtual ~PartRunner() = default;
  virtual at::Tensor run(LayerPart /*part*/,
                         const PartFunction& function,
                         const std::vector<at::Tensor>& inputs) const {
    return function(inputs);
  }
};

// Must outlive the graphs of its runs.
class Layer {
 public:
  virtual ~Layer() = default;
  // From hidden states to hidden states, [B, T, D] both.
  virtual at::Tensor forward(const at::Tensor& hidden_states, const PartRunner& parts) const = 0;
};

// A layer up to where its tokens leave for their experts. One row for each token and expert chosen
// for it, sorted by expert.
struct Attended {
  at::Tensor residual;  // [B, T, D]: all that the routed experts are added to
  at::Tensor tokens;    // [N, D]
  at::Tensor weights;   // [N, 1]: what each row's expert output is multiplied by
  at::Tensor places;    // int64 [N]: the row, among those sorted by expert, of (token, choice)
  std::vector<int64_t> counts;  // rows of each expert, of all ranks' experts
};

// A layer with routed experts, cut where its tokens travel between the ranks that share the
// experts. Without other ranks, forward() is
//   merge(residual, experts(tokens, weights, {counts}), places).
class ExpertLayer : public Layer {
 public:
  // `known_counts`: of the forward that is run again here; then nothing is counted for the load
  // balance, and the host does not wait. nullptr: found out, for which the host waits unless the
  // load balance is forced.
  virtual Attended attend(const at::Tensor& hidden_states,
                          const std::vector<int64_t>* known_counts) const = 0;
  // The rows that came to this rank, source by source and sorted by expert in each, through their
  // experts and times their weights. counts[source][local expert]. [M, D], [M, 1] -> [M, D].
  virtual at::Tensor experts(const at::Tensor& tokens,
                             const at::Tensor& weights,
                             const std::vector<std::vector<int64_t>>& counts) const = 0;
  // `returned`: [N, D], the rows in the order in which attend gave them. -> [B, T, D].
  virtual at::Tensor merge(const at::Tensor& residual,
                           const at::Tensor& returned,
                           const at::Tensor& places) const = 0;
};

using LayerPtr = std::shared_ptr<const Layer>;

}  // namespace swapline::trainer
