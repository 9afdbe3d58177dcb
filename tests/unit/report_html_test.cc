#include <gtest/gtest.h>

#include "report/html.h"

namespace shardinit {
namespace {

TEST(Html, TextEndsNoTagAndNoQuote) {
  EXPECT_EQ(EscapeHtml("</title><b a='x' c=\"y\">&lt;"),
            "&lt;/title&gt;&lt;b a=&#39;x&#39; c=&quot;y&quot;&gt;&amp;lt;");
  EXPECT_EQ(EscapeHtml("größe.λ"), "größe.λ");
  // No reader would see these: controls, a reversed line, bytes that are no text.
  EXPECT_EQ(EscapeHtml("a\x1b\u202e<\xff\n"), "a\\x1b\\u202e&lt;\\xff\\n");
}

TEST(Html, LongTextIsShortenedBetweenCharacters) {
  std::string text;
  for (int i = 0; i < 400; ++i) text += "λ<";
  const std::string escaped = EscapeHtml(text);
  EXPECT_LT(escaped.size(), 1000u);
  EXPECT_NE(escaped.find("…"), escaped.npos);
  EXPECT_EQ(escaped.find("\\x"), escaped.npos);
  EXPECT_EQ(escaped.find('<'), escaped.npos);
}

// Fills every place that takes text.
TEST(Html, NothingBreaksOut) {
  const std::string hostile = "\"'></title><script>alert(1)</script><!--";
  Svg picture(10, 10, hostile, hostile);
  picture.Rect({0, 0, 1, 1}, hostile, hostile);
  picture.Text(0, 0, hostile, hostile);
  HtmlPage page(hostile);
  page.Heading(hostile);
  page.Paragraph(hostile);
  page.Table(hostile, {hostile}, {{{hostile, hostile}, {hostile, ""}}}, {true});
  page.BeginDetails(hostile, true);
  page.Picture(picture);
  page.EndDetails();
  const std::string text = page.Finish();
  EXPECT_EQ(text.find("<script"), text.npos);
  EXPECT_EQ(text.find("<!--"), text.npos);
  size_t escaped = 0;
  for (size_t at = 0;
       (at = text.find("&quot;&#39;&gt;&lt;/title&gt;&lt;script&gt;", at)) != text.npos; ++at) {
    ++escaped;
  }
  EXPECT_EQ(escaped, 16u);
}

TEST(Html, NumbersOfPictures) {
  Svg picture(100, 0.125, "p");
  picture.Rect({1.0 / 3, 0, 20, 1e-9}, "red");
  EXPECT_NE(
      picture.Finish().find("<rect x=\"0.33\" y=\"0\" width=\"20\" height=\"0\" fill=\"red\"/>"),
      std::string::npos);
}

}  // namespace
}  // namespace shardinit
