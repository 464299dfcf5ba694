#include "worker/host_address.h"

#include <gtest/gtest.h>

#include "absl/strings/match.h"

namespace tessera {
namespace {

TEST(HostAddressTest, IsTheOneThatPacketsToTheCoordinatorComeFrom) {
  EXPECT_EQ(*LocalAddressTowards("127.0.0.1:4242"), "127.0.0.1");
  EXPECT_EQ(*LocalAddressTowards("127.0.0.77:4242"), "127.0.0.1");
}

TEST(HostAddressTest, SaysWhatToDoWhereThereIsNoWay) {
  for (const char* coordinator : {"nobody.invalid:1", "no-port"}) {
    const absl::Status status = LocalAddressTowards(coordinator).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
    EXPECT_TRUE(absl::StrContains(status.message(), coordinator)) << status;
    EXPECT_TRUE(absl::StrContains(status.message(), "give --host_address")) << status;
  }
}

}  // namespace
}  // namespace tessera
