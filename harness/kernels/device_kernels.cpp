#include "harness/kernels/device_kernels.h"

#include "harness/kernels/result_shapes.h"
#include "harness/kernels/values.h"

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <utility>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Functions.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/core/impl/VirtualGuardImpl.h>

namespace swapline::harness {
namespace {

using torch::jit::Stack;

const Backend* the_backend = nullptr;

constexpr size_t kNone = SIZE_MAX;

// Kernels run below autograd, autocast and Python's modes, whoever's thread this is.
struct BelowEverything {
  at::AutoDispatchBelowADInplaceOrView below;
  c10::impl::ExcludeDispatchKeyGuard no_autocast{c10::autocast_dispatch_keyset};
  c10::impl::ExcludeDispatchKeyGuard no_python{
      c10::DispatchKeySet({c10::DispatchKey::Python, c10::DispatchKey::PythonTLSSnapshot})};
};

at::Tensor stand_in(const at::Tensor& tensor) {
  const auto options = at::TensorOptions().dtype(tensor.scalar_type()).device(at::kCPU);
  if (tensor.numel() == 0) {
    return at::empty_strided(tensor.sizes(), tensor.strides(), options);
  }
  at::Tensor made =
      at::from_blob(tensor.mutable_data_ptr(), tensor.sizes(), tensor.strides(), options);
  made._set_conj(tensor.is_conj());
  made._set_neg(tensor.is_neg());
  return made;
}

// The bytes between the first and the last element.
HarnessTouchedBytes bytes_of(const at::Tensor& tensor, bool is_write) {
  if (tensor.numel() == 0) {
    return {nullptr, 0, is_write ? 1 : 0};
  }
  int64_t last = 0;
  for (int64_t dim = 0; dim < tensor.dim(); ++dim) {
    last += (tensor.size(dim) - 1) * tensor.stride(dim);
  }
  const auto bytes = static_cast<size_t>(last + 1) * tensor.element_size();
  return {tensor.const_data_ptr(), bytes, is_write ? 1 : 0};
}

bool is_device_argument(const c10::IValue& value) {
  return value.isDevice() && value.toDevice().type() == the_backend->type();
}

// What waits on a stream: an operator on stand-ins.
struct Waiting {
  c10::OperatorHandle op;
  Stack arguments = {};
  std::vector<at::Tensor> fresh = {};  // stand-ins of fresh results, in order
  size_t generator = kNone;            // the argument that takes one
  std::optional<uint64_t> seed = {};   // random operators
  Stack results = {};

  void run() {
    const BelowEverything guard;
    Stack stack = arguments;
    if (!seed) {
      op.callBoxed(stack);
    } else if (generator != kNone) {
      stack[generator] = at::detail::createCPUGenerator(*seed);
      op.callBoxed(stack);
    } else {
      run_seeded(stack);
    }
    const auto num_results = static_cast<std::ptrdiff_t>(op.schema().returns().size());
    results = Stack(stack.end() - num_results, stack.end());
    fill_fresh();
  }

  // Random operators that take no generator draw from the CPU's default one. Dropout is done by
  // hand: that generator belongs to the thread that trains, and this may be another.
  void run_seeded(Stack& stack) const {
    if (op.schema().name() == "aten::native_dropout" &&
        stack.at(2).toOptional<bool>().value_or(true)) {
      const at::Tensor input = stack.at(0).toTensor();
      const double p = stack.at(1).toDouble();
      const at::Tensor mask = at::empty(input.sizes(), input.options().dtype(at::kBool))
                                  .bernoulli_(1 - p, at::detail::createCPUGenerator(*seed));
      torch::jit::drop(stack, 3);
      stack.emplace_back(input.mul(mask).mul_(p == 1 ? 0. : 1 / (1 - p)));
      stack.emplace_back(mask);
      return;
    }
    at::Generator shared = at::detail::getDefaultCPUGenerator();
    const at::Tensor state = shared.get_state();
    shared.set_current_seed(*seed);
    op.callBoxed(stack);
    shared.set_state(state);
  }

  void fill_fresh() const {
    size_t next = 0;
    for (const c10::IValue& result : results) {
      for (const at::Tensor& from : tensors_in(result)) {
        if (next < fresh.size() && fresh[next].defined() && from.defined()) {
          fresh[next].copy_(from);
        }
        ++next;
      }
    }
  }
};

// One call of an operator, from its arguments to what goes back on the stack.
class Call {
 public:
  Call(const c10::OperatorHandle& op, Stack& stack)
      : schema_(op.schema()),
        arguments_(stack.end() - static_cast<std::ptrdiff_t>(schema_.arguments().size()),
                   stack.end()),
        waiting_(std::make_shared<Waiting>(Waiting{op})),
        device_(find_device()) {
    torch::jit::drop(stack, arguments_.size());
  }

