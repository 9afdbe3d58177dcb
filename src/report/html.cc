#include "report/html.h"

#include <fmt/format.h>

#include <cmath>

#include "base/text.h"
#include "report/template.h"

namespace shardinit {
namespace {

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
    out += c == '&'    ? "&amp;"
           : c == '<'  ? "&lt;"
           : c == '>'  ? "&gt;"
           : c == '"'  ? "&quot;"
           : c == '\'' ? "&#39;"
                       : std::string_view(&c, 1);
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

void HtmlPage::Heading(std::string_view text) {
  body_ += fmt::format("<h2>{}</h2>\n", EscapeHtml(text));
}

void HtmlPage::Paragraph(std::string_view text) {
  body_ += fmt::format("<p>{}</p>\n", EscapeHtml(text));
}

void HtmlPage::Table(std::string_view id, const std::vector<std::string>& head,
                     const std::vector<std::vector<HtmlLink>>& rows,
                     const std::vector<bool>& right) {
  const auto cell = [&](std::string_view tag, size_t column, const std::string& inner) {
    const bool is_right = column < right.size() && right[column];
    body_ += fmt::format("<{}{}>{}</{}>", tag, is_right ? " class=\"n\"" : "", inner, tag);
  };
  body_ += fmt::format("<div><table id=\"{}\">\n", EscapeHtml(id));
  if (!head.empty()) {
    body_ += "<tr>";
    for (size_t c = 0; c < head.size(); ++c) cell("th", c, EscapeHtml(head[c]));
    body_ += "</tr>\n";
  }
  for (const std::vector<HtmlLink>& row : rows) {
    body_ += "<tr>";
    for (size_t c = 0; c < row.size(); ++c) {
      const std::string text = EscapeHtml(row[c].text);
      cell("td", c,
           row[c].id.empty() ? text
                             : fmt::format("<a href=\"#{}\">{}</a>", EscapeHtml(row[c].id), text));
    }
    body_ += "</tr>\n";
  }
  body_ += "</table></div>\n";
}

void HtmlPage::Picture(const Svg& picture) {
  body_ += "<div>";
  body_ += picture.Finish();
  body_ += "</div>\n";
}

void HtmlPage::BeginDetails(std::string_view summary, bool open) {
  body_ += fmt::format("<details name=\"one\"{}><summary>{}</summary>\n", open ? " open" : "",
                       EscapeHtml(summary));
}

std::string HtmlPage::Finish() const {
  return FillTemplate("page.html", {{"title", EscapeHtml(title_)}, {"body", body_}});
}

}  // namespace shardinit
