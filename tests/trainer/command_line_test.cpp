// Flags, TOML files, their order, and every kind of error, each in one line.
#include "trainer/command_line.h"

#include "tests/trainer/temporary_folder.h"
#include "trainer/options.h"
#include "trainer/parallel/layout.h"

#include <set>

#include <gtest/gtest.h>

namespace swapline::trainer {
namespace {

Config train(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), "train");
  return parse_command_line(arguments).config;
}

std::string error_of(std::vector<std::string> arguments) {
  try {
    train(std::move(arguments));
  } catch (const UsageError& error) {
    return error.what();
  }
  return "no error";
}

// In one line, every part that a user needs.
void expect_error(const std::vector<std::string>& arguments,
                  const std::vector<std::string>& parts) {
  const std::string error = error_of(arguments);
  EXPECT_EQ(error.find('\n'), std::string::npos) << error;
  for (const std::string& part : parts) {
    EXPECT_NE(error.find(part), std::string::npos) << "\"" << part << "\" not in: " << error;
  }
}

TEST(CommandLine, DefaultsStandWithoutArguments) {
  const Config config = train({});
  EXPECT_EQ(config.device.preset, "ascend-910b");
  EXPECT_EQ(config.activation_checkpoint.mode, "full");
  EXPECT_FALSE(config.optimizer.swap_optimizer);
}

TEST(CommandLine, ValuesOfEveryKindAreRead) {
  const Config config = train({"--model.flavor",
                               "8B",
                               "--training.steps=3",
                               "--optimizer.lr",
                               "1e-3",
                               "--device.memory",
                               "96MiB",
                               "--optimizer.swap-optimizer",
                               "--lr-scheduler.decay-ratio",
                               "0.5",
                               "--lr-scheduler.total-steps",
                               "none",
                               "--training.global-batch-size",
                               "-1"});
  EXPECT_EQ(config.model.flavor, "8B");
  EXPECT_EQ(config.training.steps, 3);
  EXPECT_EQ(config.optimizer.lr, 1e-3);
  EXPECT_EQ(config.device.memory.value, size_t{96} << 20);
  EXPECT_TRUE(config.optimizer.swap_optimizer);
  EXPECT_EQ(config.lr_scheduler.decay_ratio, 0.5);
  EXPECT_EQ(config.lr_scheduler.total_steps, std::nullopt);
}

TEST(CommandLine, DashesAndUnderscoresAreAlike) {
  const Config config = train({"--optimizer.swap_optimizer",
                               "--training.local_batch_size",
                               "8",
                               "--job.dump_folder=my_folder"});
  EXPECT_TRUE(config.optimizer.swap_optimizer);
  EXPECT_EQ(config.training.local_batch_size, 8);
  EXPECT_EQ(config.job.dump_folder, "my_folder");
}

TEST(CommandLine, LaterWordsWin) {
  EXPECT_EQ(train({"--training.steps", "3", "--training.steps", "5"}).training.steps, 5);
  EXPECT_FALSE(train({"--optimizer.swap-optimizer", "--optimizer.no-swap-optimizer"})
                   .optimizer.swap_optimizer);
  EXPECT_TRUE(train({"--optimizer.no-swap-optimizer", "--optimizer.swap-optimizer"})
                  .optimizer.swap_optimizer);
}

TEST(CommandLine, TomlCountsWhereItStandsAmongTheFlags) {
  const TemporaryFolder folder;
  const std::string file =
      folder.write("run.toml",
                   "[training]\nsteps = 7\nseq_len = 64\n"
                   "[optimizer]\nswap-optimizer = true\nlr = 0.002\n"
                   "[swap_layer_input]\nenable = true\nmin-bytes = \"1KiB\"\n");
  const Config later = train({"--training.steps", "3", "--config", file});
  EXPECT_EQ(later.training.steps, 7);
  EXPECT_EQ(later.training.seq_len, 64);
  EXPECT_TRUE(later.optimizer.swap_optimizer);
  EXPECT_EQ(later.optimizer.lr, 0.002);
  EXPECT_EQ(later.swap_layer_input.min_bytes.value, 1024U);

  const Config earlier =
      train({"--config", file, "--training.steps", "3", "--optimizer.no_swap_optimizer"});
  EXPECT_EQ(earlier.training.steps, 3);
  EXPECT_FALSE(earlier.optimizer.swap_optimizer);
}

