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

// One row for each token and expert chosen for it, sorted by expert; of one expert, in the order of
// the tokens.
struct RowOrder {
  at::Tensor choice_of_row;  // int64 [N]: which (token, choice) a row is
  at::Tensor token_of_row;   // int64 [N]
  at::Tensor places;         // int64 [N]: the row of each (token, choice)
  at::Tensor ends;           // int32 [E]: where each expert's rows end
};

// A layer up to where it is known which tokens go where.
struct Routed {
  at::Tensor residual;  // [B, T, D]: behind attention
  at::Tensor normed;    // [B, T, D]: what the experts take
  at::Tensor weights;   // [B * T, K]
  RowOrder rows;
};

// A layer up to where its tokens leave for their experts.
struct Attended {
  at::Tensor residual;      // [B, T, D]: all that the routed experts are added to
  at::Tensor tokens;        // [N, D]
  at::Tensor weights;       // [N, 1]: what each row's expert output is multiplied by
  at::Tensor places;        // of RowOrder
  at::Tensor token_of_row;  // of RowOrder
};

// A layer with routed experts, cut where its tokens travel between the ranks that share the
// experts. Without other ranks, forward() is
//   merge(residual, experts(tokens, weights, counts), places)
// of attend(route(hidden_states)). The host waits for the device in none of them.
class ExpertLayer : public Layer {
 public:
  // `counts`: for the load balance; not where a forward is run again.
  virtual Routed route(const at::Tensor& hidden_states, bool counts) const = 0;
  // Rows of each expert, of all ranks' experts, where they are known without the device: when the
  // load balance is forced. Else empty, and routed.rows.ends has them.
  // Throws: UsageError in a dry run that does not know them.
  virtual std::vector<int64_t> known_counts(const Routed& routed) const = 0;
  // The rest, up to where tokens leave.
  virtual Attended attend(const Routed& routed) const = 0;
  // The rows that came to this rank, sorted by expert, through their experts and times their
  // weights. counts[local expert]. [M, D], [M, 1] -> [M, D].
  virtual at::Tensor experts(const at::Tensor& tokens,
                             const at::Tensor& weights,
                             const std::vector<int64_t>& counts) const = 0;
  // `returned`: [N, D], the rows in the order in which attend gave them. -> [B, T, D].
  virtual at::Tensor merge(const at::Tensor& residual,
                           const at::Tensor& returned,
                           const at::Tensor& places) const = 0;
};

using LayerPtr = std::shared_ptr<const Layer>;

}  // namespace swapline::trainer
