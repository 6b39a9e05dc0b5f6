// A hook on each node of a graph.
#include "swapline/layer_input/memory_sampler.h"

#include <memory>
#include <unordered_set>
#include <utility>

#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

namespace swapline {
namespace {

using torch::autograd::Node;
using torch::autograd::variable_list;

struct MemorySampler : torch::autograd::FunctionPostHook {
  explicit MemorySampler(std::shared_ptr<InputLedger> ledger) : ledger(std::move(ledger)) {}
  variable_list operator()(const variable_list& outputs, const variable_list& /*inputs*/) override {
    ledger->note_memory();
    return outputs;
  }
  std::shared_ptr<InputLedger> ledger;
};

}  // namespace

void sample_memory(const std::vector<at::Tensor>& outputs, InputLedger& ledger) {
  std::vector<Node*> found;
  std::unordered_set<Node*> seen;
  const auto add = [&](Node* node) {
    // Those without next edges accumulate into a parameter and live as long as it does.
    if (node != nullptr && node->num_outputs() > 0 && seen.insert(node).second) {
      found.push_back(node);
    }
  };
  for (const at::Tensor& output : outputs) {
    add(output.grad_fn().get());
  }
  if (outputs.empty()) {
    add(torch::autograd::get_current_node().get());
  }
  while (!found.empty()) {
    Node* node = found.back();
    found.pop_back();
    node->add_post_hook(std::make_unique<MemorySampler>(ledger.shared_from_this()));
    for (const auto& edge : node->next_edges()) {
      add(edge.function.get());
    }
  }
}

}  // namespace swapline
