// The bits of Muon, swapped and resident, are those of Python's torch.optim.Muon: runs it.
#include "tests/optimizer/muon_reference.h"
#include "tests/optimizer/muon_training.h"

#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

namespace swapline::testing {
namespace {

constexpr int kNumSteps = 5;  // as torch_muon.py

struct Case {
  at::ScalarType dtype;
  int64_t rows;
  int64_t columns;
  bool nesterov;
  MuonLrRule lr_rule;
  int64_t ns_steps;

  // The argument of torch_muon.py.
  std::string text() const {
    return std::string(dtype == at::kFloat ? "float32" : "bfloat16") + "," + std::to_string(rows) +
           "," + std::to_string(columns) + "," + (nesterov ? "1" : "0") + "," +
           (lr_rule == MuonLrRule::kOriginal ? "original" : "match_rms_adamw") + "," +
           std::to_string(ns_steps);
  }
};

// No bfloat16 without nesterov: there torch 2.13 divides the momentum itself by its norm.
std::vector<Case> all_cases() {
  const auto original = MuonLrRule::kOriginal;
  const auto match = MuonLrRule::kMatchRmsAdamw;
  return {{at::kFloat, 64, 200, true, original, 5},
          {at::kFloat, 200, 64, true, match, 5},
          {at::kFloat, 96, 96, false, match, 3},
          {at::kFloat, 150, 70, false, original, 1},
          {at::kFloat, 7, 5, true, original, 5},
          {at::kFloat, 1, 33, true, original, 7},
          {at::kFloat, 33, 1, true, match, 5},
          {at::kBFloat16, 64, 200, true, match, 5},
          {at::kBFloat16, 200, 64, true, original, 5},
          {at::kBFloat16, 129, 65, true, match, 10},
          {at::kBFloat16, 5, 7, true, original, 5}};
}

std::string torch_bytes(const std::vector<Case>& cases) {
  std::string command = "OMP_NUM_THREADS=1 '" SWAPLINE_PYTHON "' '" SWAPLINE_TORCH_MUON "'";
  for (const Case& one : cases) {
    command += " " + one.text();
  }
  std::string bytes;
  FILE* const pipe = popen(command.c_str(), "r");
  char part[4096];
  while (const size_t num = std::fread(part, 1, sizeof(part), pipe)) {
    bytes.append(part, num);
  }
  EXPECT_EQ(pclose(pipe), 0) << command;
  return bytes;
}

std::string bytes_of(const at::Tensor& tensor) {
  const at::Tensor here = tensor.detach().cpu().contiguous();
  return {static_cast<const char*>(here.const_data_ptr()), here.nbytes()};
}

class MuonTorchTest : public OptimizerTest {
 protected:
  // The bytes of the parameter and of its momentum, after as many steps as torch_muon.py takes.
  static std::string train(const Case& one, StatePlacement placement) {
    MuonGroup group;
    group.settings.lr = 0.02;
    group.settings.weight_decay = 0.3;
    group.settings.momentum = 0.9;
    group.settings.nesterov = one.nesterov;
    group.settings.lr_rule = one.lr_rule;
    group.settings.ns_steps = one.ns_steps;
    group.params = {make_param({one.rows, one.columns}, 1, one.dtype)};
    AdamOptions options;
    options.placement = placement;
    Muon muon(make_context(), {group}, {}, options);
    MuonReference reference(group);
    for (int step = 0; step < kNumSteps; ++step) {
      group.params[0].mutable_grad() =
          make_param({one.rows, one.columns}, 100 + step, one.dtype).detach();
      muon.step();
      reference.step();
      muon.settings(0).lr *= 0.75;
      reference.settings().lr *= 0.75;
    }
    expect_equal(snapshot(muon, group.params), reference.snapshot());
    return bytes_of(group.params[0]) + bytes_of(muon.state(group.params[0]).at("momentum_buffer"));
  }
};

TEST_F(MuonTorchTest, TheBitsAreThoseOfTorchsOwnMuon) {
  const std::vector<Case> cases = all_cases();
  const std::string expected = torch_bytes(cases);
  size_t offset = 0;
  for (const Case& one : cases) {
    SCOPED_TRACE(one.text());
    const std::string resident = train(one, StatePlacement::kDevice);
    const std::string swapped = train(one, StatePlacement::kSwap);
    EXPECT_TRUE(resident == expected.substr(offset, resident.size()));
    EXPECT_TRUE(swapped == resident);
    offset += resident.size();
  }
  EXPECT_EQ(offset, expected.size());
}

}  // namespace
}  // namespace swapline::testing
