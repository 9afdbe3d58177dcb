#include <gtest/gtest.h>

#include <string>

#include "base/glob.h"

namespace shardinit {
namespace {

struct Case {
  const char* pattern;
  const char* text;
  bool matches;
};

class Glob : public testing::TestWithParam<Case> {};

TEST_P(Glob, Matches) {
  const Case& c = GetParam();
  EXPECT_EQ(GlobMatches(c.pattern, c.text), c.matches) << c.pattern << " against " << c.text;
}

INSTANTIATE_TEST_SUITE_P(Literal, Glob,
                         testing::Values(Case{"", "", true}, Case{"", "a", false},
                                         Case{"a.b", "a.b", true}, Case{"a.b", "axb", false},
                                         Case{"a", "", false}, Case{"a", "ab", false},
                                         Case{"ab", "a", false}, Case{"A", "a", false}));

INSTANTIATE_TEST_SUITE_P(
    Star, Glob,
    testing::Values(Case{"*", "", true}, Case{"*", "model.w", true}, Case{"**", "a", true},
                    Case{"model.*", "model.a.b", true}, Case{"model.*", "model", false},
                    Case{"*.weight", "a.b.weight", true}, Case{"*.weight", "a.b.weights", false},
                    Case{"a*b*c", "a.b.b.c", true}, Case{"a*b*c", "a.c.b", false},
                    Case{"*ab", "aab", true}, Case{"*aab", "aaab", true}, Case{"a*", "ba", false}));

INSTANTIATE_TEST_SUITE_P(One, Glob,
                         testing::Values(Case{"?", "a", true}, Case{"?", "", false},
                                         Case{"?", "ab", false},
                                         Case{"layers.?.w", "layers.7.w", true},
                                         Case{"layers.?.w", "layers.17.w", false},
                                         Case{"layers.?*.w", "layers.17.w", true}));

INSTANTIATE_TEST_SUITE_P(
    Set, Glob,
    testing::Values(Case{"[abc]", "b", true}, Case{"[abc]", "d", false}, Case{"[0-9]", "7", true},
                    Case{"[0-9]", "x", false}, Case{"[a-cx]", "x", true}, Case{"[!0-9]", "x", true},
                    Case{"[!0-9]", "7", false}, Case{"l[0-9].*", "l3.w", true},
                    Case{"[-a]", "-", true}, Case{"[a-]", "-", true}, Case{"[]a]", "]", true},
                    Case{"[]a]", "a", true}, Case{"[!]a]", "]", false}, Case{"[!]a]", "b", true},
                    Case{"*[0-9]", "a.b7", true}, Case{"[]", "[]", true},
                    // A bracket that nothing closes stands for itself.
                    Case{"[a", "[a", true}, Case{"[a", "a", false}, Case{"[", "[", true},
                    Case{"[!]", "x", false}, Case{"[!]", "[!]", true}));

// Backtracking over every `*` would take longer than the universe has.
TEST(GlobMatches, IsFastOnHostilePatterns) {
  std::string pattern;
  for (int i = 0; i < 200; ++i) pattern += "a*";
  EXPECT_FALSE(GlobMatches(pattern + "b", std::string(20000, 'a')));
  EXPECT_TRUE(GlobMatches(pattern, std::string(20000, 'a')));
}

}  // namespace
}  // namespace shardinit
