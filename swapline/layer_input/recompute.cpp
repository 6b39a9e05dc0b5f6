// The autograd function: forward without grad, backward runs the layer again with grad.
#include "swapline/layer_input/input_ledger.h"
#include "swapline/layer_input/layer_inputs.h"
#include "swapline/layer_input/layer_run.h"
#include "swapline/layer_input/memory_sampler.h"

#include <array>
#include <memory>
#include <utility>

#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/graph_task.h>

namespace swapline {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// What an autograd context can hold.
struct RunHolder : torch::CustomClassHolder {
  explicit RunHolder(std::shared_ptr<LayerRun> run) : run(std::move(run)) {}
  std::shared_ptr<LayerRun> run;
};

constexpr auto kRun = "run";

std::shared_ptr<LayerRun> run_of(const AutogradContext& context) {
  const auto found = context.saved_data.find(kRun);
  TORCH_CHECK(found != context.saved_data.end(), "recompute: its graph has been freed");
  return c10::static_intrusive_pointer_cast<RunHolder>(found->second.toCapsule())->run;
}

void refuse_partial_backward() {
  TORCH_CHECK(!at::GradMode::is_enabled(),
              "recompute: double backward (create_graph=True) is not supported");
  TORCH_CHECK(torch::autograd::Engine::get_default_engine().is_checkpoint_valid(),
              "recompute: torch.autograd.grad() and backward(inputs=...) are not supported: the "
              "layer's parameters get their gradients inside its backward");
}

struct RecomputeFunction : torch::autograd::Function<RecomputeFunction> {
  // `inputs`: hidden_states, then the defined ones of the run's others.
  static variable_list forward(AutogradContext* context,
                               const c10::intrusive_ptr<RunHolder>& holder,
                               at::TensorList inputs) {
    context->set_materialize_grads(false);
    LayerRun& run = *holder->run;
    const ReplayScope scope;
    std::vector<at::Tensor> outputs = run.layer(inputs.front(), run.others);
    run.num_outputs = outputs.size();
    context->saved_data[kRun] = c10::IValue::make_capsule(holder);
    return outputs;
  }

  static variable_list backward(AutogradContext* context, variable_list grad_outputs) {
    refuse_partial_backward();
    const std::shared_ptr<LayerRun> run = run_of(*context);
    const bool runs_again = torch::autograd::get_current_graph_task_keep_graph();
    run->check_versions();
    variable_list grads;
    try {
      grads = run_with_grad(*run, grad_outputs);
    } catch (...) {
      run->handle->ledger->give_up(*run->handle);
      throw;
    }
    run->handle->ledger->finish(*run->handle, runs_again);
    if (!runs_again) {
      run->layer = nullptr;
      run->others.clear();
    }
    return grads;
  }

  // Gradients of forward's arguments: none for the holder, then one for each input.
  static variable_list run_with_grad(LayerRun& run, const variable_list& grad_outputs) {
    InputLedger& ledger = *run.handle->ledger;
    LayerRun::Again again = run.begin_backward();
    const bool is_sampled = ledger.recomputed(*run.handle);
    if (is_sampled) {
      sample_memory(again.outputs, ledger);
    }
    backward_through(std::move(again.outputs), grad_outputs);
    if (is_sampled) {
      ledger.end_samples();
    }
    variable_list grads = {at::Tensor(), again.input.grad()};
    for (const at::Tensor& other : again.others) {
      if (other.defined()) {
        grads.push_back(other.grad());
      }
    }
    return grads;
  }

  // The gradients of parameters are accumulated in here.
  static void backward_through(variable_list outputs, const variable_list& grad_outputs) {
    variable_list roots;
    variable_list root_grads;
    for (size_t i = 0; i < outputs.size(); ++i) {
      if (grad_outputs[i].defined() && outputs[i].requires_grad()) {
        roots.push_back(std::move(outputs[i]));
        root_grads.push_back(grad_outputs[i]);
      }
    }
    outputs.clear();
    if (!roots.empty()) {
      torch::autograd::backward(roots, root_grads);
    }
  }
};

using RecomputeNode = torch::autograd::CppNode<RecomputeFunction>;

struct Search {
  HandlePtr found;
  bool is_complete = true;  // false: the graph goes on further than was looked
};

// The recompute that `tensor` comes from, if there is one close by.
Search find_producer(const at::Tensor& tensor) {
  constexpr size_t kMostNodes = 32;
  std::array<torch::autograd::Node*, kMostNodes> nodes{};
  size_t num_nodes = 0;
  if (auto* first = tensor.grad_fn().get()) {
    nodes[num_nodes++] = first;
  }
  for (size_t i = 0; i < num_nodes; ++i) {
    if (auto* node = dynamic_cast<RecomputeNode*>(nodes[i])) {
      return {node->ctx_.saved_data.empty() ? HandlePtr() : run_of(node->ctx_)->handle, true};
    }
    for (const auto& edge : nodes[i]->next_edges()) {
      if (edge.function == nullptr) {
        continue;
      }
      if (num_nodes == kMostNodes) {
        return {HandlePtr(), false};
      }
      nodes[num_nodes++] = edge.function.get();
    }
  }
  return {};
}

bool any_requires_grad(const at::Tensor& hidden_states, const std::vector<at::Tensor>& others) {
  bool any = hidden_states.requires_grad();
  for (const at::Tensor& other : others) {
    any = any || (other.defined() && other.requires_grad());
  }
  return any;
}

}  // namespace

std::vector<at::Tensor> LayerInputs::recompute(Layer layer,
                                               const at::Tensor& hidden_states,
                                               std::vector<at::Tensor> others) {
  TORCH_CHECK(hidden_states.defined(), "recompute: hidden_states is undefined");
  if (!at::GradMode::is_enabled() || !any_requires_grad(hidden_states, others)) {
    return layer(hidden_states, others);
  }
  Search before = find_producer(hidden_states);
  if (!before.is_complete) {
    before.found = ledger_->last_entered();
  }
  ReplayState state(hidden_states.device(), options().preserve_rng_state);
  HandlePtr handle = ledger_->enter(hidden_states, before.found);
  std::vector<at::Tensor> inputs = {hidden_states};
  for (const at::Tensor& other : others) {
    if (other.defined()) {
      inputs.push_back(other);
    }
  }
  const auto run = std::make_shared<LayerRun>(
      std::move(layer), std::move(others), std::move(state), std::move(handle));
  run->input_requires_grad = hidden_states.requires_grad();
  run->handle->run = run;
  run->handle->tells_recomputed = true;
  return RecomputeFunction::apply(c10::make_intrusive<RunHolder>(run), at::TensorList(inputs));
}

at::Tensor LayerInputs::recompute(std::function<at::Tensor(const at::Tensor&)> layer,
                                  const at::Tensor& hidden_states) {
  const Layer as_list = [layer = std::move(layer)](const at::Tensor& hidden,
                                                   const std::vector<at::Tensor>&) {
    return std::vector<at::Tensor>{layer(hidden)};
  };
  return recompute(as_list, hidden_states).front();
}

void LayerInputs::recompute_ahead(int64_t microbatch) {
  TORCH_CHECK(torch::autograd::get_current_graph_task_id() == -1,
              "LayerInputs::recompute_ahead: called inside a backward; call it before that");
  const HandlePtr handle = ledger_->last_of_microbatch(microbatch);
  if (const std::shared_ptr<LayerRun> run = handle ? handle->run.lock() : nullptr) {
    run->run_ahead();
  }
}

}  // namespace swapline