  c10::Device device() const { return device_; }

  Stack run() {
    for (size_t i = 0; i < arguments_.size(); ++i) {
      take_argument(i);
    }
    draw();
    find_results();
    if (make_fresh_results()) {
      enqueue(schema_.name());
    } else {
      enqueue(schema_.name() + " (at once)");
      the_backend->finish(device_);
      take_results_as_they_are();
    }
    return std::move(results_);
  }

 private:
  c10::Device find_device() const {
    std::optional<c10::Device> found;
    for (const c10::IValue& value : arguments_) {
      for (const at::Tensor& tensor : tensors_in(value)) {
        if (is_on_backend(tensor) && !found) {
          found = tensor.device();
        }
      }
      if (is_device_argument(value) && !found) {
        found = value.toDevice();
      }
    }
    return found && found->has_index()
               ? *found
               : c10::impl::VirtualGuardImpl(the_backend->type()).getDevice();
  }

  void take_argument(size_t i) {
    const c10::Argument& argument = schema_.arguments()[i];
    const c10::IValue& value = arguments_[i];
    const bool is_write = argument.alias_info() != nullptr && argument.alias_info()->isWrite();
    if (argument.type()->str().find("Generator") != std::string::npos) {
      waiting_->generator = i;
    }
    if (the_backend->ignores(schema_.name(), argument.name()) || argument.name() == "pin_memory") {
      waiting_->arguments.emplace_back();
      return;
    }
    if (is_device_argument(value)) {
      waiting_->arguments.emplace_back(c10::Device(at::kCPU));
      return;
    }
    waiting_->arguments.push_back(map_tensors(value, [&](const at::Tensor& tensor) {
      if (!is_on_backend(tensor)) {
        // A launch reads the host's numbers when it is made.
        return tensor.defined() && tensor.is_cpu() && !is_write ? tensor.detach().clone() : tensor;
      }
      touched_.push_back(bytes_of(tensor, is_write));
      return stand_in(tensor);
    }));
  }

  void draw() {
    const size_t at = waiting_->generator;
    if (at == kNone && !waiting_->op.hasTag(at::Tag::nondeterministic_seeded)) {
      return;
    }
    const bool is_given = at != kNone && arguments_[at].isGenerator();
    waiting_->seed = the_backend->draw(
        is_given ? std::optional(arguments_[at].toGenerator()) : std::nullopt, device_);
  }

  // Which results are arguments that are written; None: fresh.
  void find_results() {
    for (const c10::Argument& result : schema_.returns()) {
      c10::IValue written;
      for (size_t i = 0; i < arguments_.size() && result.alias_info() != nullptr; ++i) {
        const auto* alias = schema_.arguments()[i].alias_info();
        if (alias != nullptr && alias->beforeSets() == result.alias_info()->beforeSets()) {
          written = arguments_[i];
          argument_of_result_.push_back(i);
          break;
        }
      }
      if (written.isNone()) {
        argument_of_result_.push_back(kNone);
      }
      results_.push_back(std::move(written));
    }
  }

  bool is_fresh(size_t result) const { return argument_of_result_[result] == kNone; }

  // An out= argument that the kernel is to resize.
  bool is_to_be_resized(size_t result) const {
    const size_t argument = argument_of_result_[result];
    return argument != kNone && schema_.arguments()[argument].is_out() &&
           arguments_[argument].isTensor() && arguments_[argument].toTensor().numel() == 0;
  }

  // False: what is fresh has no shape yet, or is no tensor.
  bool make_fresh_results() {
    bool needs_shapes = false;
    for (size_t i = 0; i < results_.size(); ++i) {
      needs_shapes = needs_shapes || is_fresh(i) || is_to_be_resized(i);
      const std::string type = schema_.returns()[i].type()->str();
      if (is_fresh(i) && type.find("Tensor") == std::string::npos) {
        return false;
      }
    }
    if (!needs_shapes) {
      return true;
    }
    Stack arguments = arguments_;
    for (size_t i = 0; i < arguments.size(); ++i) {
      if (waiting_->arguments[i].isNone()) {  // ignored
        arguments[i] = {};
      }
    }
    const std::optional<Stack> shapes = shapes_of_results(waiting_->op, arguments);
    if (!shapes) {
      return false;
    }
    for (size_t i = 0; i < results_.size(); ++i) {
      const c10::IValue& shape = (*shapes)[i];
      if (is_fresh(i)) {
        results_[i] = map_tensors(shape, [this](const at::Tensor& like) { return fresh(like); });
        continue;
      }
      for (size_t k = 0; k < tensors_in(shape).size(); ++k) {
        waiting_->fresh.emplace_back();  // the kernel writes the argument itself
      }
      if (is_to_be_resized(i)) {
        resize(argument_of_result_[i], shape.toTensor().sizes());
      }
    }
    return true;
  }

