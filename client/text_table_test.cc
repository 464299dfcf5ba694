#include "client/text_table.h"

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

namespace tessera {
namespace {

TEST(TextTableTest, AlignsAndSeparatesColumns) {
  TextTable table({{"UNIT", Align::kLeft}, {"BYTES", Align::kRight}});
  table.AddRow({"h.0", "1,024"});
  table.AddRow({"lm_head", "8"});
  EXPECT_EQ(table.ToString(),
            "UNIT     BYTES\n"
            "h.0      1,024\n"
            "lm_head      8\n");
}

TEST(TextTableTest, GivesALongNameALineOfItsOwn) {
  TextTable table({{"UNIT", Align::kLeft}, {"BYTES", Align::kRight}});
  const std::string name(90, 'x');
  table.AddRow({name, "1,024"});
  table.AddRow({"h.0", "8"});
  EXPECT_EQ(table.ToString(), absl::StrCat("UNIT  BYTES\n", name,
                                           "\n"
                                           "      1,024\n"
                                           "h.0       8\n"));
}

TEST(TextTableTest, KeepsAShortNameInItsRowHoweverWide) {
  TextTable table({{"RANK", Align::kLeft}, {"BYTES", Align::kRight}});
  const std::string wide(90, '9');
  table.AddRow({"0 .. 1", wide});
  EXPECT_EQ(table.ToString(),
            absl::StrCat("RANK    ", std::string(85, ' '), "BYTES\n0 .. 1  ", wide, "\n"));
}

TEST(TextTableTest, GroupsThousands) {
  EXPECT_EQ(WithThousands(0), "0");
  EXPECT_EQ(WithThousands(999), "999");
  EXPECT_EQ(WithThousands(1000), "1,000");
  EXPECT_EQ(WithThousands(1234567), "1,234,567");
  EXPECT_EQ(WithThousands(-100), "-100");
  EXPECT_EQ(WithThousands(-4096), "-4,096");
}

TEST(ShortenMiddleTest, LeavesOutTheMiddle) {
  EXPECT_EQ(ShortenMiddle("h.0", 3), "h.0");
  EXPECT_EQ(ShortenMiddle("model.layers.0.weight", 13), "model...eight");
  EXPECT_EQ(ShortenMiddle("abcdefgh", 6), "ab...h");
  // No room for less than a character on both sides.
  EXPECT_EQ(ShortenMiddle("abcdefgh", 0), "a...h");
}

TEST(ShortenMiddleTest, KeepsUtf8Whole) {
  // Each letter is two bytes.
  const std::string text = "\u00e4\u00e4\u00e4\u00e4\u00e4\u00e4";
  EXPECT_EQ(ShortenMiddle(text, 9), "\u00e4...\u00e4");
  EXPECT_EQ(ShortenMiddle(text, 12), text);
}

TEST(WrapTextTest, IndentsWhatFollows) {
  const std::string forty(40, 'x');
  EXPECT_EQ(WrapText("note: ", "short"), "note: short\n");
  EXPECT_EQ(WrapText("note: ", absl::StrCat(forty, " ", forty)),
            absl::StrCat("note: ", forty, "\n      ", forty, "\n"));
  EXPECT_EQ(WrapText("note: ", ""), "note: \n");
}

TEST(WrapTextTest, FillsEightyColumnsAndNoMore) {
  const std::string word(36, 'x');
  EXPECT_EQ(WrapText("note: ", absl::StrCat(word, " ", word, "y")),
            absl::StrCat("note: ", word, " ", word, "y\n"));  // 6 + 36 + 1 + 37 = 80
  EXPECT_EQ(WidestLine(WrapText("note: ", absl::StrCat(word, " ", word, "yy"))), 44u);
  EXPECT_EQ(WidestLine(WrapText("note: ", std::string(500, 'x'))), 80u);
}

TEST(WidestLineTest, CountsBytes) {
  EXPECT_EQ(WidestLine(""), 0u);
  EXPECT_EQ(WidestLine("a\nbcd\ne\n"), 3u);
}

}  // namespace
}  // namespace tessera
