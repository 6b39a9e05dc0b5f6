// Parallel settings that do not go together: one line that names the options and what is allowed.
#include "tests/trainer/program_expectations.h"

#include <gtest/gtest.h>

namespace swapline::trainer {
namespace {

const std::string kTwoShare =
    "--model.name deepseek_v3 --parallelism.expert-parallel-degree 2 --training.seq-len 64 ";
const std::string kEightLayers = "--training.seq-len 64 --model.num-layers 8 ";
const std::string kFourStages =
    kEightLayers + "--training.local-batch-size 8 --parallelism.pipeline-parallel-degree 4 ";

const std::string kDegree = "--parallelism.pipeline-parallel-degree";
const std::string kSchedule = "--parallelism.pipeline-parallel-schedule";
const std::string kMicrobatchSize = "--parallelism.pipeline-parallel-microbatch-size";
const std::string kLayersPerStage = "--parallelism.pipeline-parallel-layers-per-stage";
const std::string kExperts = "--parallelism.expert-parallel-degree";
const std::string kOverlap = "--parallelism.moe-fb-overlap";

TEST(ProgramParallelErrors, ExpertsAreSharedByDeepseekOnly) {
  expect_usage_error(kExperts + " 2", {"--model.name: found llama3", kExperts, "deepseek_v3"});
}

TEST(ProgramParallelErrors, SharedExpertsForetellNoMoreTokens) {
  expect_usage_error(kTwoShare + "--training.num-mtp-modules 1",
                     {"--training.num-mtp-modules: found 1", kExperts, "allowed is 0"});
}

TEST(ProgramParallelErrors, SharedExpertsRecomputeWholeLayersOneByOneOrNone) {
  expect_usage_error(kTwoShare + "--activation-checkpoint.mode selective",
                     {"--activation-checkpoint.mode: found selective", kExperts, "full or none"});
  expect_usage_error(
      kTwoShare + "--activation-checkpoint.layers-per-block 2",
      {"--activation-checkpoint.layers-per-block: found 2", kExperts, "allowed is 1"});
  expect_usage_error(kTwoShare + "--activation-checkpoint.first-layers 2",
                     {"--activation-checkpoint.first-layers: found 2", kExperts, "allowed is 0"});
}

TEST(ProgramParallelErrors, SharedExpertsDivideTheExperts) {
  expect_usage_error("--model.name deepseek_v3 " + kExperts + " 3", {kExperts + ": found 3", "8"});
}

TEST(ProgramParallelErrors, DryRunOfSharedExpertsNeedsForcedBalance) {
  expect_usage_error(kTwoShare + "--device.dry-run",
                     {"--device.dry-run", "--debug.moe-force-load-balance"});
}

TEST(ProgramParallelErrors, OverlapNeedsSharedExperts) {
  expect_usage_error("--model.name deepseek_v3 " + kOverlap,
                     {kOverlap, kExperts + " 1", "2 or more"});
}

TEST(ProgramParallelErrors, GPipeHasNothingToOverlap) {
  expect_usage_error(kTwoShare + kFourStages + kOverlap + " " + kSchedule + " GPipe",
                     {kSchedule + ": found GPipe", kOverlap, "another schedule"});
}

TEST(ProgramParallelErrors, DevicesAreAtMostEight) {
  expect_usage_error("--model.name deepseek_v3 " + kFourStages + kExperts + " 4",
                     {kDegree, kExperts, "= 16", "at most 8"});
}

TEST(ProgramParallelErrors, ThereIsOneCpu) {
  expect_usage_error(kFourStages + "--device.type cpu",
                     {"--parallelism", "found 4 devices", "--device.type cpu", "allowed is 1"});
}

TEST(ProgramParallelErrors, RealDevicesAreOneInAProcess) {
  for (const std::string type : {"cuda", "npu", "xpu"}) {
    expect_usage_error(
        kFourStages + "--device.type " + type,
        {kDegree, kExperts, "= 4 devices", "--device.type " + type, "allowed is 1", "sim"});
  }
}

TEST(ProgramParallelErrors, MicrobatchesDivideTheLocalBatch) {
  expect_usage_error(kFourStages + kMicrobatchSize + " 3",
                     {kMicrobatchSize + ": found 3", "--training.local-batch-size, 8"});
}

TEST(ProgramParallelErrors, GlobalBatchIsAMultipleOfWhatAllDevicesTake) {
  expect_usage_error(
      kTwoShare + "--training.local-batch-size 2 --training.global-batch-size 6",
      {"--training.global-batch-size: found 6", "--training.local-batch-size", kExperts, "4"});
}

TEST(ProgramParallelErrors, LayersPerStageAddUpToTheModel) {
  expect_usage_error(kFourStages + kLayersPerStage + " 3,3,2,1",
                     {kLayersPerStage + ": found 3,3,2,1", "9 layers", "8 of the model"});
  expect_usage_error(kFourStages + kLayersPerStage + " 3,2,3",
                     {kLayersPerStage + ": found 3,2,3", "3 numbers", "4 stages"});
  expect_usage_error(kFourStages + kLayersPerStage + " 3",
                     {kLayersPerStage + ": found 3", "allowed is 1 to 2"});
}

TEST(ProgramParallelErrors, LayersPerStageAreNumbers) {
  expect_usage_error(kFourStages + kLayersPerStage + " 3,2,two,1",
                     {kLayersPerStage + ": found \"3,2,two,1\"", "numbers with commas"});
}

TEST(ProgramParallelErrors, EachInnerStageHasALayer) {
  expect_usage_error("--model.num-layers 5 --training.local-batch-size 8 " + kDegree + " 8",
                     {"found 5 layers for 8 stages", "at least one layer", kDegree, kSchedule});
}

TEST(ProgramParallelErrors, DualPipeVNeedsTwoMicrobatchesForEachRank) {
  expect_usage_error(
      kEightLayers + "--training.local-batch-size 4 " + kDegree + " 4 " + kSchedule + " DualPipeV",
      {"DualPipeV on 4 ranks: found 4 micro-batches",
       "8 or more",
       kMicrobatchSize,
       "--training.local-batch-size"});
}

TEST(ProgramParallelErrors, SchedulesAreNamedWhenOneIsUnknown) {
  expect_usage_error(
      kFourStages + kSchedule + " ZeroBubble",
      {kSchedule + ": found \"ZeroBubble\"", "GPipe, 1F1B, Interleaved1F1B, DualPipeV"});
}

TEST(ProgramParallelErrors, RecomputeAheadNeedsABubble) {
  expect_usage_error("--activation-checkpoint.recompute-ahead",
                     {"--activation-checkpoint.recompute-ahead", kDegree + " above 1"});
  expect_usage_error(
      kFourStages + "--activation-checkpoint.recompute-ahead --activation-checkpoint.mode none",
      {"--activation-checkpoint.recompute-ahead", "--activation-checkpoint.mode full"});
  expect_usage_error(kTwoShare + kFourStages + "--activation-checkpoint.recompute-ahead",
                     {"--activation-checkpoint.recompute-ahead", kExperts + " 1"});
}

TEST(ProgramParallelErrors, FlavorsAreThoseOfTheModel) {
  expect_usage_error("--model.name deepseek_v3 --model.flavor 8B",
                     {"--model.flavor: found \"8B\"", "debugmodel, 16B, 671B"});
  expect_usage_error("--training.num-mtp-modules 1",
                     {"--training.num-mtp-modules: found 1", "llama3", "deepseek_v3"});
}

}  // namespace
}  // namespace swapline::trainer
