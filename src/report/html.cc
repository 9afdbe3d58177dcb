#include "report/html.h"

#include <fmt/format.h>

#include <cmath>

#include "base/text.h"

namespace shardinit {
namespace {

// The policy lets a page use nothing but itself, whatever may ever stand in it.
constexpr std::string_view kHead = R"(<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="generator" content="shardinit plan">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<style>
:root { color-scheme: light dark; --back: #fff; --text: #1c1e21; --faint: #5c636b; --line: #d5d9de; }
@media (prefers-color-scheme: dark) {
  :root { --back: #16181b; --text: #e4e6e8; --faint: #9aa2ab; --line: #363b42; }
}
body { margin: 0; background: var(--back); color: var(--text); font: 15px/1.5 sans-serif; }
main { max-width: 1100px; margin: auto; padding: 1rem 1.5rem 4rem; }
h1, td:first-child, summary { overflow-wrap: anywhere; }
h2 { margin: 2rem 0 .5rem; font-size: 1.15rem; }
p { margin: .3rem 0; color: var(--faint); }
div { overflow-x: auto; }
table { border-collapse: collapse; }
th, td { padding: .15rem .8rem .15rem 0; border-bottom: 1px solid var(--line); text-align: left; }
th { font-weight: normal; color: var(--faint); }
.n { text-align: right; font-variant-numeric: tabular-nums; }
a { color: inherit; }
svg { display: block; margin: .6rem 0; }
svg text { fill: currentColor; font: 10px sans-serif; }
svg .in { fill: #111; text-anchor: middle; }
rect { shape-rendering: crispEdges; }
rect:hover { stroke: var(--text); stroke-width: 2; }
summary { cursor: pointer; padding: .2rem 0; }
</style>
)";

// Writes a coordinate to a hundredth of a pixel, without zeros at its end.
std::string Number(double value) {
  std::string text = fmt::format("{:.2f}", value);
  text.erase(text.find_last_not_of('0') + 1);
  if (text.back() == '.') text.pop_back();
  return text;
}

std::string Shortened(std::string_view text) {
  constexpr size_t kLongest = 300, kHeadBytes = 180, kTailBytes = 100;
  if (text.size() <= kLongest) return std::string(text);
  size_t head = kHeadBytes, tail = text.size() - kTailBytes;
  while ((text[head] & 0xc0) == 0x80) --head;  // cuts between characters
  while (tail < text.size() && (text[tail] & 0xc0) == 0x80) ++tail;
  return fmt::format("{}…{}", text.substr(0, head), text.substr(tail));
}

}  // namespace

std::string EscapeHtml(std::string_view text) {
  std::string out;
  for (const char c : Escape(Shortened(text))) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      case '\'':
        out += "&#39;";
        break;
      default:
        out += c;
    }
  }
  return out;
}

Svg::Svg(double width, double height, std::string_view name, std::string_view id)
    : out_(fmt::format("<svg xmlns=\"http://www.w3.org/2000/svg\" role=\"img\" aria-label=\"{}\"{} "
                       "width=\"{}\" height=\"{}\">\n",
                       EscapeHtml(name),
                       id.empty() ? "" : fmt::format(" id=\"{}\"", EscapeHtml(id)), Number(width),
                       Number(height))) {}

void Svg::Rect(const Rectangle& at, std::string_view fill, std::string_view title) {
  out_ += fmt::format(R"(<rect x="{}" y="{}" width="{}" height="{}" fill="{}")", Number(at.x),
                      Number(at.y), Number(at.width), Number(at.height), EscapeHtml(fill));
  out_ += title.empty() ? "/>\n" : fmt::format("><title>{}</title></rect>\n", EscapeHtml(title));
}

void Svg::Text(double x, double y, std::string_view text, std::string_view style) {
  out_ += fmt::format("<text x=\"{}\" y=\"{}\"{}>{}</text>\n", Number(x), Number(y),
                      style.empty() ? "" : fmt::format(" class=\"{}\"", EscapeHtml(style)),
                      EscapeHtml(text));
}

std::string ColourOf(int64_t number, int64_t count) {
  const double hue = 330.0 * static_cast<double>(number) / static_cast<double>(count);
  return fmt::format("hsl({},60%,{}%)", std::lround(hue), 52 + 9 * (number % 3));
}

HtmlPage::HtmlPage(std::string_view title) : out_(kHead) {
  const std::string text = EscapeHtml(title);
  out_ += fmt::format("<title>{}</title>\n</head>\n<body>\n<main>\n<h1>{}</h1>\n", text, text);
}

void HtmlPage::Heading(std::string_view text) {
  out_ += fmt::format("<h2>{}</h2>\n", EscapeHtml(text));
}

void HtmlPage::Paragraph(std::string_view text) {
  out_ += fmt::format("<p>{}</p>\n", EscapeHtml(text));
}

void HtmlPage::Table(std::string_view id, const std::vector<std::string>& head,
                     const std::vector<std::vector<HtmlLink>>& rows,
                     const std::vector<bool>& right) {
  const auto cell = [&](std::string_view tag, size_t column, const std::string& inner) {
    const bool is_right = column < right.size() && right[column];
    out_ += fmt::format("<{}{}>{}</{}>", tag, is_right ? " class=\"n\"" : "", inner, tag);
  };
  out_ += fmt::format("<div><table id=\"{}\">\n", EscapeHtml(id));
  if (!head.empty()) {
    out_ += "<tr>";
    for (size_t c = 0; c < head.size(); ++c) cell("th", c, EscapeHtml(head[c]));
    out_ += "</tr>\n";
  }
  for (const std::vector<HtmlLink>& row : rows) {
    out_ += "<tr>";
    for (size_t c = 0; c < row.size(); ++c) {
      const std::string text = EscapeHtml(row[c].text);
      cell("td", c,
           row[c].id.empty() ? text
                             : fmt::format("<a href=\"#{}\">{}</a>", EscapeHtml(row[c].id), text));
    }
    out_ += "</tr>\n";
  }
  out_ += "</table></div>\n";
}

void HtmlPage::Picture(const Svg& picture) {
  out_ += "<div>";
  out_ += picture.Finish();
  out_ += "</div>\n";
}

void HtmlPage::BeginDetails(std::string_view summary, bool open) {
  out_ += fmt::format("<details name=\"one\"{}><summary>{}</summary>\n", open ? " open" : "",
                      EscapeHtml(summary));
}

}  // namespace shardinit
