// Tensors to and from checkpoints, without device memory of their own.
#include "trainer/checkpoint_content.h"

#include "swapline/checkpoint/tensor_reader.h"

#include <map>
#include <set>
#include <utility>

#include <ATen/ops/empty_like.h>
#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>

namespace swapline::trainer {
namespace {

at::Tensor on_host(const at::Tensor& tensor) {
  return tensor.device().is_cpu() ? tensor.detach() : tensor.detach().to(at::kCPU);
}

// A tensor to be filled: from the file at once, or over the host.
struct Filling {
  TensorTarget target;
  at::Tensor on_device;  // undefined: the target is the tensor itself
};

class Loading {
 public:
  explicit Loading(const std::string& path) : reader_(path), path_(path) {}

  void add_model(const std::vector<SavedTensor>& tensors) {
    for (const SavedTensor& saved : tensors) {
      add(saved.name, saved, [](const HeldTensor& held) { return held.tensor.detach(); });
    }
  }

  // Makes the states that are to be filled: zeros until then, as a first update would find them.
  void add_optimizer(const std::vector<SavedTensor>& tensors) {
    bool has_states = false;
    for (const SavedTensor& saved : tensors) {
      if (saved.is_parameter() && has_states_of(saved.name)) {
        has_states = true;
        add_states(saved);
      }
    }
    TORCH_CHECK(has_states,
                path_,
                ": found no optimizer.state.*, allowed with --checkpoint.exclude-from-loading "
                "optimizer");
  }

  void check_nothing_is_left(bool with_optimizer) const {
    for (const auto& [name, entry] : reader_.entries()) {
      const bool is_asked_for = with_optimizer || !name.starts_with("optimizer.");
      TORCH_CHECK(!is_asked_for || rows_.count(name) != 0,
                  path_,
                  ": ",
                  name,
                  ": found in the checkpoint, and neither the model nor its optimizer has it; "
                  "allowed is a checkpoint of the same --model.name, --model.flavor, "
                  "--model.num-layers, --training.num-mtp-modules and --optimizer.name");
    }
  }

  // Buffers on the host hold no memory before they are written to.
  void check() const {
    for (const Filling& filling : fillings_) {
      reader_.check({&filling.target, 1});
      const TensorTarget& target = filling.target;
      TORCH_CHECK(!target.is_part ||
                      reader_.entries().at(target.name).sizes.front() == rows_.at(target.name),
                  path_,
                  ": ",
                  target.name,
                  ": found ",
                  reader_.entries().at(target.name).sizes.front(),
                  " rows, allowed are ",
                  rows_.at(target.name));
    }
  }

  void fill() {
    for (Filling& filling : fillings_) {
      reader_.read({&filling.target, 1});
      if (filling.on_device.defined()) {
        filling.on_device.copy_(filling.target.tensor);
        filling.target.tensor.reset();
      }
    }
  }

 private:
  bool has_states_of(const std::string& parameter) const {
    const std::string prefix = state_prefix(parameter);
    const auto first = reader_.entries().lower_bound(prefix);
    return first != reader_.entries().end() && first->first.starts_with(prefix);
  }

  void add_states(const SavedTensor& saved) {
    std::set<std::string> states;
    std::map<const HeldTensor*, std::map<std::string, at::Tensor>> states_of;
    for (const auto& shard : saved.shards) {
      for (const HeldTensor& held : shard) {
        states_of[&held] = held.optimizer->make_state(held.tensor);
        for (const auto& [state, tensor] : states_of[&held]) {
          states.insert(state);
        }
      }
    }
    for (const std::string& state : states) {
      add(state_prefix(saved.name) + state, saved, [&](const HeldTensor& held) {
        return states_of.at(&held).at(state);
      });
    }
  }

  template <typename TensorOf>
  void add(const std::string& name, const SavedTensor& saved, const TensorOf& tensor_of) {
    int64_t first_row = 0;
    for (const auto& shard : saved.shards) {
      at::Tensor tensor;
      for (const HeldTensor& held : shard) {
        tensor = tensor_of(held);
        // A state without dimensions (step) is the same for all shards.
        const bool is_part = saved.shards.size() > 1 && tensor.dim() > 0;
        Filling filling;
        if (!tensor.device().is_cpu()) {
          filling.on_device = tensor;
          tensor = at::empty_like(tensor, tensor.options().device(at::kCPU));
        }
        filling.target = {name, tensor, is_part ? first_row : 0, is_part};
        fillings_.push_back(std::move(filling));
      }
      first_row += tensor.dim() > 0 ? tensor.size(0) : 0;
    }
    rows_[name] = first_row;
  }

  TensorReader reader_;
  std::string path_;
  std::vector<Filling> fillings_;
  std::map<std::string, int64_t> rows_;  // of all shards, by the tensor's name
};

}  // namespace

std::vector<NamedTensor> model_content(const std::vector<SavedTensor>& tensors,
                                       std::optional<at::ScalarType> dtype) {
  const c10::NoGradGuard no_grad;
  std::vector<NamedTensor> content;
  for (const SavedTensor& saved : tensors) {
    NamedTensor named{saved.name, {}};
    for (const auto& shard : saved.shards) {
      const at::Tensor host = on_host(shard.front().tensor);
      named.parts.push_back(dtype && saved.is_parameter() ? host.to(*dtype) : host);
    }
    content.push_back(std::move(named));
  }
  return content;
}

std::vector<NamedTensor> optimizer_content(const std::vector<SavedTensor>& tensors) {
  const c10::NoGradGuard no_grad;
  std::vector<NamedTensor> content;
  for (const SavedTensor& saved : tensors) {
    if (!saved.is_parameter()) {
      continue;
    }
    std::map<std::string, std::vector<at::Tensor>> parts;
    for (const auto& shard : saved.shards) {
      for (const auto& [state, tensor] : shard.front().optimizer->state(shard.front().tensor)) {
        std::vector<at::Tensor>& of_state = parts[state];
        if (tensor.dim() > 0 || of_state.empty()) {
          of_state.push_back(on_host(tensor));
        }
      }
    }
    for (auto& [state, of_state] : parts) {
      content.push_back({state_prefix(saved.name) + state, std::move(of_state)});
    }
  }
  return content;
}

void load_content(const std::string& path,
                  const std::vector<SavedTensor>& tensors,
                  bool with_optimizer) {
  const c10::NoGradGuard no_grad;
  Loading loading(path);
  loading.add_model(tensors);
  loading.check();
  if (with_optimizer) {
    loading.add_optimizer(tensors);
    loading.check();
  }
  loading.check_nothing_is_left(with_optimizer);
  loading.fill();
}

}  // namespace swapline::trainer
