#include "report/html.h"

#include <fmt/format.h>

#include <cctype>
#include <cmath>

#include "base/text.h"
#include "report/template.h"

namespace shardinit {
namespace {

std::string Shortened(std::string_view text) {
  constexpr size_t kLongest = 300, kHeadBytes = 180, kTailBytes = 100;
  if (text.size() <= kLongest) return std::string(text);
  size_t head = kHeadBytes, tail = text.size() - kTailBytes;
  while ((text[head] & 0xc0) == 0x80) --head;  // cuts between characters
  while (tail < text.size() && (text[tail] & 0xc0) == 0x80) ++tail;
  return fmt::format("{}…{}", text.substr(0, head), text.substr(tail));
}

std::string Colour(double lightness, double hue) {
  return fmt::format("{} .1 {}", lightness, std::lround(hue));
}

std::string CellInHtml(const HtmlCell& cell, HtmlColumn::Kind kind) {
  const std::string text =
      kind == HtmlColumn::kPath ? PathInHtml(cell.text) : EscapeHtml(cell.text);
  return cell.id.empty() ? text : fmt::format("<a href=\"#{}\">{}</a>", EscapeHtml(cell.id), text);
}

std::string_view ClassOf(HtmlColumn::Kind kind) {
  return kind == HtmlColumn::kNumber ? " class=\"n\"" : "";
}

// A leaf also has its colours next to its name: its bar may be too small to see.
std::string LineInHtml(const HtmlPage::Line& line, bool is_leaf) {
  const std::string style = line.colours.Style();
  std::string text = fmt::format(
      "<span class=\"row\"><span>{}{}</span><span class=\"n count\">{}</span><span class=\"n\">{}"
      "</span><span class=\"bar\"><i class=\"k\" style=\"left:{}%;width:{}%;{}\"></i></span>",
      is_leaf ? fmt::format("<i class=\"k\" style=\"{}\"></i>", style) : "", PathInHtml(line.name),
      EscapeHtml(line.count), EscapeHtml(line.size), NumberInHtml(100 * line.from),
      NumberInHtml(100 * line.part), style);
  if (!line.what.empty()) {
    text += fmt::format("<span class=\"what\">{}</span>", PathInHtml(line.what));
  }
  return text + "</span>";
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

std::string PathInHtml(std::string_view path) {
  const std::string text = EscapeHtml(path);
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    out += text[i];
    const bool ends = text[i] == '.' || text[i] == '_';
    const auto is_letter = [&](size_t at) {
      return at < text.size() && std::isalpha(text[at] & 0x7f);
    };
    if (ends && (is_letter(i + 1) || (i + 1 < text.size() && text[i + 1] == '{'))) out += "<wbr>";
  }
  return out;
}

std::string NumberInHtml(double value) {
  std::string text = fmt::format("{:.3f}", value);
  text.erase(text.find_last_not_of('0') + 1);
  if (text.back() == '.') text.pop_back();
  return text == "-0" ? "0" : text;
}

std::string ColourOf(int64_t number, int64_t count) {
  const double hue = 330.0 * static_cast<double>(number) / static_cast<double>(count);
  return Colour(0.72 + 0.06 * static_cast<double>(number % 3), hue);
}

std::string ColourOfKind(size_t number) {
  return Colour(number % 2 == 0 ? 0.76 : 0.84, static_cast<double>((250 + number * 137) % 360));
}

std::string HtmlColours::Style() const {
  return second.empty() ? "--i:" + first : fmt::format("--i:{};--s:{}", first, second);
}

void HtmlPage::Heading(std::string_view text) {
  body_ += fmt::format("<h2>{}</h2>\n", EscapeHtml(text));
}

void HtmlPage::Paragraph(std::string_view text, bool is_bad) {
  body_ += fmt::format("<p{}>{}</p>\n", is_bad ? " class=\"bad\"" : "", EscapeHtml(text));
}

void HtmlPage::Facts(std::string_view id, const std::vector<std::vector<std::string>>& rows) {
  body_ += fmt::format("<div class=\"wide\"><table id=\"{}\">\n", EscapeHtml(id));
  for (const std::vector<std::string>& row : rows) {
    body_ += fmt::format("<tr><td class=\"w\">{}</td><td>{}</td></tr>\n", EscapeHtml(row[0]),
                         EscapeHtml(row[1]));
  }
  body_ += "</table></div>\n";
}

void HtmlPage::Table(std::string_view id, const std::vector<HtmlColumn>& columns,
                     const std::vector<std::vector<HtmlCell>>& rows, bool of_tensors) {
  body_ += fmt::format("<div class=\"wide\"><table{} id=\"{}\">\n<tr>",
                       of_tensors ? " class=\"cards\"" : "", EscapeHtml(id));
  for (const HtmlColumn& column : columns) {
    body_ += fmt::format("<th{}>{}</th>", ClassOf(column.kind), EscapeHtml(column.name));
  }
  body_ += "</tr>\n";
  for (const std::vector<HtmlCell>& row : rows) {
    body_ += of_tensors ? "<tr class=\"f\">" : "<tr>";
    for (size_t c = 0; c < row.size(); ++c) {
      const HtmlColumn& column = columns[c];
      // In a card, a number needs the name of its column.
      const std::string name = column.name.empty() || column.kind != HtmlColumn::kNumber
                                   ? ""
                                   : fmt::format(" data-l=\"{}\"", EscapeHtml(column.name));
      body_ += fmt::format("<td{}{}>{}</td>", ClassOf(column.kind), name,
                           CellInHtml(row[c], column.kind));
    }
    body_ += "</tr>\n";
  }
  body_ += "</table></div>\n";
}

void HtmlPage::Filter() {
  body_ +=
      "<div class=\"find\" hidden><label for=\"filter\">Filter</label> <input id=\"filter\" "
      "type=\"search\" placeholder=\"words of a tensor\"> <output id=\"found\"></output></div>\n";
}

void HtmlPage::ChooseColours(std::string_view first, std::string_view second) {
  body_ += fmt::format(
      "<span>Colours by</span> <input type=\"radio\" name=\"colours\" id=\"init\" checked> <label "
      "for=\"init\">{}</label> <input type=\"radio\" name=\"colours\" id=\"sharding\"> <label "
      "for=\"sharding\">{}</label>\n",
      EscapeHtml(first), EscapeHtml(second));
}

void HtmlPage::Legend(int by,
                      const std::vector<std::pair<std::string, std::string>>& colours_and_texts) {
  body_ += fmt::format("<ul class=\"legend {}\">\n", by == 0 ? "i" : "s");
  for (const auto& [colour, text] : colours_and_texts) {
    const HtmlColours both = {colour, colour};
    body_ += fmt::format(
        "<li>{}{}</li>\n",
        colour.empty() ? "" : fmt::format("<i class=\"k\" style=\"{}\"></i>", both.Style()),
        PathInHtml(text));
  }
  body_ += "</ul>\n";
}

void HtmlPage::BeginDetails(std::string_view summary, bool open, std::string_view group) {
  body_ += fmt::format("<details{}{}><summary>{}</summary>\n",
                       group.empty() ? "" : fmt::format(" name=\"{}\"", EscapeHtml(group)),
                       open ? " open" : "", PathInHtml(summary));
}

void HtmlPage::BeginBranch(const Line& line, bool open) {
  body_ += fmt::format("<details class=\"branch\"{}><summary>{}</summary>\n", open ? " open" : "",
                       LineInHtml(line, false));
}

void HtmlPage::Leaf(const Line& line) {
  body_ += fmt::format("<div class=\"leaf f\">{}</div>\n", LineInHtml(line, true));
}

std::string HtmlPage::Finish(std::string_view command, std::string_view title) const {
  return FillTemplate("page.html", {{"command", std::string(command)},
                                    {"title", EscapeHtml(title)},
                                    {"heading", PathInHtml(title)},
                                    {"body", body_}});
}

}  // namespace shardinit
