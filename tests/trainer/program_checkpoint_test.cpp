// Saving, going on, and going on elsewhere: the losses and the final weights of the run that was
// not interrupted, to the last bit.
#include "tests/checkpoint/tensors_on_disk.h"
#include "tests/trainer/program_expectations.h"

#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>

#include <gtest/gtest.h>

namespace swapline::trainer {
namespace {

namespace fs = std::filesystem;

const std::string kCheckpointed =
    "--checkpoint.enable --checkpoint.no-last-save-model-only --training.seq-len 32 ";
const std::string kLlama = "train --model.num-layers 4 " + kCheckpointed;
const std::string kOneDevice = "--training.local-batch-size 1 --training.global-batch-size 4 ";
const std::string kSwap = "--optimizer.swap-optimizer --swap-layer-input.enable ";

std::string pipeline_of(int degree, const std::string& schedule = "1F1B") {
  return "--training.local-batch-size 4 --parallelism.pipeline-parallel-degree " +
         std::to_string(degree) + " --parallelism.pipeline-parallel-schedule " + schedule + " ";
}

// A folder of checkpoints that several runs of the program use.
class Checkpointed {
 public:
  std::string path(const std::string& name = "") const { return folder_.path("c/" + name); }
  std::string option() const { return "--checkpoint.folder " + folder_.path("c") + " "; }
  std::set<std::string> names() const {
    std::set<std::string> names;
    for (const auto& entry : fs::directory_iterator(path())) {
      names.insert(entry.path().filename().string());
    }
    return names;
  }
  void take_from(const Checkpointed& other, const std::string& name) const {
    fs::create_directories(path());
    fs::copy(other.path(name), path(name), fs::copy_options::recursive);
  }
  // The files of a checkpoint, one behind the other.
  std::string content(const std::string& name) const {
    std::set<fs::path> files;
    for (const auto& entry : fs::directory_iterator(path(name))) {
      files.insert(entry.path());
    }
    std::ostringstream content;
    for (const fs::path& file : files) {
      content << file.filename() << std::ifstream(file, std::ios::binary).rdbuf();
    }
    return content.str();
  }

 private:
  TemporaryFolder folder_;
};

// Of the steps from `first` on.
std::string losses_from(const ProgramRun& run, int first) {
  std::string losses;
  for (const auto& step : run.summary["steps"]) {
    if (step["step"] >= first) {
      losses +=
          step["step"].dump() + " " + step["loss"].dump() + " " + step["grad_norm"].dump() + "\n";
    }
  }
  return losses;
}

std::string steps_of(int steps, int of) {
  return "--training.steps " + std::to_string(steps) + " --lr-scheduler.total-steps " +
         std::to_string(of) + " --checkpoint.interval " + std::to_string(of / 2) + " ";
}

// All steps at once, with checkpoints in the middle and at the end; and the rest again from the one
// in the middle.
class Interrupted {
 public:
  Interrupted(const std::string& model, const std::string& options, int num_steps = 8)
      : model_(model + steps_of(num_steps, num_steps)),
        num_steps_(num_steps),
        whole_(run_program(model_ + options + checkpoints_.option())) {
    expect_trained(whole_);
  }

  const ProgramRun& whole() const { return whole_; }
  std::string path_in_the_middle() const { return checkpoints_.path(middle()); }
  std::string content_in_the_middle() const { return checkpoints_.content(middle()); }
  std::string losses_of_the_rest(const ProgramRun& run) const {
    return losses_from(run, num_steps_ / 2 + 1);
  }

  // Runs in a process of its own. Its losses, and all of its last checkpoint.
  void expect_same_from_the_middle(const std::string& options) const {
    SCOPED_TRACE(options);
    const Checkpointed checkpoints;
    checkpoints.take_from(checkpoints_, middle());
    const ProgramRun run = run_program(model_ + options + checkpoints.option());
    expect_trained(run);
    EXPECT_EQ(run.summary["steps"].size(), static_cast<size_t>(num_steps_ / 2));
    EXPECT_EQ(losses_of_the_rest(run), losses_of_the_rest(whole_));
    EXPECT_TRUE(checkpoints.content(end()) == checkpoints_.content(end()));
  }

