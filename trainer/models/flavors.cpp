// The list of models.
#include "trainer/models/flavors.h"

#include "trainer/models/deepseek_v3_shape.h"
#include "trainer/models/llama3_shape.h"

#include <algorithm>

namespace swapline::trainer {

std::vector<std::string> model_names() {
  return {"llama3", "deepseek_v3"};
}

std::vector<std::string> flavor_names() {
  std::vector<std::string> names = llama3_flavor_names();
  for (const std::string& name : deepseek_v3_flavor_names()) {
    if (std::find(names.begin(), names.end(), name) == names.end()) {
      names.push_back(name);
    }
  }
  return names;
}

}  // namespace swapline::trainer
