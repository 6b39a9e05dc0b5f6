// Shapes from the Llama 3.1 paper (8B, 70B, 405B) and the Llama 3.2 model card (1B).
#include "trainer/models/llama3_shape.h"

#include "trainer/config.h"

namespace swapline::trainer {
namespace {

const std::vector<Llama3Shape>& shapes() {
  //                           flavor        dim  L  heads kv  ffn  vocab  tied
  static const std::vector<Llama3Shape> kShapes = {
      {"debugmodel", 256, 6, 8, 8, 768, 256},
      {"1B", 2048, 16, 32, 8, 8192, 128256, true},
      {"8B", 4096, 32, 32, 8, 14336, 128256},
      {"70B", 8192, 80, 64, 8, 28672, 128256},
      {"405B", 16384, 126, 128, 8, 53248, 128256},
  };
  return kShapes;
}

}  // namespace

int64_t Llama3Shape::num_parameters() const {
  const int64_t attention = 2 * dim * dim + 2 * dim * kv_dim();
  const int64_t feed_forward = 3 * dim * ffn_dim;
  const int64_t layer = attention + feed_forward + 2 * dim;
  return num_layers * layer + (tied_head ? 1 : 2) * vocab_size * dim + dim;
}

double Llama3Shape::flops_per_token(int64_t seq_len) const {
  const int64_t looked_up = tied_head ? 0 : vocab_size * dim;
  return 6.0 * static_cast<double>(num_parameters() - looked_up) +
         12.0 * static_cast<double>(num_layers * dim * seq_len);
}

std::vector<std::string> llama3_flavor_names() {
  std::vector<std::string> names;
  for (const Llama3Shape& shape : shapes()) {
    names.push_back(shape.flavor);
  }
  return names;
}

Llama3Shape llama3_shape(std::string_view flavor) {
  std::string known;
  for (const Llama3Shape& shape : shapes()) {
    if (shape.flavor == flavor) {
      return shape;
    }
    known += (known.empty() ? "" : ", ") + shape.flavor;
  }
  throw UsageError("--model.flavor: found \"" + std::string(flavor) +
                   "\", allowed is one of: " + known);
}

}  // namespace swapline::trainer