TEST(CommandLine, LaterTomlWinsOverEarlierToml) {
  const TemporaryFolder folder;
  const std::string first = folder.write("1.toml", "[training]\nsteps = 1\nseq-len = 11\n");
  const std::string second = folder.write("2.toml", "[training]\nsteps = 2\n");
  const Config config = train({"--config", first, "--config", second});
  EXPECT_EQ(config.training.steps, 2);
  EXPECT_EQ(config.training.seq_len, 11);
}

TEST(CommandLineErrors, UnknownOptionIsNamed) {
  expect_error({"--optimizer.swap-optimiser"}, {"--optimizer.swap-optimiser", "unknown option"});
  expect_error({"--no.such", "3"}, {"--no.such", "unknown option", "--help"});
  expect_error({"stray"}, {"stray", "unknown"});
}

TEST(CommandLineErrors, BadNumberNamesOptionFoundAndAllowed) {
  expect_error({"--training.steps", "many"},
               {"--training.steps", "\"many\"", "a whole number of at least 1"});
  expect_error({"--optimizer.lr", "fast"}, {"--optimizer.lr", "\"fast\"", "a number"});
  expect_error({"--optimizer.lr", "nan"}, {"--optimizer.lr", "\"nan\""});
  expect_error({"--training.steps", ""}, {"--training.steps"});
}

TEST(CommandLineErrors, SwapOptimizerTimesMustBeAPositiveWholeNumber) {
  for (const std::string times : {"0", "-1", "2.5"}) {
    expect_error(
        {"--optimizer.swap-optimizer-times", times},
        {"--optimizer.swap-optimizer-times", "\"" + times + "\"", "a whole number of at least 1"});
  }
}

TEST(CommandLineErrors, ValueOutOfRangeNamesTheRange) {
  expect_error({"--optimizer.beta2", "1"}, {"--optimizer.beta2", "at most 0.9999999"});
  expect_error({"--device.link-slowdown", "0"}, {"--device.link-slowdown", "above 0"});
  expect_error({"--lr-scheduler.decay-ratio", "1.5"}, {"none or a number", "at most 1"});
}

TEST(CommandLineErrors, UnknownWordNamesTheWordsAllowed) {
  expect_error({"--model.flavor", "9B"}, {"--model.flavor", "\"9B\"", "debugmodel", "405B"});
  expect_error({"--device.preset", "abacus"}, {"--device.preset", "ascend-910b", "h100-sxm"});
  expect_error({"--device.type", "tpu"}, {"--device.type", "sim, cpu, cuda, npu, xpu"});
  expect_error({"--activation-checkpoint.mode", "some"}, {"full, selective, none"});
}

TEST(CommandLineErrors, BadSizeShowsHowSizesAreWritten) {
  expect_error({"--device.memory", "lots"}, {"--device.memory", "\"lots\"", "96MiB"});
  expect_error({"--device.memory", "-1MiB"}, {"--device.memory"});
}

TEST(CommandLineErrors, MissingValueIsNamed) {
  expect_error({"--training.steps"}, {"--training.steps"});
}

TEST(CommandLineErrors, SubcommandIsNeeded) {
  EXPECT_THROW(parse_command_line({}), UsageError);
  EXPECT_THROW(parse_command_line({"fly"}), UsageError);
}

TEST(CommandLineErrors, TomlErrorsNameFileLineAndSetting) {
  const TemporaryFolder folder;
  const auto with = [&](const std::string& text) {
    return std::vector<std::string>{"--config", folder.write("run.toml", text)};
  };
  expect_error(with("[training]\nstepz = 3\n"), {"run.toml:2", "training.stepz", "unknown option"});
  expect_error(with("[training]\n\nsteps = 0\n"), {"run.toml:3", "training.steps", "\"0\""});
  expect_error(with("[optimizer]\nswap-optimizer-times = 2.5\n"), {"run.toml:2", "\"2.5\""});
  expect_error(with("[training]\nsteps = [1, 2]\n"), {"run.toml:2", "array"});
  expect_error(with("steps = 1\n"), {"run.toml:1", "section"});
  expect_error(with("[training\n"), {"run.toml:1"});
  expect_error({"--config", folder.path("missing.toml")}, {"missing.toml"});
}

