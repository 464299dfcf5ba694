#include "client/fold_units.h"

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tessera {
namespace {

using ::testing::ElementsAre;
using ::testing::SizeIs;

std::vector<std::string> Names(const std::vector<std::string>& fqns,
                               std::vector<std::string> kinds = {}) {
  kinds.resize(fqns.size(), "");
  std::vector<std::string> names;
  for (const UnitGroup& group : FoldUnits(fqns, kinds)) names.push_back(group.name);
  return names;
}

TEST(FoldUnitsTest, FoldsNumberedSiblingsOfOneKind) {
  EXPECT_THAT(Names({"h.0", "h.1", "h.2", ""}), ElementsAre("h.0-2 x3", "(root)"));
}

TEST(FoldUnitsTest, KeepsWhatDiffersApart) {
  // Another kind, a gap in the numbers, another name, another depth.
  EXPECT_THAT(Names({"h.0", "h.1"}, {"a", "b"}), ElementsAre("h.0", "h.1"));
  EXPECT_THAT(Names({"h.0", "h.2"}), ElementsAre("h.0", "h.2"));
  EXPECT_THAT(Names({"h.0", "g.1"}), ElementsAre("h.0", "g.1"));
  EXPECT_THAT(Names({"h.0", "h.1.x"}), ElementsAre("h.0", "h.1.x"));
  // What is no number, or is not written as one counts.
  EXPECT_THAT(Names({"h.00", "h.01"}), ElementsAre("h.00", "h.01"));
  EXPECT_THAT(Names({"h.-1", "h.0"}), ElementsAre("h.-1", "h.0"));
}

TEST(FoldUnitsTest, CountsInAnySegment) {
  EXPECT_THAT(Names({"encoder.0.mlp", "encoder.1.mlp"}), ElementsAre("encoder.0-1.mlp x2"));
  EXPECT_THAT(Names({"0", "1"}), ElementsAre("0-1 x2"));
  EXPECT_THAT(Names({"h.9", "h.10"}), ElementsAre("h.9-10 x2"));
}

TEST(FoldUnitsTest, CountsInOneSegmentAtATime) {
  // 0.0, 0.1 count in the second segment; 1.1 would go on in the first.
  EXPECT_THAT(Names({"0.0", "0.1", "1.1"}), ElementsAre("0.0-1 x2", "1.1"));
}

TEST(FoldUnitsTest, FoldsWhatOthersStandBetween) {
  const std::vector<std::string> fqns = {"h.0.attn", "h.0.mlp", "h.0", "h.1.attn",
                                         "h.1.mlp",  "h.1",     ""};
  const std::vector<std::string> kinds = {"a", "m", "h", "a", "m", "h", ""};
  EXPECT_THAT(Names(fqns, kinds),
              ElementsAre("h.0-1.attn x2", "h.0-1.mlp x2", "h.0-1 x2", "(root)"));
  EXPECT_THAT(FoldUnits(fqns, kinds)[1].units, ElementsAre(1, 4));
}

TEST(FoldUnitsTest, FoldsStacksOfStacks) {
  std::vector<std::string> fqns;
  for (int layer = 0; layer < 3; ++layer) {
    for (int expert = 0; expert < 8; ++expert) {
      fqns.push_back(absl::StrCat("layers.", layer, ".experts.", expert));
    }
    fqns.push_back(absl::StrCat("layers.", layer));
  }
  EXPECT_THAT(Names(fqns), ElementsAre("layers.0-2.experts.0-7 x24", "layers.0-2 x3"));
  // One layer with fewer experts is told apart.
  fqns.erase(fqns.begin() + 16);  // layers.1.experts.7
  EXPECT_THAT(Names(fqns), ElementsAre("layers.0.experts.0-7 x8", "layers.0-2 x3",
                                       "layers.1.experts.0-6 x7", "layers.2.experts.0-7 x8"));
}

TEST(FoldUnitsTest, EveryUnitIsInOneGroup) {
  std::vector<std::string> fqns;
  std::vector<std::string> kinds;
  for (int i = 0; i < 1000; ++i) {
    fqns.push_back(absl::StrCat("a.", i % 7, ".", i / 7, i % 11 == 0 ? ".x" : ""));
    kinds.push_back(absl::StrCat(i % 3));
  }
  std::vector<int> times(fqns.size(), 0);
  for (const UnitGroup& group : FoldUnits(fqns, kinds)) {
    EXPECT_THAT(group.units, testing::WhenSorted(testing::ContainerEq(group.units)));
    for (const int unit : group.units) {
      ++times[unit];
      EXPECT_EQ(kinds[unit], kinds[group.units[0]]);
    }
  }
  EXPECT_THAT(times, testing::Each(1));
}

TEST(FoldUnitsTest, AHundredThousandUnitsAreOneRow) {
  std::vector<std::string> fqns;
  for (int i = 0; i < 100'000; ++i) fqns.push_back(absl::StrCat("layers.", i));
  EXPECT_THAT(Names(fqns), ElementsAre("layers.0-99999 x100000"));
}

TEST(CountingNumberTest, TakesPlainNumbersOnly) {
  EXPECT_EQ(CountingNumber("0"), 0);
  EXPECT_EQ(CountingNumber("126"), 126);
  EXPECT_EQ(CountingNumber("999999999"), 999'999'999);
  for (const char* text : {"", "00", "01", "-1", "+1", " 1", "1 ", "1a", "0-3", "1000000000"}) {
    EXPECT_EQ(CountingNumber(text), -1) << text;
  }
}

}  // namespace
}  // namespace tessera
