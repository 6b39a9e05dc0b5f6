// Stages that only go forward.
#include "trainer/pipeline/stage_runner.h"
#include "trainer/pipeline/stage_settings.h"

#include <optional>
#include <utility>

#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>

namespace swapline::trainer {
namespace {

at::Tensor run_layer(const LayerPtr& layer, at::Tensor hidden_states) {
  return layer->forward(hidden_states, PartRunner());
}

// While it is there, rows are not counted for the load balance.
class NotCounting {
 public:
  explicit NotCounting(const StageParts& parts) : parts_(parts) { set(false); }
  ~NotCounting() { set(true); }
  NotCounting(const NotCounting&) = delete;
  NotCounting& operator=(const NotCounting&) = delete;

 private:
  void set(bool counts) {
    for (size_t lane = 0; lane < parts_.num_lanes(); ++lane) {
      parts_.model(lane).set_counting(counts);
    }
  }

  const StageParts& parts_;
};

class EvaluationStages : public StageRunner {
 public:
  explicit EvaluationStages(StageParts parts) : StageRunner(std::move(parts)) {
    if (parts_.num_lanes() > 1) {
      settings_.emplace(parts_, Kept::kNothing);
    }
  }

  PerLane forward(Pass pass, PerLane hidden_states) override {
    const c10::NoGradGuard no_grad;
    const NotCounting not_counting(parts_);
    const Stage& stage = parts_.stage(pass);
    for (size_t lane = 0; stage.is_first && lane < parts_.num_lanes(); ++lane) {
      hidden_states.push_back(embedded(stage, pass.microbatch, lane));
    }
    PerLane output = settings_ ? run_on_lanes(pass, std::move(hidden_states))
                               : run_alone(stage, std::move(hidden_states));
    if (!stage.is_last) {
      return output;
    }
    for (size_t lane = 0; lane < parts_.num_lanes(); ++lane) {
      loss(stage, pass.microbatch, lane, std::exchange(output[lane], {}), &run_layer);
    }
    return {};
  }

  PerLane backward(Pass /*pass*/, const Receive& /*receive*/) override {
    TORCH_CHECK(false, "stages of an evaluation do not go backward");
  }

 private:
  PerLane run_on_lanes(Pass pass, PerLane hidden_states) const {
    MicrobatchPass state;
    ForwardWalk walk(settings_->of(pass), state, std::move(hidden_states));
    while (!walk.is_done()) {
      walk.advance();
      walk.send();
    }
    return walk.take_output();
  }

  PerLane run_alone(const Stage& stage, PerLane hidden_states) const {
    for (const LayerPtr& layer : parts_.layers(stage, 0)) {
      hidden_states.front() = run_layer(layer, std::exchange(hidden_states.front(), {}));
    }
    return hidden_states;
  }

  std::optional<StageSettings> settings_;  // where lanes share experts
};

}  // namespace

std::unique_ptr<StageRunner> make_evaluation_stages(StageParts parts) {
  return std::make_unique<EvaluationStages>(std::move(parts));
}

}  // namespace swapline::trainer
