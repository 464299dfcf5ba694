#include "client/attend_wire.h"

#include <string>

#include "absl/strings/match.h"
#include "google/protobuf/io/zero_copy_stream_impl_lite.h"
#include "gtest/gtest.h"
#include "tessera/v1/membership_service.pb.h"

namespace tessera {
namespace {

using google::protobuf::io::ArrayInputStream;

// In blocks of 7 bytes, as a message comes in several pieces.
absl::StatusOr<FormedHost> Formed(const std::string& bytes) {
  ArrayInputStream stream(bytes.data(), static_cast<int>(bytes.size()), 7);
  return ReadFormHost(&stream);
}

absl::StatusOr<UnitsPage> Page(const std::string& bytes) {
  ArrayInputStream stream(bytes.data(), static_cast<int>(bytes.size()), 7);
  return ReadUnitsPage(&stream);
}

v1::AttendResponse FormOfRanks8And9() {
  v1::AttendResponse message;
  v1::FormHost* form = message.mutable_form_host();
  form->set_job("bench");
  form->set_generation(3);
  form->mutable_spec()->set_name("bench");
  form->add_assignments()->set_rank(8);
  form->add_assignments()->set_rank(9);
  form->mutable_layout()->set_world_size(10);
  form->add_host_names("a");
  form->set_attempt(2);
  return message;
}

TEST(AttendWireTest, FindsGenerationAndRanksOfAFormHost) {
  const absl::StatusOr<FormedHost> formed = Formed(FormOfRanks8And9().SerializeAsString());
  ASSERT_TRUE(formed.ok()) << formed.status();
  EXPECT_EQ(formed->generation, 3);
  EXPECT_EQ(formed->ranks, (std::vector<int>{8, 9}));
}

TEST(AttendWireTest, RefusesWhatIsNoFormHost) {
  v1::AttendResponse welcome;
  welcome.mutable_welcome()->set_host(1);
  const std::string form = FormOfRanks8And9().SerializeAsString();
  for (const std::string& bytes :
       {welcome.SerializeAsString(), std::string(), form.substr(0, form.size() - 1)}) {
    const absl::Status status = Formed(bytes).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    EXPECT_TRUE(absl::StrContains(status.message(), "no FormHost")) << status;
  }
}

TEST(AttendWireTest, CountsThePagesUnits) {
  v1::ListUnitsResponse page;
  page.add_units()->set_fqn("layers.0");
  page.add_units()->set_fqn("layers.1");
  page.add_layouts()->set_fqn("layers.0");
  page.set_next_page_token("bench/f/2");
  const absl::StatusOr<UnitsPage> read = Page(page.SerializeAsString());
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->units, 2);
  EXPECT_EQ(read->layouts, 1);
  EXPECT_EQ(read->next_page_token, "bench/f/2");
}

TEST(AttendWireTest, RefusesAPageThatIsCut) {
  v1::ListUnitsResponse page;
  page.add_units()->set_fqn("layers.0");
  const std::string bytes = page.SerializeAsString();
  EXPECT_TRUE(absl::IsInvalidArgument(Page(bytes.substr(0, bytes.size() - 1)).status()));
  ASSERT_TRUE(Page("").ok());
  EXPECT_EQ(Page("")->units, 0);
}

}  // namespace
}  // namespace tessera
