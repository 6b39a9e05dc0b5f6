#include "tests/optimizer/muon_training.h"

namespace swapline::testing {

MuonGroup odd_matrices(const MuonSettings& settings, at::ScalarType dtype) {
  MuonGroup group;
  group.settings = settings;
  int seed = 1;
  for (const std::vector<int64_t>& sizes : std::vector<std::vector<int64_t>>{
           {64, 200}, {150, 48}, {65, 65}, {7, 5}, {1, 100}, {0, 4}, {6, 32, 16}, {3, 5, 7}}) {
    group.params.push_back(make_param(sizes, seed++, dtype));
  }
  const auto transposed = [&](at::IntArrayRef sizes, int64_t dim0, int64_t dim1) {
    return make_param(sizes, seed++, dtype).detach().transpose(dim0, dim1).requires_grad_(true);
  };
  group.params.push_back(transposed({50, 40}, 0, 1));
  group.params.push_back(transposed({4, 32, 24}, 1, 2));
  group.params.push_back(transposed({12, 4, 10}, 0, 1));
  return group;
}

AdamGroup other_params(const AdamSettings& settings, at::ScalarType dtype) {
  return {{make_param({300, 30}, 21, dtype),
           make_param({129}, 22, dtype),
           make_param({}, 23, dtype),
           make_param({64}, 24, dtype)},
          settings};
}

std::vector<at::Tensor> params_of(const MuonGroup& matrices, const AdamGroup& others) {
  std::vector<at::Tensor> params = matrices.params;
  params.insert(params.end(), others.params.begin(), others.params.end());
  return params;
}

std::vector<AdamGroup> as_groups(const std::vector<at::Tensor>& params) {
  return {{params, {}}};
}

std::map<std::string, at::Tensor> snapshot(Optimizer& optimizer,
                                           const std::vector<at::Tensor>& params) {
  std::map<std::string, at::Tensor> tensors;
  for (size_t i = 0; i < params.size(); ++i) {
    const std::string name = "param" + std::to_string(i);
    tensors[name] = params[i].detach().cpu().clone();
    for (const auto& [key, state] : optimizer.state(params[i])) {
      tensors[name + "." + key] = state.cpu().clone();
    }
  }
  return tensors;
}

}  // namespace swapline::testing
