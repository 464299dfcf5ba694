#include "common/host_port.h"

#include "common/errors.h"
#include "gtest/gtest.h"

namespace tessera {
namespace {

TEST(HostPortTest, TakesNamesAndAddresses) {
  for (const char* address : {"localhost:4020", "127.0.0.1:1", "tessera-0.tessera.svc:65535",
                              "my_host:80", "[::1]:4020"}) {
    EXPECT_TRUE(CheckHostPort("--coordinator", address).ok()) << address;
  }
}

TEST(HostPortTest, RefusesWhatIsNone) {
  for (const char* address :
       {"", "localhost", ":4020", "localhost:", "localhost:http", "h:0", "h:65536", "h:-1",
        "::1:80", "[]:80", "a b:80", "host/path:80", "user@host:80", "h:80/"}) {
    const absl::Status status = CheckHostPort("--coordinator", address);
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << address;
    EXPECT_EQ(Field(status), "--coordinator");
  }
}

TEST(HostPortTest, SaysThatAUrlIsNoAddress) {
  const absl::Status status = CheckHostPort("--coordinator", "http://127.0.0.1:4020");
  EXPECT_EQ(status.message(),
            "--coordinator: \"http://127.0.0.1:4020\" is a URL; give HOST:PORT, without http://");
}

}  // namespace
}  // namespace tessera
