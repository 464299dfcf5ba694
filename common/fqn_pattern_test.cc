#include "common/fqn_pattern.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace tessera {
namespace {

FqnPattern Pattern(const std::string& text) {
  auto pattern = FqnPattern::Parse(text);
  EXPECT_TRUE(pattern.ok()) << pattern.status();
  return pattern.ok() ? *std::move(pattern) : FqnPattern();
}

struct Case {
  std::string pattern;
  std::vector<std::string> matches;
  std::vector<std::string> others;
};

TEST(FqnPatternTest, MatchesSegmentsPartsAndRuns) {
  const std::vector<Case> cases = {
      {"", {""}, {"a", "a.b"}},
      {"a.b", {"a.b"}, {"", "a", "a.b.c", "a.bb"}},
      {"*", {"a", "layers"}, {"", "a.b"}},
      {"layers.*", {"layers.0", "layers.10"}, {"layers", "layers.0.w", "layer.0"}},
      {"layers.*.w*", {"layers.0.w", "layers.0.wte"}, {"layers.0.v", "layers.w"}},
      {"l*s.1*3", {"layers.13", "ls.1003"}, {"layers.1", "layers.12"}},
      {"**", {"", "a", "a.b.c"}, {}},
      {"layers.**", {"layers", "layers.0", "layers.0.w"}, {"layers2", "layers2.0", "", "a"}},
      {"**.attn", {"attn", "h.0.attn"}, {"attn.q", "h.attn2", ""}},
      {"a.**.b.**.c", {"a.b.c", "a.x.b.c", "a.b.b.y.z.c"}, {"a.c", "a.b", "a.x.c", "b.c"}},
      {"**.b.*.b", {"b.x.b", "a.b.b.b", "b.b.x.b"}, {"b.b", "a.b.x.c"}},
      {"a**b.c", {"ab.c", "axxb.c"}, {"a.b.c"}},
  };
  for (const Case& c : cases) {
    const FqnPattern pattern = Pattern(c.pattern);
    for (const std::string& fqn : c.matches)
      EXPECT_TRUE(pattern.Matches(fqn)) << c.pattern << " " << fqn;
    for (const std::string& fqn : c.others)
      EXPECT_FALSE(pattern.Matches(fqn)) << c.pattern << " " << fqn;
  }
}

TEST(FqnPatternTest, KnowsWildcards) {
  EXPECT_FALSE(Pattern("a.b").has_wildcard());
  EXPECT_TRUE(Pattern("a.*").has_wildcard());
  EXPECT_EQ(Pattern("a.*").text(), "a.*");
}

TEST(FqnPatternTest, RefusesEmptySegments) {
  for (const char* bad : {".", "a.", ".a", "a..b", "**."}) {
    EXPECT_FALSE(FqnPattern::Parse(bad).ok()) << bad;
  }
}

// What the last star takes is all that is tried again, so this ends soon.
TEST(FqnPatternTest, ManyStarsEnd) {
  std::string pattern = "**";
  std::string fqn = "a";
  for (int i = 0; i < 30; ++i) {
    pattern += ".a*a*a.**";
    fqn += ".aaaaaaaaaaaaaaaaaaaaaaaaaaaaab";
  }
  EXPECT_FALSE(Pattern(pattern + ".c").Matches(fqn));
}

}  // namespace
}  // namespace tessera
