// DeepSeek-V3: latent attention, experts, multi-token prediction (arXiv 2412.19437).
// Rotary positions are plain ones, as in pre-training at 4096 tokens; nothing is stretched for
// longer contexts. Parameter names are torchtitan's.
#pragma once

#include "trainer/models/deepseek_v3_layer.h"
#include "trainer/models/mtp.h"

#include <memory>
#include <string>
#include <vector>

namespace swapline::trainer {

// What of a model is not its shape.
struct DeepseekV3Options {
  int64_t seq_len = 0;
  ExpertShard shard = {};
  bool force_load_balance = false;
};

class DeepseekV3 : public Model {
 public:
  // Throws: UsageError when the experts cannot be shared evenly, or when the sequences leave an MTP
  // module no target.
  DeepseekV3(const DeepseekV3Shape& shape,
             const DeepseekV3Options& options,
             const Placement& placement,
             ParameterFactory& parameters);

  at::Tensor embed(const at::Tensor& tokens) const override;
  const std::vector<LayerPtr>& layers() const override { return layers_; }
  // Of the model, plus 0.3 times the mean over the MTP modules, each its mean over the positions
  // that have a target: module k has none at the last k. The modules take the last layer's output
  // before the final norm.
  at::Tensor loss(const at::Tensor& hidden_states,
                  const at::Tensor& targets,
                  const RunLayer& run_layer) const override;
  std::vector<TiedParameters> tied_parameters() const override { return tied_; }

  // The load balance's biases.
  std::vector<NamedBuffer> buffers() const override { return buffers_; }
  // Of layers with experts from the first on, then of MTP modules.
  std::vector<at::Tensor> expert_loads() const override;
  void set_counting(bool counts) override;
  void balance(const std::vector<at::Tensor>& loads) override;

 private:
  at::Tensor head_loss_of(const at::Tensor& hidden_states,
                          const at::Tensor& norm,
                          const at::Tensor& targets) const;
  void add_balance(const std::string& prefix, std::shared_ptr<LoadBalance> balance);

  DeepseekV3Shape shape_;
  std::vector<LayerPtr> layers_;
  std::vector<MtpModule> mtp_modules_;
  std::vector<std::shared_ptr<LoadBalance>> balances_;
  std::vector<NamedBuffer> buffers_;
  at::Tensor embedding_;       // [V, D]
  at::Tensor head_embedding_;  // the same on the head's device, for MTP modules
  at::Tensor norm_;            // [D]
  at::Tensor head_;            // [V, D]
  std::vector<TiedParameters> tied_;
};

}  // namespace swapline::trainer
