// The text of the error that a call throws.
#pragma once

#include <exception>
#include <string>

#include <gmock/gmock.h>

namespace swapline::testing {

// Empty when nothing is thrown.
template <typename Call>
std::string message_of(const Call& call) {
  try {
    call();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "";
}

}  // namespace swapline::testing
