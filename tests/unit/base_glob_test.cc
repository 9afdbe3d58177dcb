#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

#include "base/glob.h"

namespace shardinit {
namespace {

struct GlobCase {
  const char* pattern;
  const char* text;
  bool matches;
};

class Glob : public testing::TestWithParam<GlobCase> {};

TEST_P(Glob, PatternsMatchAsDocumented) {
  const GlobCase& c = GetParam();
  EXPECT_EQ(Matches(c.pattern, c.text, Stars::kRuns), c.matches)
      << c.pattern << " against " << c.text;
}

INSTANTIATE_TEST_SUITE_P(Literal, Glob,
                         testing::Values(GlobCase{"", "", true}, GlobCase{"", "a", false},
                                         GlobCase{"a.b", "a.b", true},
                                         GlobCase{"a.b", "axb", false}, GlobCase{"a", "", false},
                                         GlobCase{"a", "ab", false}, GlobCase{"ab", "a", false},
                                         GlobCase{"A", "a", false}));

INSTANTIATE_TEST_SUITE_P(
    Star, Glob,
    testing::Values(GlobCase{"*", "", true}, GlobCase{"*", "model.w", true},
                    GlobCase{"**", "a", true}, GlobCase{"model.*", "model.a.b", true},
                    GlobCase{"model.*", "model", false}, GlobCase{"*.weight", "a.b.weight", true},
                    GlobCase{"*.weight", "a.b.weights", false}, GlobCase{"a*b*c", "a.b.b.c", true},
                    GlobCase{"a*b*c", "a.c.b", false}, GlobCase{"*ab", "aab", true},
                    GlobCase{"*aab", "aaab", true}, GlobCase{"a*", "ba", false}));

INSTANTIATE_TEST_SUITE_P(One, Glob,
                         testing::Values(GlobCase{"?", "a", true}, GlobCase{"?", "", false},
                                         GlobCase{"?", "ab", false},
                                         GlobCase{"layers.?.w", "layers.7.w", true},
                                         GlobCase{"layers.?.w", "layers.17.w", false},
                                         GlobCase{"layers.?*.w", "layers.17.w", true}));

INSTANTIATE_TEST_SUITE_P(
    Set, Glob,
    testing::Values(
        GlobCase{"[abc]", "b", true}, GlobCase{"[abc]", "d", false}, GlobCase{"[0-9]", "7", true},
        GlobCase{"[0-9]", "x", false}, GlobCase{"[a-cx]", "x", true}, GlobCase{"[!0-9]", "x", true},
        GlobCase{"[!0-9]", "7", false}, GlobCase{"l[0-9].*", "l3.w", true},
        GlobCase{"[-a]", "-", true}, GlobCase{"[a-]", "-", true}, GlobCase{"[]a]", "]", true},
        GlobCase{"[]a]", "a", true}, GlobCase{"[!]a]", "]", false}, GlobCase{"[!]a]", "b", true},
        GlobCase{"*[0-9]", "a.b7", true}, GlobCase{"[]", "[]", true},
        // An unclosed bracket matches itself.
        GlobCase{"[a", "[a", true}, GlobCase{"[a", "a", false}, GlobCase{"[", "[", true},
        GlobCase{"[!]", "x", false}, GlobCase{"[!]", "[!]", true}));

// Hostile patterns are fast: backtracking over every `*` would outlast the universe.
TEST(Matches, IsFastOnHostilePatterns) {
  std::string pattern;
  for (int i = 0; i < 200; ++i) pattern += "a*";
  for (const Stars stars : {Stars::kRuns, Stars::kParts}) {
    EXPECT_FALSE(Matches(pattern + "b", std::string(20000, 'a'), stars));
    EXPECT_TRUE(Matches(pattern, std::string(20000, 'a'), stars));
  }
}

// Patterns and texts are random and use few letters, so that they often match.
TEST(Globs, GlobsMatchLikeEachPattern) {
  std::mt19937 random(5);
  const auto text_of = [&](std::string_view letters, int longest) {
    std::string text;
    for (int n = static_cast<int>(random() % static_cast<unsigned>(longest + 1)); n > 0; --n) {
      text += letters[random() % letters.size()];
    }
    return text;
  };
  size_t matching = 0;
  for (int round = 0; round < 600; ++round) {
    const Stars stars = round % 2 == 0 ? Stars::kRuns : Stars::kParts;
    std::vector<std::string> patterns;
    for (int i = 0; i < 12; ++i) {
      patterns.push_back(text_of("ab.**?", 7));
      if (random() % 4 == 0) patterns.back() += "[!a]";
      if (random() % 4 == 0) patterns.back() += "[a-b]*";
    }
    Globs globs(patterns, stars);
    for (int i = 0; i < 60; ++i) {
      const std::string text = text_of("ab.", 9);
      std::vector<size_t> expected;
      for (size_t p = 0; p < patterns.size(); ++p) {
        if (Matches(patterns[p], text, stars)) expected.push_back(p);
      }
      ASSERT_EQ(globs.Match(text), expected) << text << " in round " << round;
      matching += expected.size();
    }
  }
  EXPECT_GT(matching, 1000u);
}

}  // namespace
}  // namespace shardinit
