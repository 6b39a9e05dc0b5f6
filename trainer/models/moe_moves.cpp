// index_select's own gradient adds into zeros, on devices with atomics in any order: hence autograd
// functions, of which each is the other's gradient.
#include "trainer/models/moe_moves.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

namespace swapline::trainer {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr auto kNumChoices = "num_choices";

at::Tensor summed(const at::Tensor& rows, const at::Tensor& places, int64_t num_choices) {
  const at::Tensor by_token = rows.index_select(0, places);
  return num_choices == 1 ? by_token : by_token.view({-1, num_choices, rows.size(1)}).sum(1);
}

struct RowsOfTokens : torch::autograd::Function<RowsOfTokens> {
  static at::Tensor forward(AutogradContext* context,
                            const at::Tensor& x,
                            const at::Tensor& token_of_row,
                            const at::Tensor& places) {
    context->save_for_backward({places});
    context->saved_data[kNumChoices] = x.size(0) == 0 ? 1 : places.size(0) / x.size(0);
    return x.index_select(0, token_of_row);
  }
  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const at::Tensor places = context->get_saved_variables()[0];
    return {summed(grads[0], places, context->saved_data[kNumChoices].toInt()), {}, {}};
  }
};

struct SumOfRows : torch::autograd::Function<SumOfRows> {
  static at::Tensor forward(AutogradContext* context,
                            const at::Tensor& rows,
                            const at::Tensor& places,
                            int64_t num_choices) {
    context->save_for_backward({places});
    context->saved_data[kNumChoices] = num_choices;
    return summed(rows, places, num_choices);
  }
  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const at::Tensor places = context->get_saved_variables()[0];
    const int64_t num_choices = context->saved_data[kNumChoices].toInt();
    const at::Tensor token_of_row = at::floor_divide(inverse_of(places), num_choices);
    return {grads[0].index_select(0, token_of_row), {}, {}};
  }
};

}  // namespace

at::Tensor inverse_of(const at::Tensor& places) {
  return at::empty_like(places).scatter_(0, places, at::arange(places.size(0), places.options()));
}

at::Tensor rows_of_tokens(const at::Tensor& x,
                          const at::Tensor& token_of_row,
                          const at::Tensor& places) {
  return RowsOfTokens::apply(x, token_of_row, places);
}

at::Tensor sum_of_rows(const at::Tensor& rows, const at::Tensor& places, int64_t num_choices) {
  return SumOfRows::apply(rows, places, num_choices);
}

}  // namespace swapline::trainer
