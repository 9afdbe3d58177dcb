#include <gtest/gtest.h>

#include "base/error.h"
#include "report/text.h"

namespace shardinit {
namespace {

TEST(AsOne, HasTheNumbersInBraces) {
  EXPECT_EQ(AsOne({"a.0.w"}), "a.0.w");
  EXPECT_EQ(AsOne({"a.0.w", "a.1.w"}), "a.{0, 1}.w");
  EXPECT_EQ(AsOne({"a.0.w", "a.1.w", "a.2.w"}), "a.{0…2}.w");
  EXPECT_EQ(AsOne({"10", "8", "9", "9"}), "{8…10}");
  EXPECT_EQ(AsOne({"0", "2", "4"}), "{0, 2, 4}");
  EXPECT_EQ(AsOne({"1", "4", "7", "10", "13"}), "{1, 4, …, 13}");
  EXPECT_EQ(AsOne({"0", "1", "2", "5", "7", "8"}), "{0…2, 5, 7, 8}");
  EXPECT_EQ(AsOne({"0", "2", "4", "6", "9", "11", "20", "22", "24", "26"}),
            "{0, 2, 4, 6, 9, 11, 20, 22, …, 26}");
  EXPECT_EQ(AsOne({"a.0.b.1", "a.1.b.0", "a.0.b.0", "a.1.b.1"}), "a.{0, 1}.b.{0, 1}");
}

TEST(AsOne, HasOtherNumbersFromTheFirstToTheLast) {
  EXPECT_EQ(AsOne({"normal std 0.5", "normal std 0.25", "normal std 1e-05"}, " "),
            "normal std {0.5…1e-05}");
  EXPECT_EQ(AsOne({"007", "7"}), "{007…7}");
}

TEST(WithoutNumbers, TakesWholePartsOnly) {
  EXPECT_EQ(WithoutNumbers("layers.10.w2.3x3.0"), "layers.*.w2.3x3.*");
  EXPECT_EQ(WithoutNumbers("normal mean -0.5 std 1e-05 i0 inf", " "), "normal mean * std * i0 inf");
  EXPECT_EQ(WithoutNumbers(""), "");
  EXPECT_EQ(WithoutNumbers("."), ".");
}

TEST(Table, AlignsWhatPeopleSee) {
  EXPECT_EQ(
      Table({{"{0…2}", "1", "x"}, {"层", "22", "y"}, {"abcdef", "", "z"}}, {false, true, false}),
      "{0…2}    1  x\n"
      "层      22  y\n"
      "abcdef      z\n");
}

// A user's text must not be able to hide, move or reverse the text around it.
TEST(RenderError, EscapesWhatCannotBeSeen) {
  const char* const kHidden[] = {"\x1b",         "\x07",         "\xc2\x80",     "\xc2\x9f",
                                 "\xd8\x9c",     "\xe2\x80\x8e", "\xe2\x80\x8f", "\xe2\x80\xa8",
                                 "\xe2\x80\xa9", "\xe2\x80\xaa", "\xe2\x80\xae", "\xe2\x81\xa6",
                                 "\xe2\x81\xa9", "\xff"};
  for (const std::string hidden : kHidden) {
    const std::string text = RenderError("a" + hidden + "b", "c" + hidden + "d");
    EXPECT_EQ(text.find(hidden), text.npos) << text;
    EXPECT_TRUE(text.starts_with("shardinit: error: a\\")) << text;
  }
  EXPECT_EQ(RenderError("`\xe2\x80\xae` × 层 é", "\xe2\x80\xa8"),
            "shardinit: error: `\\u202e` × 层 é\n  hint: \\u2028\n");
}

}  // namespace
}  // namespace shardinit
