// Gradients of parameters that several devices hold: each gets the sum.
#pragma once

#include "trainer/models/model.h"
#include "trainer/parallel/lanes.h"
#include "trainer/rank.h"

#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

namespace swapline::trainer {

class SharedGradients {
 public:
  // One model for each lane; ranks as in StageParts. All must outlive it.
  SharedGradients(const std::vector<std::unique_ptr<Model>>& models, const Ranks& ranks);

  // After the step's backwards, before clipping.
  void add_up() const;
  // Sums the loads of experts over the lanes, and balances.
  void balance() const;

 private:
  // Parameters whose gradients are added up at once: a large one, or small ones that travel as one.
  using Bucket = std::vector<PerLane>;
  struct Shared {
    Lanes lanes;
    std::vector<Bucket> buckets;
  };
  class BucketSum;

  static void add_to_buckets(std::vector<Bucket>& buckets, PerLane parameter);

  const std::vector<std::unique_ptr<Model>>& models_;
  std::vector<Shared> between_lanes_;  // one for each rank of the pipeline
  std::vector<std::pair<Lanes, PerLane>> tied_;
};

}  // namespace swapline::trainer
