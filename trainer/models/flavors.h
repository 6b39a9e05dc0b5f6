// Which models there are, by the names that options take.
#pragma once

#include <string>
#include <vector>

namespace swapline::trainer {

std::vector<std::string> model_names();
// Of all models; a model that lacks a flavor says so when it is made.
std::vector<std::string> flavor_names();

}  // namespace swapline::trainer
