// Splits by rule, by number and by list, and every split that is refused.
#include "trainer/pipeline/layer_split.h"

#include "tests/support/errors.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <stdexcept>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace swapline::trainer {
namespace {

using ::swapline::testing::message_of;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr const char* kOption = "--parallelism.pipeline-parallel-layers-per-stage: ";

std::string refusal_of(int64_t num_layers, int num_stages, const std::vector<int64_t>& given) {
  EXPECT_THROW(split_layers(num_layers, num_stages, given), std::invalid_argument);
  return message_of([&] { split_layers(num_layers, num_stages, given); });
}

TEST(LayerSplit, IsEvenWhenItCanBe) {
  EXPECT_THAT(split_layers(8, 4, {}), ElementsAre(2, 2, 2, 2));
  EXPECT_THAT(split_layers(5, 1, {}), ElementsAre(5));
}

TEST(LayerSplit, WhatIsLeftOverGoesToTheStagesBeforeTheLast) {
  EXPECT_THAT(split_layers(9, 4, {}), ElementsAre(2, 2, 3, 2));
  EXPECT_THAT(split_layers(10, 4, {}), ElementsAre(2, 3, 3, 2));
  EXPECT_THAT(split_layers(11, 4, {}), ElementsAre(3, 3, 3, 2));
}

TEST(LayerSplit, AddsUpAndDiffersByOneAtMost) {
  for (int64_t num_layers = 1; num_layers <= 130; ++num_layers) {
    for (int num_stages = 1; num_stages <= num_layers; ++num_stages) {
      const std::vector<int64_t> layers = split_layers(num_layers, num_stages, {});
      ASSERT_EQ(layers.size(), static_cast<size_t>(num_stages));
      ASSERT_EQ(std::accumulate(layers.begin(), layers.end(), int64_t{0}), num_layers);
      const auto [least, most] = std::minmax_element(layers.begin(), layers.end());
      ASSERT_LE(*most - *least, 1);
      ASSERT_EQ(layers.back(), *least);
    }
  }
}

TEST(LayerSplit, OneNumberIsForEachAndTheLastTakesTheRest) {
  EXPECT_THAT(split_layers(8, 3, {3}), ElementsAre(3, 3, 2));
  EXPECT_THAT(split_layers(8, 3, {1}), ElementsAre(1, 1, 6));
  EXPECT_THAT(split_layers(8, 4, {2}), ElementsAre(2, 2, 2, 2));
}

TEST(LayerSplit, ListIsTakenAsItIs) {
  EXPECT_THAT(split_layers(8, 3, {1, 5, 2}), ElementsAre(1, 5, 2));
  EXPECT_THAT(split_layers(8, 1, {8}), ElementsAre(8));
}

TEST(LayerSplit, NoStagesIsRefused) {
  EXPECT_EQ(refusal_of(8, 0, {}),
            "found 0 stages, allowed is 1 or more: raise --parallelism.pipeline-parallel-degree");
}

TEST(LayerSplit, WithFewerLayersTheLastAndTheFirstStageHaveNone) {
  EXPECT_THAT(split_layers(3, 4, {}), ElementsAre(1, 1, 1, 0));
  EXPECT_THAT(split_layers(6, 8, {}), ElementsAre(0, 1, 1, 1, 1, 1, 1, 0));
  EXPECT_THAT(split_layers(1, 2, {}), ElementsAre(1, 0));
  EXPECT_THAT(split_layers(3, 4, {0, 2, 1, 0}), ElementsAre(0, 2, 1, 0));
}

TEST(LayerSplit, AnotherStageWithoutLayersIsRefused) {
  EXPECT_EQ(refusal_of(1, 4, {}),
            "found 1 layers for 4 stages, allowed is at least one layer for each but the first and "
            "the last: lower "
            "--parallelism.pipeline-parallel-degree or take a "
            "--parallelism.pipeline-parallel-schedule of fewer stages per rank");
}

TEST(LayerSplit, NumberThatLeavesNothingForTheLastIsRefused) {
  EXPECT_EQ(refusal_of(8, 3, {4}),
            std::string(kOption) +
                "found 4 for 8 layers on 3 stages, allowed is 1 to 3: the last stage takes the "
                "rest, at least 1");
  EXPECT_THAT(refusal_of(8, 3, {0}), HasSubstr("found 0 for 8 layers"));
  EXPECT_THAT(refusal_of(8, 3, {-2}), HasSubstr("found -2 for 8 layers"));
  EXPECT_THAT(refusal_of(8, 3, {std::numeric_limits<int64_t>::max()}), HasSubstr("1 to 3"));
}

TEST(LayerSplit, ListOfTheWrongLengthIsRefused) {
  EXPECT_THAT(refusal_of(8, 3, {4, 4}),
              HasSubstr(std::string(kOption) +
                        "found 4,4, 2 numbers, allowed is one for each of the 3 stages"));
}

TEST(LayerSplit, AnInnerStageWithoutLayersInAListIsRefused) {
  EXPECT_EQ(refusal_of(8, 3, {4, 0, 4}),
            std::string(kOption) +
                "found 4,0,4, allowed is 1 to 8 layers for each stage, and 0 for "
                "the first and the last");
  EXPECT_THAT(refusal_of(8, 2, {9, -1}), HasSubstr("allowed is 1 to 8"));
}

TEST(LayerSplit, ListThatDoesNotAddUpIsRefused) {
  EXPECT_EQ(refusal_of(8, 3, {4, 1, 4}),
            std::string(kOption) + "found 4,1,4, 9 layers together, allowed is the 8 of the model");
  EXPECT_THAT(refusal_of(8, 1, {4}), HasSubstr("4 layers together"));
}

}  // namespace
}  // namespace swapline::trainer
