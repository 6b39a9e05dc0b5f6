// Scalars come back with all their bits.
#include "swapline/checkpoint/scalars.h"

#include "tests/support/errors.h"
#include "tests/trainer/temporary_folder.h"

#include <limits>

#include <gtest/gtest.h>

namespace swapline {
namespace {

using ::testing::HasSubstr;
using testing::message_of;
using trainer::TemporaryFolder;

TEST(Scalars, ComeBack) {
  const TemporaryFolder folder;
  const Scalars scalars = {{"step", int64_t{10}},
                           {"large", std::numeric_limits<int64_t>::max()},
                           {"lr", 0.1 + 0.2},
                           {"whole", 1.0},
                           {"tiny", 5e-324},
                           {"on", true},
                           {"text", std::string("line\n\"quoted\" 层")},
                           {"betas", std::vector<double>{0.9, 0.95}},
                           {"none", std::vector<double>{}}};
  write_scalars(*system_file_ops(), folder.path("state.json"), scalars);
  EXPECT_EQ(read_scalars(folder.path("state.json")), scalars);
}

TEST(ScalarsErrors, NameFileAndValue) {
  const TemporaryFolder folder;
  const std::string path = folder.path("state.json");
  EXPECT_THAT(message_of([&] { read_scalars(path); }), HasSubstr(path + ": cannot be read"));
  folder.write("state.json", "{\"step\": 1");
  EXPECT_THAT(message_of([&] { read_scalars(path); }), HasSubstr(path + ": is no JSON object"));
  folder.write("state.json", R"({"step": {"a": 1}})");
  EXPECT_THAT(message_of([&] { read_scalars(path); }), HasSubstr(path + ": step: found"));
  const Scalars scalars = {{"step", 1.5}};
  EXPECT_THAT(message_of([&] { int_of(scalars, "step", path); }),
              HasSubstr(path + ": step: allowed is a whole number"));
  EXPECT_THAT(message_of([&] { int_of(scalars, "position", path); }),
              HasSubstr(path + ": position is missing"));
  const Scalars bad = {{"lr", std::numeric_limits<double>::infinity()}};
  EXPECT_THAT(message_of([&] { write_scalars(*system_file_ops(), path, bad); }),
              HasSubstr("lr is not finite"));
}

}  // namespace
}  // namespace swapline
