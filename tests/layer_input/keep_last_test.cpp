// keep_last kAuto, the default: the last input stays where its backward comes next, and nowhere
// else.
#include "tests/layer_input/pipeline_stage.h"

#include <vector>

namespace swapline {
namespace {

using testing::all_forward_all_backward;
using testing::one_forward_one_backward;
using testing::PipelineStage;
using testing::Slot;
using testing::stage_options;
using testing::SwappedLayers;

class KeepLastTest : public testing::SimTest {
 protected:
  void SetUp() override { use_machine({.late_copies = true, .copy_slowdown = 20}); }

  // How many inputs stayed in a run of `slots`.
  static int64_t kept_in(PipelineStage& stage,
                         SwappedLayers& swapped,
                         const std::vector<Slot>& slots,
                         bool hinted = false) {
    swapped.inputs.reset_stats();
    stage.run(swapped.inputs, slots, hinted);
    return swapped.inputs.stats().num_kept_on_device;
  }
};

TEST_F(KeepLastTest, OneIsKeptWhereEachBackwardFollowsItsForward) {
  PipelineStage stage(64);
  SwappedLayers swapped(stage_options(1));
  EXPECT_EQ(kept_in(stage, swapped, one_forward_one_backward(4, 1)), 4);
}

TEST_F(KeepLastTest, WithoutTheNumberOfLayersNoneIsKept) {
  PipelineStage stage(64);
  LayerInputOptions options = stage_options(1);
  options.num_layers = 0;
  SwappedLayers swapped(options);
  EXPECT_EQ(kept_in(stage, swapped, one_forward_one_backward(4, 1)), 0);
}

TEST_F(KeepLastTest, WithHintsNoneIsKept) {
  PipelineStage stage(64);
  SwappedLayers swapped(stage_options(1));
  EXPECT_EQ(kept_in(stage, swapped, one_forward_one_backward(4, 1), /*hinted=*/true), 0);
}

TEST_F(KeepLastTest, APipelineWithoutHintsIsSeenInItsFirstStep) {
  for (const auto& slots : {all_forward_all_backward(4, false),
                            all_forward_all_backward(4, true),
                            one_forward_one_backward(5, 3)}) {
    PipelineStage stage(64);
    SwappedLayers swapped(stage_options(1));
    // The first pass's only: no other is kept while it waits.
    EXPECT_LE(kept_in(stage, swapped, slots), 1 + 1);
    const int64_t later = kept_in(stage, swapped, slots);
    EXPECT_LE(later, 1);
    EXPECT_LE(swapped.inputs.stats().peak_resident_inputs, 2);
  }
}

TEST_F(KeepLastTest, AfterAPipelineOneIsKeptAgain) {
  PipelineStage stage(64);
  SwappedLayers swapped(stage_options(1));
  kept_in(stage, swapped, all_forward_all_backward(4, false));
  EXPECT_GE(kept_in(stage, swapped, one_forward_one_backward(4, 1)), 3);
}

TEST_F(KeepLastTest, APassThatIsDroppedDoesNotKeepOthersFromIt) {
  PipelineStage stage(64);
  SwappedLayers swapped(stage_options(1));
  const std::vector<Slot> forward_only = {{testing::Pass::kForward, 0}};
  EXPECT_EQ(kept_in(stage, swapped, forward_only), 1);
  // Runs the same micro-batch forward again: the former pass is dropped then, after its last layer.
  EXPECT_EQ(kept_in(stage, swapped, one_forward_one_backward(1, 1)), 0);
  EXPECT_EQ(kept_in(stage, swapped, one_forward_one_backward(3, 1)), 3);
  EXPECT_EQ(swapped.inputs.stats().resident_inputs, 0);
}

TEST_F(KeepLastTest, ANumberIsKeptToWhateverTheSchedule) {
  for (const int64_t keep_last : {0, 1, 2}) {
    PipelineStage stage(64);
    LayerInputOptions options = stage_options(1);
    options.keep_last = keep_last;
    SwappedLayers swapped(options);
    EXPECT_EQ(kept_in(stage, swapped, all_forward_all_backward(4, false)), 4 * keep_last);
    EXPECT_EQ(kept_in(stage, swapped, all_forward_all_backward(4, false), true), 4 * keep_last);
  }
}

}  // namespace
}  // namespace swapline