TEST(CommandLineErrors, ContradictionsAreRefused) {
  expect_error({"--training.global-batch-size", "6"},
               {"--training.global-batch-size", "6", "multiple", "4"});
  expect_error({"--training.global-batch-size", "0"}, {"--training.global-batch-size"});
  expect_error({"--device.type", "cpu", "--optimizer.swap-optimizer"},
               {"--optimizer.swap-optimizer", "cpu"});
  expect_error({"--device.type", "cpu", "--swap-layer-input.enable"},
               {"--swap-layer-input.enable", "cpu"});
  expect_error({"--device.type", "cpu", "--device.dry-run"}, {"--device.dry-run", "sim"});
  expect_error({"--device.type", "cpu", "--profiling.enable-trace"}, {"--profiling.enable-trace"});
  expect_error({"--device.type", "cuda", "--device.memory", "1GiB"}, {"--device.memory"});
}

TEST(CommandLine, GlobalBatchGivesTheNumberOfMicrobatches) {
  EXPECT_EQ(make_layout(train({})).num_microbatches, 1);
  EXPECT_EQ(make_layout(train({"--training.global-batch-size", "12"})).num_microbatches, 3);
}

TEST(CommandLine, HelpShowsEveryOptionWithItsDefaultAndUnit) {
  const Command command = parse_command_line({"train", "--help"});
  EXPECT_EQ(command.kind, Command::Kind::kPrintAndExit);
  Config config;
  for (const Option& option : option_table(config)) {
    EXPECT_NE(command.text.find("--" + option.name), std::string::npos) << option.name;
    EXPECT_NE(command.text.find("[" + value_text(option) + "]"), std::string::npos) << option.name;
    EXPECT_NE(command.text.find(option.unit), std::string::npos) << option.name;
  }
}

TEST(CommandLine, RecipesInConfigsAreRead) {
  int num_recipes = 0;
  for (const auto& entry : std::filesystem::directory_iterator(SWAPLINE_CONFIGS)) {
    EXPECT_NO_THROW(train({"--config", entry.path().string()})) << entry.path();
    ++num_recipes;
  }
  EXPECT_GT(num_recipes, 0);
}

TEST(CommandLine, DevicesIsACommand) {
  EXPECT_EQ(parse_command_line({"devices"}).kind, Command::Kind::kDevices);
}

TEST(Options, NamesAreUniqueAndDefaultsAllowed) {
  Config config;
  std::set<std::string> names;
  for (const Option& option : option_table(config)) {
    EXPECT_TRUE(names.insert(option.name).second) << option.name;
    EXPECT_EQ(option.name, with_dashes(option.name));
    EXPECT_FALSE(option.help.empty()) << option.name;
    EXPECT_NO_THROW(set_option(option, value_text(option), option.name)) << option.name;
  }
}

TEST(Options, SizesAreReadAndWritten) {
  EXPECT_EQ(parse_bytes("4096"), 4096U);
  EXPECT_EQ(parse_bytes("1.5KiB"), 1536U);
  EXPECT_EQ(parse_bytes("2 GB"), 2000000000U);
  EXPECT_EQ(parse_bytes("8TiB"), size_t{8} << 40);
  EXPECT_EQ(parse_bytes(""), std::nullopt);
  EXPECT_EQ(parse_bytes("MiB"), std::nullopt);
  EXPECT_EQ(parse_bytes("1e99GB"), std::nullopt);
  EXPECT_EQ(bytes_text(0), "0");
  EXPECT_EQ(bytes_text(size_t{96} << 20), "96MiB");
  EXPECT_EQ(bytes_text(1536), "1.50KiB");
}

}  // namespace
}  // namespace swapline::trainer