  at::Tensor fresh(const at::Tensor& like) {
    if (!like.defined()) {
      waiting_->fresh.emplace_back();
      return {};
    }
    at::Tensor made = at::empty_strided(
        like.sizes(), like.strides(), like.options().device(device_).requires_grad(false));
    touched_.push_back(bytes_of(made, true));
    waiting_->fresh.push_back(stand_in(made));
    return made;
  }

  void resize(size_t argument, at::IntArrayRef sizes) {
    const at::Tensor& out = arguments_[argument].toTensor();
    out.resize_(sizes);
    waiting_->arguments[argument] = stand_in(out);
    touched_.push_back(bytes_of(out, true));
  }

  void take_results_as_they_are() {
    for (size_t i = 0; i < results_.size(); ++i) {
      if (is_fresh(i)) {
        results_[i] = map_tensors(waiting_->results[i], [this](const at::Tensor& computed) {
          if (!computed.defined()) {
            return computed;
          }
          at::Tensor made = at::empty_strided(
              computed.sizes(), computed.strides(), computed.options().device(device_));
          const at::Tensor to = stand_in(made);
          the_backend->enqueue(device_, "result", {bytes_of(made, true)}, [to, computed] {
            const BelowEverything guard;
            to.copy_(computed);
          });
          return made;
        });
      }
    }
  }

  void enqueue(const std::string& name) const {
    the_backend->enqueue(device_, name, touched_, [waiting = waiting_] {
      try {
        waiting->run();
      } catch (const std::exception& error) {  // as good as a fault on the device
        std::fprintf(
            stderr, "harness: %s: %s\n", waiting->op.schema().name().c_str(), error.what());
        std::abort();
      }
    });
  }

  const c10::FunctionSchema& schema_;
  Stack arguments_;
  std::shared_ptr<Waiting> waiting_;
  c10::Device device_;
  Stack results_;
  std::vector<size_t> argument_of_result_;
  std::vector<HarnessTouchedBytes> touched_;
};

}  // namespace

int launch(void* stream,
           const std::string& name,
           const std::vector<HarnessTouchedBytes>& touched,
           std::function<void()> run) {
  auto* held = new std::function<void()>(std::move(run));
  const int failed = harness_launch(
      stream,
      name.c_str(),
      touched.data(),
      touched.size(),
      [](void* run) { (*static_cast<std::function<void()>*>(run))(); },
      held,
      [](void* run) { delete static_cast<std::function<void()>*>(run); });
  if (failed != 0) {
    delete held;
  }
  return failed;
}

void set_backend(const Backend& backend) {
  the_backend = &backend;
}

bool is_on_backend(const at::Tensor& tensor) {
  return tensor.defined() && tensor.device().type() == the_backend->type();
}

void run_on_cpu(const c10::OperatorHandle& op, c10::DispatchKeySet /*keys*/, Stack* stack) {
  const BelowEverything guard;
  Call call(op, *stack);
  // As the backend's own operators do: its default stream is that of the operands.
  const c10::DeviceGuard on_device(call.device());
  for (c10::IValue& result : call.run()) {
    stack->push_back(std::move(result));
  }
}

bool needs_kernel(const at::Tensor& to, const at::Tensor& from) {
  return to.scalar_type() != from.scalar_type() || to.sizes() != from.sizes() ||
         !to.is_contiguous() || !from.is_contiguous() || to.is_conj() != from.is_conj() ||
         to.is_neg() != from.is_neg();
}

void copy_by_kernel(const at::Tensor& to, const at::Tensor& from) {
  const BelowEverything guard;
  const c10::DeviceGuard on_device(to.device());
  the_backend->enqueue(to.device(),
                       "aten::copy_",
                       {bytes_of(from, false), bytes_of(to, true)},
                       [to = stand_in(to), from = stand_in(from)] {
                         const BelowEverything guard;
                         to.copy_(from);
                       });
}

}  // namespace swapline::harness
