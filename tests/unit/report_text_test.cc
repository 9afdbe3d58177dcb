#include <gtest/gtest.h>

#include <cstdint>
#include <utility>
#include <vector>

#include "base/error.h"
#include "report/text.h"

namespace shardinit {
namespace {

TEST(AsOne, FoldsNumbersInBraces) {
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

TEST(AsOne, FoldsOtherNumbersToARange) {
  EXPECT_EQ(AsOne({"normal std 0.5", "normal std 0.25", "normal std 1e-05"}, " "),
            "normal std {0.5…1e-05}");
  EXPECT_EQ(AsOne({"007", "7"}), "{007…7}");
}

TEST(WithoutNumbers, ReplacesOnlyWholeNumbers) {
  EXPECT_EQ(WithoutNumbers("layers.10.w2.3x3.0"), "layers.*.w2.3x3.*");
  EXPECT_EQ(WithoutNumbers("normal mean -0.5 std 1e-05 i0 inf", " "), "normal mean * std * i0 inf");
  EXPECT_EQ(WithoutNumbers(""), "");
  EXPECT_EQ(WithoutNumbers("."), ".");
}

TEST(Grouped, GroupsThousandsWithCommas) {
  const std::pair<int64_t, const char*> kCases[] = {{0, "0"},
                                                    {999, "999"},
                                                    {1000, "1,000"},
                                                    {-1, "-1"},
                                                    {-999, "-999"},
                                                    {-1000, "-1,000"},
                                                    {12345, "12,345"},
                                                    {123456, "123,456"},
                                                    {-123456, "-123,456"},
                                                    {405853388800, "405,853,388,800"},
                                                    {INT64_MAX, "9,223,372,036,854,775,807"},
                                                    {INT64_MIN, "-9,223,372,036,854,775,808"}};
  for (const auto& [number, text] : kCases) EXPECT_EQ(Grouped(number), text);
}

TEST(Count, CountsUseSingularOrPlural) {
  EXPECT_EQ(Count(0, "rank"), "0 ranks");
  EXPECT_EQ(Count(1, "rank"), "1 rank");
  EXPECT_EQ(Count(2, "rank"), "2 ranks");
  EXPECT_EQ(Count(12345, "rank"), "12,345 ranks");
  EXPECT_EQ(Count(0, "box", "boxes"), "0 boxes");
  EXPECT_EQ(Count(1, "box", "boxes"), "1 box");
  EXPECT_EQ(Count(1000, "box", "boxes"), "1,000 boxes");
}

TEST(InBytes, BytesHaveOneDecimal) {
  const std::pair<int64_t, const char*> kCases[] = {
      {0, "0 B"},
      {1, "1 B"},
      {999, "999 B"},
      {1000, "1.0 kB"},
      {1049, "1.0 kB"},
      {1051, "1.1 kB"},
      {999949, "999.9 kB"},
      {999950, "1.0 MB"},
      {1000000, "1.0 MB"},
      {811706777600, "811.7 GB"},
      {1500000000000, "1.5 TB"},
      {2000000000000000, "2.0 PB"},
      {INT64_MAX, "9.2 EB"},
  };
  for (const auto& [bytes, text] : kCases) EXPECT_EQ(InBytes(bytes), text);
}

TEST(InTime, TimesHaveAtMostTwoUnits) {
  const std::pair<double, const char*> kCases[] = {{0, "0 s"},
                                                   {0.4, "0 s"},
                                                   {0.6, "1 s"},
                                                   {7, "7 s"},
                                                   {59.4, "59 s"},
                                                   {59.6, "1:00 min"},
                                                   {60, "1:00 min"},
                                                   {723, "12:03 min"},
                                                   {3599, "59:59 min"},
                                                   {3599.6, "1:00 h"},
                                                   {3600, "1:00 h"},
                                                   {3661, "1:01 h"},
                                                   {7199, "1:59 h"},
                                                   {94200, "26:10 h"},
                                                   {360000, "100:00 h"},
                                                   {359999, "99:59 h"},
                                                   {1e300, "2500000000000000:00 h"}};
  for (const auto& [seconds, text] : kCases) EXPECT_EQ(InTime(seconds), text);
}

TEST(Wrapped, WrapsAtDisplayWidth) {
  EXPECT_EQ(Wrapped("", 10, 2), "");
  EXPECT_EQ(Wrapped("one two six", 11, 0), "one two six");
  EXPECT_EQ(Wrapped("one two six", 10, 0), "one two\nsix");
  EXPECT_EQ(Wrapped("one two six", 10, 3), "one two\n   six");
  EXPECT_EQ(Wrapped("one two six", 9, 3), "one\n   two\n   six");
  EXPECT_EQ(Wrapped("层层 two six", 8, 0), "层层 two\nsix");
  EXPECT_EQ(Wrapped("层层 two six", 7, 0), "层层\ntwo six");
  EXPECT_EQ(Wrapped("a longer-than-the-width b", 5, 1), "a\n longer-than-the-width\n b");
}

TEST(RanksInText, ListsRangesOfRanksUpToALimit) {
  EXPECT_EQ(RanksInText({}), "");
  EXPECT_EQ(RanksInText({0}), "0");
  EXPECT_EQ(RanksInText({0, 1}), "0-1");
  EXPECT_EQ(RanksInText({0, 3, 4, 5}), "0,3-5");
  EXPECT_EQ(RanksInText({1, 2, 4, 6, 7}), "1-2,4,6-7");
  EXPECT_EQ(RanksInText({1, 2, 4, 6, 7}, 3), "1-2,4,6-7");
  EXPECT_EQ(RanksInText({1, 2, 4, 6, 7}, 2), "1-2,4,…");
  EXPECT_EQ(RanksInText({1, 2, 4, 6, 7}, 1), "1-2,…");
}

TEST(AndMore, AndMoreIsALineOnlyIfNeeded) {
  EXPECT_EQ(AndMore(0, "row"), "");
  EXPECT_EQ(AndMore(1, "row"), "… and 1 row more; `--json` has all\n");
  EXPECT_EQ(AndMore(1234, "row"), "… and 1,234 rows more; `--json` has all\n");
}

TEST(Bars, BarsAreProportionalToCounts) {
  const std::vector<int64_t> counts = {0, 1, 2, 4, 1}, none = {0, 0};
  EXPECT_EQ(Bars(counts, -1, 1, {.width = 20, .blocks = false}),
            "  -1\n"
            "-0.6  ###\n"
            "-0.2  #######\n"
            " 0.2  ##############\n"
            " 0.6  ###\n");
  EXPECT_EQ(Bars(counts, -1, 1, {.width = 20, .blocks = true}),
            "  -1\n"
            "-0.6  ███▌\n"
            "-0.2  ███████\n"
            " 0.2  ██████████████\n"
            " 0.6  ███▌\n");
  // A narrow terminal still gets bars of eight columns, although they do not fit.
  for (const size_t width : {0U, 1U, 12U, 13U}) {
    EXPECT_EQ(Bars(std::vector<int64_t>{64, 1, 63}, 0, 0.3, {.width = width, .blocks = true}),
              "  0  ████████\n"
              "0.1  ▏\n"
              "0.2  ███████▉\n");
  }
  EXPECT_EQ(Bars(none, 0, 2, {.width = 80, .blocks = true}), "0\n1\n");
}

TEST(Table, TablesAlignDisplayWidth) {
  EXPECT_EQ(
      Table({{"{0…2}", "1", "x"}, {"层", "22", "y"}, {"abcdef", "", "z"}}, {false, true, false}),
      "{0…2}    1  x\n"
      "层      22  y\n"
      "abcdef      z\n");
}

// A user's text must not be able to hide, move or reverse the text around it.
TEST(RenderError, ErrorsEscapeInvisibleCharacters) {
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
