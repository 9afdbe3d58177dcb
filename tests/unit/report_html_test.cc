#include <gtest/gtest.h>

#include <numeric>

#include "report/chart.h"
#include "report/html.h"
#include "report/tiles.h"

namespace shardinit {
namespace {

TEST(Html, HtmlTextIsEscaped) {
  EXPECT_EQ(EscapeHtml("</title><b a='x' c=\"y\">&lt;"),
            "&lt;/title&gt;&lt;b a=&#39;x&#39; c=&quot;y&quot;&gt;&amp;lt;");
  EXPECT_EQ(EscapeHtml("größe.λ"), "größe.λ");
  // Readers would not see these: control characters, reversed text, invalid bytes.
  EXPECT_EQ(EscapeHtml("a\x1b\u202e<\xff\n"), "a\\x1b\\u202e&lt;\\xff\\n");
}

TEST(Html, LongHtmlTextIsShortenedBetweenCharacters) {
  std::string text;
  for (int i = 0; i < 400; ++i) text += "λ<";
  const std::string escaped = EscapeHtml(text);
  EXPECT_LT(escaped.size(), 1000u);
  EXPECT_NE(escaped.find("…"), escaped.npos);
  EXPECT_EQ(escaped.find("\\x"), escaped.npos);
  EXPECT_EQ(escaped.find('<'), escaped.npos);
}

TEST(Html, HtmlPathsMayBreakAfterDots) {
  EXPECT_EQ(PathInHtml("a.0.b_c.{0…3}.d"), "a.0.<wbr>b_<wbr>c.<wbr>{0…3}.<wbr>d");
  EXPECT_EQ(PathInHtml("1.5 <b>."), "1.5 &lt;b&gt;.");
}

// Hostile text stays escaped in every place that takes text.
TEST(Html, HostileTextStaysEscapedEverywhere) {
  const std::string hostile = "\"'></title><script>alert(1)</script><!--{{body}}";
  HtmlPage page;
  page.Heading(hostile);
  page.Paragraph(hostile);
  page.Facts(hostile, {{hostile, hostile}});
  page.Table(hostile, {{hostile, HtmlColumn::kPath}, {hostile, HtmlColumn::kNumber}},
             {{{hostile, hostile}, {hostile}}}, true);
  page.Filter();
  page.ChooseColours(hostile, hostile);
  page.Legend(0, {{ColourOfKind(1), hostile}});
  page.BeginDetails(hostile, true, hostile);
  page.EndDetails();
  page.BeginPart(hostile);
  page.EndPart();
  page.BeginBranch({.name = hostile, .count = hostile, .size = hostile, .what = hostile}, true);
  page.EndBranch();
  page.Add(TilesInHtml(hostile, hostile, 0, 10,
                       {{{0, 0, 1, 1}, {"0 0 0"}, hostile, hostile, hostile, hostile}}));
  Chart chart;
  chart.Bar(0, 1, 0, 1, hostile, hostile);
  chart.Line({{0, 0}}, hostile);
  chart.Band({{0, 0}}, {{0, 1}}, hostile, hostile);
  page.Add(chart.InHtml({hostile, hostile, hostile, hostile, hostile, hostile, hostile}));
  const std::string text = page.Finish("plan", hostile);
  EXPECT_EQ(text.find("<script"), text.rfind("<script"));  // the filter's
  EXPECT_EQ(text.find("<!--"), text.npos);
  size_t escaped = 0;
  for (size_t at = 0;
       (at = text.find("&quot;&#39;&gt;&lt;/title&gt;&lt;script&gt;", at)) != text.npos; ++at) {
    ++escaped;
  }
  EXPECT_EQ(escaped, 43u);
}

TEST(Tiles, TreemapFillsTheSquareInOrder) {
  for (const std::vector<double>& weights : {std::vector<double>{1},
                                             {1, 1, 1, 1},
                                             {1e-9, 5, 1, 1, 0, 3, 2, 1e9},
                                             {6, 6, 4, 3, 2, 2, 1}}) {
    const std::vector<TileArea> areas = TreemapOf(weights, 2);
    ASSERT_EQ(areas.size(), weights.size());
    const double total = std::accumulate(weights.begin(), weights.end(), 0.0);
    for (size_t i = 0; i < areas.size(); ++i) {
      EXPECT_NEAR(areas[i].width * areas[i].height, weights[i] / total, 1e-12);
      EXPECT_LE(areas[i].x + areas[i].width, 1 + 1e-12);
      EXPECT_LE(areas[i].y + areas[i].height, 1 + 1e-12);
      if (i == 0) continue;
      // The next tile is to the right in the same row, or begins the next row.
      const TileArea& before = areas[i - 1];
      if (areas[i].x > 0 || before.width == 0) {
        EXPECT_EQ(areas[i].y, before.y);
        EXPECT_NEAR(areas[i].x, before.x + before.width, 1e-12);
      } else {
        EXPECT_NEAR(areas[i].y, before.y + before.height, 1e-12);
      }
    }
  }
  EXPECT_EQ(TreemapOf({0, 0}, 1).size(), 2u);
}

TEST(Chart, ChartPointsGoUp) {
  Chart chart;
  chart.Bar(0.25, 1.0 / 3, 0, 0.5, "a");
  chart.Line({{0, 0}, {1, 1}});
  const std::string text = chart.InHtml({.title = "t", .y = "y", .top = "1", .bottom = "0"});
  EXPECT_NE(text.find("<rect class=\"a\" x=\"250\" y=\"50\" width=\"333.333\" height=\"50\">"),
            text.npos);
  EXPECT_NE(text.find("d=\"M0 100L1000 0\""), text.npos);
}

}  // namespace
}  // namespace shardinit
