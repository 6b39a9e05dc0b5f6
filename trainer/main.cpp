// The program: swapline train, swapline devices. Exit status 0: done; 2: used wrongly; 1: failed.
#include "trainer/command_line.h"
#include "trainer/device.h"
#include "trainer/train.h"

#include <cstdio>
#include <exception>
#include <string>
#include <string_view>
#include <vector>

#include <c10/util/Exception.h>

namespace {

using swapline::trainer::Command;

constexpr int kFailed = 1;
constexpr int kUsedWrongly = 2;

int fail(int status, std::string_view message) {
  // One line: what follows in the message is for developers.
  message = message.substr(0, message.find('\n'));
  std::fflush(stdout);
  std::fprintf(stderr, "swapline: %.*s\n", static_cast<int>(message.size()), message.data());
  return status;
}

int run(const std::vector<std::string>& arguments) {
  const Command command = swapline::trainer::parse_command_line(arguments);
  switch (command.kind) {
    case Command::Kind::kPrintAndExit:
      std::fputs(command.text.c_str(), stdout);
      return 0;
    case Command::Kind::kDevices:
      std::fputs(swapline::trainer::device_preset_table().c_str(), stdout);
      return 0;
    case Command::Kind::kTrain:
      swapline::trainer::train(command.config);
      return 0;
  }
  return kFailed;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run(std::vector<std::string>(argv + 1, argv + argc));
  } catch (const swapline::trainer::UsageError& error) {
    return fail(kUsedWrongly, error.what());
  } catch (const c10::Error& error) {
    return fail(kFailed, error.what_without_backtrace());
  } catch (const std::exception& error) {
    return fail(kFailed, error.what());
  }
}