 private:
  std::string middle() const { return "step-" + std::to_string(num_steps_ / 2); }
  std::string end() const { return "step-" + std::to_string(num_steps_); }

  std::string model_;
  int num_steps_;
  Checkpointed checkpoints_;
  ProgramRun whole_;
};

TEST(ProgramCheckpoint, GoingOnIsExactWhereverStatesAre) {
  const std::string model = "train --model.num-layers 2 " + kCheckpointed;
  const Interrupted plain(model, kOneDevice, 20);
  ASSERT_FALSE(::testing::Test::HasFailure());
  plain.expect_same_from_the_middle(kOneDevice + kSwap);
  const Interrupted swapped(model, kOneDevice + kSwap, 20);
  EXPECT_TRUE(swapped.content_in_the_middle() == plain.content_in_the_middle());
  swapped.expect_same_from_the_middle(kOneDevice + kSwap + "--optimizer.swap-optimizer-times 3 ");
  swapped.expect_same_from_the_middle(kOneDevice + kSwap +
                                      "--checkpoint.async-mode async --device.late-copies ");
  swapped.expect_same_from_the_middle(kOneDevice);
}

TEST(ProgramCheckpoint, GoingOnIsExactInOtherPipelines) {
  const Interrupted one_device(kLlama, kOneDevice + kSwap);
  one_device.expect_same_from_the_middle(pipeline_of(2) + kSwap);
  const Interrupted two_stages(kLlama, pipeline_of(2) + kSwap + "--checkpoint.async-mode async ");
  ASSERT_FALSE(::testing::Test::HasFailure());
  EXPECT_TRUE(two_stages.content_in_the_middle() == one_device.content_in_the_middle());
  two_stages.expect_same_from_the_middle(kOneDevice);
  two_stages.expect_same_from_the_middle(pipeline_of(4) + kSwap);
  two_stages.expect_same_from_the_middle(pipeline_of(2, "Interleaved1F1B"));
}

TEST(ProgramCheckpoint, GoingOnIsExactInBfloat16AndOnTheCpu) {
  const std::string bfloat16 = kLlama + "--training.dtype bfloat16 ";
  Interrupted(bfloat16, kOneDevice + kSwap).expect_same_from_the_middle(kOneDevice);
  const std::string cpu = kOneDevice + "--device.type cpu ";
  Interrupted(kLlama, cpu).expect_same_from_the_middle(cpu + "--checkpoint.async-mode async ");
}

// Other states, in other places: swapped at first, then on the device, in mapped memory, or mixed.
TEST(ProgramCheckpoint, GoingOnIsExactWithOtherOptimizers) {
  const std::string small = "train --model.num-layers 2 " + kCheckpointed;
  Interrupted(small + "--optimizer.name Muon --optimizer.muon-ns-steps 1 ", kOneDevice + kSwap)
      .expect_same_from_the_middle(kOneDevice);
  Interrupted(small + "--training.dtype bfloat16 --optimizer.master-weights ", kOneDevice + kSwap)
      .expect_same_from_the_middle(kOneDevice);
  const Interrupted adamw(small, kOneDevice + kSwap);
  adamw.expect_same_from_the_middle(kOneDevice + "--optimizer.virtual-optimizer ");
  adamw.expect_same_from_the_middle(kOneDevice + kSwap +
                                    "--optimizer.swap-optimizer-fraction 0.5 ");
}

// The first half in a process that ends there, as the last save of its run.
TEST(ProgramCheckpoint, ARunThatEndsInTheMiddleSavesTheSame) {
  const std::string options = kOneDevice + kSwap;
  const Interrupted whole(kLlama, options);
  const Checkpointed checkpoints;
  const std::string half = kLlama + options + checkpoints.option() + steps_of(4, 8);
  expect_trained(run_program(half));
  EXPECT_TRUE(checkpoints.content("step-4") == whole.content_in_the_middle());
  const ProgramRun none = run_program(half);
  EXPECT_EQ(none.status, 0) << none.err;
  EXPECT_NE(none.out.find("nothing is left to do"), std::string::npos) << none.out;
  const ProgramRun rest = run_program(kLlama + options + checkpoints.option() + steps_of(8, 8));
  EXPECT_EQ(losses_from(rest, 1), whole.losses_of_the_rest(whole.whole()));
}

const std::string kDeepseek = "train --model.name deepseek_v3 --model.num-layers 3 " +
                              kCheckpointed + "--training.seq-len 16 ";
const std::string kTwoShare =
    "--training.local-batch-size 1 --parallelism.expert-parallel-degree 2 ";

// The load balance's bias, shared experts, and MTP modules whose embedding two devices hold.
TEST(ProgramCheckpoint, GoingOnIsExactWithExperts) {
  const Interrupted shared(kDeepseek, kTwoShare + kSwap);
  ASSERT_FALSE(::testing::Test::HasFailure());
  shared.expect_same_from_the_middle(kTwoShare);
  const TensorReader reader(shared.path_in_the_middle());
  const TensorEntry experts = reader.entries().at("layers.2.moe.experts.w1");
  EXPECT_EQ(reader.entries().at("optimizer.state.layers.2.moe.experts.w1.exp_avg").sizes,
            experts.sizes);
  EXPECT_EQ(reader.entries().at("layers.2.moe.expert_bias").sizes,
            (std::vector<int64_t>{experts.sizes.front()}));
  const std::string mtp = kDeepseek + "--training.num-mtp-modules 1 ";
  Interrupted(mtp, pipeline_of(2)).expect_same_from_the_middle(pipeline_of(2) + kSwap);
  Interrupted(mtp, kOneDevice).expect_same_from_the_middle(kOneDevice + kSwap);
}

// Experts that were on two devices on one, and on two again.
TEST(ProgramCheckpoint, ExpertsMoveToAnotherNumberOfDevices) {
  const std::string one = "--training.local-batch-size 1 --training.global-batch-size 2 ";
  const Checkpointed shared;
  expect_trained(run_program(kDeepseek + kTwoShare + shared.option() + steps_of(4, 8)));
  const std::string one_more = steps_of(5, 8) + "--optimizer.lr 0 ";
  const Checkpointed single;
  single.take_from(shared, "step-4");
  const ProgramRun on_one = run_program(kDeepseek + one + single.option() + one_more);
  const Checkpointed again;
  again.take_from(shared, "step-4");
  const ProgramRun on_two = run_program(kDeepseek + kTwoShare + again.option() + one_more);
  expect_trained(on_one);
  expect_trained(on_two);
  // Sums over two devices' tokens have another order: a few units in the last place of fp32.
  EXPECT_NEAR(on_one.summary["steps"][0]["loss"].get<double>(),
              on_two.summary["steps"][0]["loss"].get<double>(),
              1e-5);
  // With a learning rate of 0 the parameters stay as they were loaded.
  const TensorReader before(shared.path("step-4"));
  for (const Checkpointed* after : {&single, &again}) {
    const TensorReader reader(after->path("step-5"));
    EXPECT_EQ(reader.entries().size(), before.entries().size());
    for (const auto& [name, entry] : before.entries()) {
      if (!name.starts_with("optimizer.") && !name.ends_with("expert_bias")) {
        EXPECT_TRUE(testing::has_same_bits(testing::read_from(before, name),
                                           testing::read_from(reader, name)))
            << name;
      }
    }
  }
}

const std::string kShort =
    "train --training.seq-len 16 --model.num-layers 2 --training.local-batch-size 1 "
    "--checkpoint.enable ";

TEST(ProgramCheckpoint, IntervalFirstAndLatestDecideWhatIsThere) {
  const Checkpointed checkpoints;
  const std::string options = kShort + checkpoints.option() + "--checkpoint.interval 2 ";
  expect_trained(
      run_program(options + "--training.steps 7 --checkpoint.enable-first-step-checkpoint "));
  EXPECT_EQ(checkpoints.names(),
            (std::set<std::string>{"step-1", "step-2", "step-4", "step-6", "step-7"}));
  const Checkpointed latest;
  expect_trained(run_program(kShort + latest.option() +
                             "--training.steps 7 --checkpoint.interval 1 "
                             "--checkpoint.keep-latest-k 3 --checkpoint.async-mode async "));
  EXPECT_EQ(latest.names(), (std::set<std::string>{"step-5", "step-6", "step-7"}));
  const Checkpointed none;
  expect_trained(
      run_program(kShort + none.option() + "--training.steps 2 --checkpoint.load-only "));
  EXPECT_FALSE(fs::exists(none.path()));
}

TEST(ProgramCheckpoint, TheLastHoldsTheModelOnlyInTheExportDtype) {
  const Checkpointed checkpoints;
  const std::string options =
      kShort + checkpoints.option() + "--training.steps 2 --checkpoint.interval 1 ";
  expect_trained(run_program(options + "--checkpoint.export-dtype bfloat16 "));
  const TensorReader last(checkpoints.path("step-2"));
  EXPECT_FALSE(fs::exists(checkpoints.path("step-2/train_state.json")));
  for (const auto& [name, entry] : last.entries()) {
    EXPECT_FALSE(name.starts_with("optimizer.")) << name;
    EXPECT_EQ(entry.dtype, at::kBFloat16) << name;
  }
  EXPECT_EQ(TensorReader(checkpoints.path("step-1")).entries().size(), last.entries().size() * 4);
  // It begins another run, and is nothing to go on from.
  const Checkpointed other;
  expect_trained(run_program(kShort + other.option() +
                             "--training.steps 1 --training.dtype bfloat16 "
                             "--checkpoint.initial-load-path " +
                             checkpoints.path("step-2")));
  const ProgramRun run = run_program(options + "--training.steps 3 ");
  EXPECT_EQ(run.status, 1);
  EXPECT_NE(run.err.find("holds a model only"), std::string::npos) << run.err;
  EXPECT_NE(run.err.find("--checkpoint.load-step"), std::string::npos) << run.err;
}

TEST(ProgramCheckpoint, StepPartsAndBeginningAreChosen) {
  const Checkpointed checkpoints;
  const std::string options = kShort + checkpoints.option() +
                              "--checkpoint.no-last-save-model-only --checkpoint.interval 2 "
                              "--lr-scheduler.total-steps 8 ";
  const ProgramRun whole = run_program(options + "--training.steps 6 ");
  const std::string from_2 = options + "--training.steps 6 --checkpoint.load-step 2 ";
  const ProgramRun again = run_program(from_2 + "--checkpoint.load-only ");
  EXPECT_EQ(losses_from(again, 3), losses_from(whole, 3));
  const auto without = [&](const std::string& part) {
    return run_program(from_2 + "--checkpoint.load-only --checkpoint.exclude-from-loading " + part);
  };
  // The same batch first; then other moments, or another learning rate, move the weights elsewhere.
  for (const char* part : {"optimizer", "lr_scheduler", "lr-scheduler,optimizer"}) {
    SCOPED_TRACE(part);
    const ProgramRun run = without(part);
    expect_trained(run);
    EXPECT_EQ(run.summary["steps"][0]["loss"], again.summary["steps"][0]["loss"]);
    EXPECT_NE(losses_from(run, 4), losses_from(whole, 4));
  }
  EXPECT_NE(losses_from(without("dataloader"), 3), losses_from(whole, 3));
  const ProgramRun counted_anew = without("train_state");
  EXPECT_EQ(counted_anew.summary["steps"].size(), 6U);
  EXPECT_EQ(counted_anew.summary["steps"][0]["loss"], again.summary["steps"][0]["loss"]);
  // As the beginning of another run: the model only, or all of it.
  const Checkpointed other;
  const std::string from_elsewhere =
      kShort + other.option() + "--training.steps 6 --lr-scheduler.total-steps 8 " +
      "--checkpoint.load-only --checkpoint.initial-load-path " + checkpoints.path("step-2") + " ";
  EXPECT_EQ(run_program(from_elsewhere).summary["steps"].size(), 6U);
  EXPECT_EQ(
      losses_from(run_program(from_elsewhere + "--checkpoint.no-initial-load-model-only "), 3),
      losses_from(whole, 3));
}

// The figures of a run that neither saves nor loads.
TEST(ProgramCheckpoint, NeitherSavingNorLoadingNeedsDeviceMemory) {
  const std::string options =
      "train --training.seq-len 16 --model.num-layers 2 "
      "--training.local-batch-size 1 --lr-scheduler.total-steps 8 ";
  for (const std::string& placement : {kSwap, std::string()}) {
    SCOPED_TRACE(placement);
    const Checkpointed checkpoints;
    const std::string saving = options + placement + checkpoints.option() +
                               "--checkpoint.enable --checkpoint.interval 1 "
                               "--checkpoint.no-last-save-model-only ";
    const ProgramRun without = run_program(options + placement + "--training.steps 4 ");
    const ProgramRun saved = run_program(saving + "--training.steps 4 ");
    const ProgramRun loaded = run_program(saving + "--training.steps 8 ");
    expect_trained(loaded);
    EXPECT_EQ(losses_of(saved), losses_of(without));
    for (size_t step = 0; step < 4; ++step) {
      EXPECT_EQ(saved.summary["steps"][step]["peak_allocated_bytes"],
                without.summary["steps"][step]["peak_allocated_bytes"]);
    }
    EXPECT_EQ(saved.summary["peak_allocated_bytes"], without.summary["peak_allocated_bytes"]);
    EXPECT_LE(loaded.summary["peak_allocated_bytes"], without.summary["peak_allocated_bytes"]);
    EXPECT_EQ(loaded.summary["host"]["pinned_bytes"], without.summary["host"]["pinned_bytes"]);
    EXPECT_EQ(loaded.summary["host"]["pinned_allocations_after_first_step"], 0);
  }
}

void expect_failure(const std::string& arguments, const std::vector<std::string>& parts) {
  const ProgramRun run = run_program(arguments);
  EXPECT_EQ(run.status, 1) << run.out << run.err;
  EXPECT_EQ(std::count(run.err.begin(), run.err.end(), '\n'), 1) << run.err;
  for (const std::string& part : parts) {
    EXPECT_NE(run.err.find(part), std::string::npos) << part << " is not in: " << run.err;
  }
}

TEST(ProgramCheckpointErrors, WhatDoesNotFitIsNamed) {
  const Checkpointed checkpoints;
  const std::string options =
      kShort + checkpoints.option() + "--checkpoint.no-last-save-model-only ";
  expect_trained(run_program(options + "--training.steps 1 "));
  const std::string more = options + "--training.steps 2 ";
  const std::string step = checkpoints.path("step-1");
  expect_failure(more + "--model.num-layers 3 ",
                 {step, "layers.2.attention_norm.weight is missing"});
  expect_failure(more + "--model.num-layers 1 ", {step, "layers.1.", "--model.num-layers"});
  expect_failure(more + "--training.dtype bfloat16 ", {step, "found dtype F32, allowed is BF16"});
  expect_failure(more + "--model.name deepseek_v3 ", {step, "attention.wq.weight: found shape"});
  const TemporaryFolder texts;
  texts.write("text.txt", std::string(4096, 'x'));
  expect_failure(more + "--data.path " + texts.path("text.txt"),
                 {step + "/train_state.json", "dataloader.text_bytes", "exclude-from-loading"});
  expect_failure(more + "--checkpoint.folder /proc/nowhere ", {"/proc/nowhere"});

  const std::string file = step + "/model-00001-of-00001.safetensors";
  fs::resize_file(file, fs::file_size(file) - 1);
  expect_failure(more, {file, "truncated"});
  fs::remove(file);
  expect_failure(more, {file, "is missing"});
}

TEST(ProgramCheckpointErrors, WrongUseIsRefusedBeforeTheRun) {
  const std::string enable = "--checkpoint.enable ";
  expect_usage_error(enable + "--checkpoint.keep-latest-k 1 ", {"keep-latest-k", "found 1"});
  expect_usage_error(enable + "--checkpoint.interval 0 ", {"interval"});
  expect_usage_error(enable + "--checkpoint.load-step 7 ", {"load-step: found 7", "no checkpoint"});
  expect_usage_error(enable + "--checkpoint.exclude-from-loading optimizer,model ",
                     {"exclude-from-loading: found \"model\"", "lr_scheduler"});
  expect_usage_error(enable + "--device.dry-run ", {"checkpoint.enable", "dry-run"});
  expect_usage_error(enable + "--checkpoint.async-mode later ", {"async-mode", "disabled, async"});
}

}  // namespace
}  // namespace swapline::trainer
