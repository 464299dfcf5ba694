#include "common/find_program.h"

#include <gtest/gtest.h>

#include "common/errors.h"

namespace tessera {
namespace {

TEST(FindProgramTest, LooksInPathInItsOrderForANameWithoutASlash) {
  EXPECT_EQ(*FindProgram("true", "/nonexistent::/bin"), "/bin/true");
  EXPECT_EQ(*FindProgram("true", "/usr/bin:/bin"), "/usr/bin/true");
}

TEST(FindProgramTest, TakesAPathAsItIs) { EXPECT_EQ(*FindProgram("/bin/true", ""), "/bin/true"); }

TEST(FindProgramTest, RefusesWhatCannotBeRunByName) {
  // Nothing; a file that is no program; a directory; not in PATH.
  for (const char* name : {"/nonexistent/trainer", "/etc/passwd", "/bin/", "trainer-of-nobody"}) {
    const absl::Status status = FindProgram(name, "/usr/bin:/bin").status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << name;
    EXPECT_EQ(Field(status), "PROGRAM");
    EXPECT_NE(status.message().find(name), absl::string_view::npos) << status;
  }
}

}  // namespace
}  // namespace tessera
