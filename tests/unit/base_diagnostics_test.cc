#include <gtest/gtest.h>

#include "base/diagnostics.h"
#include "base/text.h"

namespace shardinit {
namespace {

// Reports one error at `column` (in bytes) of the only line.
std::string ErrorIn(const std::string& line, uint32_t column, uint32_t length) {
  const Source source = {"x.yaml", line};
  return Render(Diagnostic{Diagnostic::Severity::kError, {&source, 1, column, length}, "no", {}});
}

TEST(Render, ShowsPlaceLineCaretsAndHint) {
  const Source source = {"x.yaml", "a: 1\nshape: [d_model, 4096]\n"};
  EXPECT_EQ(Render(Diagnostic{Diagnostic::Severity::kError,
                              {&source, 2, 9, 7},
                              "axis `tensor` (3) does not divide dimension 0 (4096)",
                              "use a multiple of 3, or leave the dimension unsharded"}),
            "x.yaml:2:9: error: axis `tensor` (3) does not divide dimension 0 "
            "(4096)\n"
            "  shape: [d_model, 4096]\n"
            "          ^^^^^^^\n"
            "  hint: use a multiple of 3, or leave the dimension unsharded\n");
}

TEST(Render, WithoutSourceOrLineShowsNoExcerpt) {
  const Source source = {"x.yaml", "a: 1\n"};
  EXPECT_EQ(Render(Diagnostic{Diagnostic::Severity::kNote, {}, "no", "yes"}),
            "note: no\n  hint: yes\n");
  EXPECT_EQ(Render(Diagnostic{Diagnostic::Severity::kError, {&source, 0, 0, 0}, "no", {}}),
            "x.yaml: error: no\n");
}

TEST(Render, CountsColumnsInCharactersAndCaretsInTerminalCells) {
  EXPECT_EQ(ErrorIn("é: x", 5, 1),
            "x.yaml:1:4: error: no\n"
            "  é: x\n"
            "     ^\n");
  EXPECT_EQ(ErrorIn("ぱ: ぱ", 6, 3),
            "x.yaml:1:4: error: no\n"
            "  ぱ: ぱ\n"
            "      ^^\n");
}

TEST(Render, KeepsTabsAligned) {
  EXPECT_EQ(ErrorIn("a:\tb c", 6, 1),
            "x.yaml:1:6: error: no\n"
            "  a:\tb c\n"
            "    \t  ^\n");
}

TEST(Render, CutsLongLinesAroundTheCaret) {
  const std::string line = std::string(500, 'a') + "X" + std::string(500, 'b');
  EXPECT_EQ(ErrorIn(line, 501, 1), "x.yaml:1:501: error: no\n  …" + std::string(40, 'a') + "X" +
                                       std::string(79, 'b') + "…\n  " + std::string(41, ' ') +
                                       "^\n");
}

TEST(Render, EscapesControlCharacters) {
  EXPECT_EQ(ErrorIn("a\x1b[31m b", 8, 1),
            "x.yaml:1:8: error: no\n"
            "  a\\x1b[31m b\n"
            "            ^\n");
  EXPECT_EQ(Render(Diagnostic{Diagnostic::Severity::kError, {}, "a\nb\x07\u202e\xff", {}}),
            "error: a\\nb\\x07\\u202e\\xff\n");
}

TEST(Render, PointsPastTheEndOfALine) {
  EXPECT_EQ(ErrorIn("a: [", 5, 1),
            "x.yaml:1:5: error: no\n"
            "  a: [\n"
            "      ^\n");
}

TEST(Render, SortsByPlaceWithinTheSourcesAsTheyAppear) {
  Diagnostics diagnostics;
  const Source* first = diagnostics.Add({"a", "1\n2\n3\n"});
  const Source* second = diagnostics.Add({"b", "1\n"});
  diagnostics.Error({first, 3, 1, 1}, "third");
  diagnostics.Error({second, 1, 1, 1}, "fourth");
  diagnostics.Error({first, 1, 1, 1}, "first");
  diagnostics.Note({second, 1, 1, 1}, "second");
  EXPECT_EQ(Render(diagnostics.all()),
            "a:1:1: error: first\n  1\n  ^\n"
            "b:1:1: note: second\n  1\n  ^\n"
            "a:3:1: error: third\n  3\n  ^\n"
            "b:1:1: error: fourth\n  1\n  ^\n");
}

TEST(Render, CountsErrorsOverTheLimit) {
  Diagnostics diagnostics;
  for (int i = 0; i < 23; ++i) diagnostics.Error({}, "no");
  EXPECT_EQ(Render(diagnostics.all(), 2), "error: no\nerror: no\n… and 21 more errors\n");
  EXPECT_EQ(Render(diagnostics.all(), 22).substr(22 * 10), "… and 1 more error\n");
}

TEST(Render, CountsWarningsApartFromErrors) {
  Diagnostics diagnostics;
  const Source* source = diagnostics.Add({"a", "1\n2\n3\n"});
  diagnostics.Warning({source, 2, 1, 1}, "odd", "do");
  diagnostics.Warning({source, 3, 1, 1}, "odder", {});
  diagnostics.Error({source, 1, 1, 1}, "no");
  EXPECT_EQ(Render(diagnostics.all()),
            "a:1:1: error: no\n  1\n  ^\n"
            "a:2:1: warning: odd\n  2\n  ^\n  hint: do\n"
            "a:3:1: warning: odder\n  3\n  ^\n");
  EXPECT_EQ(Render(diagnostics.all(), 0, 1),
            "a:2:1: warning: odd\n  2\n  ^\n  hint: do\n"
            "… and 1 more error\n"
            "… and 1 more warning; `shardinit validate` shows all\n");
}

TEST(Diagnostics, WarningsAreErrorsOnlyIfDenied) {
  Diagnostics diagnostics;
  diagnostics.Warning({}, "odd", {});
  EXPECT_FALSE(diagnostics.HasErrors());
  diagnostics.ThrowIfErrors();
  diagnostics.DenyWarnings();
  EXPECT_EQ(Render(diagnostics.all()), "error: odd\n");
  EXPECT_THROW(diagnostics.ThrowIfErrors(), InvalidSpec);
}

TEST(Diagnostics, TooManyErrorsEndTheRun) {
  Diagnostics diagnostics;
  const auto flood = [&] {
    for (int i = 0; i < 100000; ++i) diagnostics.Error({}, "no");
  };
  EXPECT_THROW(flood(), InvalidSpec);
  const std::string shown = Render(diagnostics.all());
  EXPECT_TRUE(shown.ends_with("… and at least 180 more errors\n")) << shown;
}

TEST(Diagnostics, SourcesOutliveTheCollector) {
  std::string shown;
  try {
    Diagnostics diagnostics;
    diagnostics.Error({diagnostics.Add({"a", "b\n"}), 1, 1, 1}, "no");
    diagnostics.ThrowIfErrors();
  } catch (const InvalidSpec& invalid) {
    shown = Render(invalid.diagnostics());
  }
  EXPECT_EQ(shown, "a:1:1: error: no\n  b\n  ^\n");
}

std::string BadTextIn(const std::string& text) {
  const std::optional<BadText> bad = FindBadText(text);
  return bad ? std::to_string(bad->offset) + " " + bad->what : "clean";
}

TEST(FindBadText, AcceptsUtf8TabsAndBothNewlines) {
  EXPECT_EQ(BadTextIn("a\tb\r\né 日本 🙂\n"), "clean");
}

TEST(FindBadText, NamesTheInvalidCharacter) {
  EXPECT_EQ(BadTextIn("a\xff"), "1 invalid UTF-8 (byte 0xff)");
  EXPECT_EQ(BadTextIn("\xc0\xaf"), "0 invalid UTF-8 (byte 0xc0)");
  EXPECT_EQ(BadTextIn("\xe0\x80\xaf"), "0 invalid UTF-8 (byte 0xe0)");
  EXPECT_EQ(BadTextIn("\xed\xa0\x80"), "0 invalid UTF-8 (byte 0xed)");
  EXPECT_EQ(BadTextIn("\xf4\x90\x80\x80"), "0 invalid UTF-8 (byte 0xf4)");
  EXPECT_EQ(BadTextIn("\xe6\x97"), "0 invalid UTF-8 (byte 0xe6)");
  EXPECT_EQ(BadTextIn(std::string("a\0", 2)), "1 control character U+0000");
  EXPECT_EQ(BadTextIn("\x1b["), "0 control character U+001B");
  EXPECT_EQ(BadTextIn("\xc2\x85"), "0 control character U+0085");
  EXPECT_EQ(BadTextIn("a\rb"), "1 carriage return without a newline");
  EXPECT_EQ(BadTextIn("\u202e"), "0 invisible character U+202E");
  EXPECT_EQ(BadTextIn("\u2066"), "0 invisible character U+2066");
  EXPECT_EQ(BadTextIn("\u200b"), "0 invisible character U+200B");
  EXPECT_EQ(BadTextIn("\ufeff"), "0 invisible character U+FEFF");
}

// Foreign spaces are accepted after a comment sign or a quote, and reported before it.
TEST(FindBadText, AcceptsForeignSpacesOnlyInProse) {
  for (const std::string space :
       {"\u00a0", "\u2000", "\u2005", "\u200a", "\u202f", "\u205f", "\u3000"}) {
    const std::string shown = Escape(space);
    EXPECT_TRUE(shown.starts_with("\\u") && shown.size() == 6) << shown;
    const auto expect = [&](const std::string& before, bool is_prose) {
      const std::string text = before + space + "b";
      const bool is_clean = BadTextIn(text) == "clean";
      EXPECT_EQ(is_clean, is_prose) << text;
      EXPECT_TRUE(is_clean || BadTextIn(text).starts_with(std::to_string(before.size()) + " U+"))
          << text;
      EXPECT_EQ(Escape(text), Escape(before) + (is_prose ? space : shown) + "b");
    };
    for (const std::string mark : {"#", "\"", "'"}) {
      expect("a " + mark, true);
      expect(mark + " a\u00e9 ", true);
      expect(mark + " a\n", false);
      expect("b\n" + mark, true);
      expect(mark + "\n\n" + mark, true);
      EXPECT_NE(BadTextIn(space + mark), "clean");
    }
    for (const std::string none : {"", "a: ", "`", "[", "\n", "/*", "\t"}) expect(none, false);
  }
  for (const std::string other :
       {"\u00a1", "\u1fff", "\u2010", "\u2030", "\u2060x", "\u3001", "\u2fff"}) {
    EXPECT_EQ(Escape("a" + other).starts_with("a" + other), other != "\u2060x") << other;
  }
}

TEST(Escape, EscapesInvisibleCharacters) {
  EXPECT_EQ(Escape("a\xff\n\u202e"), "a\\xff\\n\\u202e");
  EXPECT_EQ(Escape("a\u00a0b\u3000c d"), "a\\u00a0b\\u3000c d");
  EXPECT_EQ(Escape("# a\u00a0b"), "# a\u00a0b");
}

// This once took time quadratic in the length: minutes.
TEST(FindBadText, ScansLongLinesInLinearTime) {
  std::string line = "# ";
  for (int i = 0; i < 1'000'000; ++i) line += "\u00a0";
  EXPECT_EQ(BadTextIn(line), "clean");
  EXPECT_EQ(Escape(line), line);
  EXPECT_EQ(BadTextIn(line + "\n\u00a0"),
            std::to_string(line.size() + 1) + " U+00A0 looks like a space, but is not one");
}

TEST(Quote, QuoteShortensLongTextBetweenCharacters) {
  EXPECT_EQ(Quote("a"), "`a`");
  EXPECT_EQ(Quote(std::string(100, 'a') + "z"),
            "`" + std::string(50, 'a') + "…" + std::string(19, 'a') + "z`");
  std::string wide;
  for (int i = 0; i < 40; ++i) wide += "日";
  EXPECT_FALSE(FindBadText(Quote(wide)));
}

}  // namespace
}  // namespace shardinit
