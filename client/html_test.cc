#include "client/html.h"

#include "absl/strings/match.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tessera {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

TEST(HtmlTest, EscapesWhateverATextHolds) {
  EXPECT_EQ(HtmlText(R"(<b>"a" & 'b'</b>)"), "&lt;b&gt;&quot;a&quot; &amp; &#39;b&#39;&lt;/b&gt;");
  EXPECT_EQ(HtmlText("a\nb\x01"), "a b ");
  EXPECT_EQ(HtmlText("\u00e4"), "\u00e4");
}

TEST(HtmlTest, ShortensWhatIsLong) {
  EXPECT_EQ(HtmlText(std::string(1000, 'x')).size(), 200u);
  EXPECT_EQ(HtmlText(std::string(1000, '"')), HtmlText(std::string(5000, '"')));
}

TEST(HtmlTest, ClosesATagWithoutItsAttributes) {
  EXPECT_EQ(HtmlElement("p class=\"x\"", "y"), "<p class=\"x\">y</p>");
}

TEST(HtmlTest, CellsSayTheirColumn) {
  EXPECT_THAT(HtmlTable({{"Unit", true}, {"<Bytes>"}}, {{"h.0", "7"}}),
              HasSubstr("<tr><td data-label=\"Unit\" class=\"text\">h.0</td>"
                        "<td data-label=\"&lt;Bytes&gt;\">7</td></tr>"));
}

TEST(HtmlTest, APageNeedsNothingElse) {
  const std::string page = HtmlPage("</title><script>", "<p>x</p>", HtmlScript::kPlan);
  EXPECT_TRUE(absl::StartsWith(page, "<!doctype html>"));
  EXPECT_THAT(page, HasSubstr("<title>&lt;/title&gt;&lt;script&gt;</title>"));
  EXPECT_THAT(page, HasSubstr("default-src 'none'"));
  EXPECT_THAT(page, HasSubstr("width=device-width"));
  EXPECT_THAT(page, HasSubstr("prefers-color-scheme: dark"));
  for (const char* outside : {"http:", "https:", "url(", "@import", "src=", "<link"}) {
    EXPECT_THAT(page, Not(HasSubstr(outside)));
  }
  EXPECT_THAT(HtmlPage("t", "", HtmlScript::kNone), Not(HasSubstr("<script")));
}

}  // namespace
}  // namespace tessera
