// Builds a self-contained HTML page, light or dark like the reader's system. Its policy blocks
// external resources, and every script except the one in templates/page.html, the frame of the
// page. All text is escaped here.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace shardinit {

// Escapes text for use between tags and in quotes: users' text cannot close a tag or a quote, or
// reverse a line. Shortens in the middle a text that is longer than any valid name in a spec.
std::string EscapeHtml(std::string_view text);
// Escapes a path and allows line breaks after its dots and underscores, so that no word is split.
std::string PathInHtml(std::string_view path);
// Formats a number to three decimals, without trailing zeros.
std::string NumberInHtml(double value);

// Colours for CSS's oklch(), in which equal lightness looks equal: dark text is legible on all of
// them. ColourOf() is for `count` items in a row: neighbours differ, and the hue goes around once.
// ColourOfKind() gives neighbours distant hues, whatever their number.
std::string ColourOf(int64_t number, int64_t count);
std::string ColourOfKind(size_t number);

struct HtmlCell {
  std::string text, id = {};  // a link to `id`, or plain text if `id` is empty
};

struct HtmlColumn {
  enum Kind { kText, kPath, kNumber };
  std::string name;
  Kind kind = kText;
};

// Colours by two properties of a tensor; the reader chooses the property.
struct HtmlColours {
  std::string first, second = {};  // without `second`, always `first`
  std::string Style() const;       // for `class="k"`
};

class HtmlPage {
 public:
  void Heading(std::string_view text);
  void Paragraph(std::string_view text, bool is_bad = false);
  // Adds a table of names and values, for people.
  void Facts(std::string_view id, const std::vector<std::vector<std::string>>& rows);
  // Adds a table. With `of_tensors`, rows become cards on narrow screens, and the filter can hide
  // them.
  void Table(std::string_view id, const std::vector<HtmlColumn>& columns,
             const std::vector<std::vector<HtmlCell>>& rows, bool of_tensors = false);
  // Adds an input field that hides the tensors without the words that the reader types.
  void Filter();
  // Lets the reader choose which colour of HtmlColours to show.
  void ChooseColours(std::string_view first, std::string_view second);
  // Adds the meaning of the colours. `by` is 0 or 1, in the order of ChooseColours().
  void Legend(int by, const std::vector<std::pair<std::string, std::string>>& colours_and_texts);
  // Begins a part that opens on a click, or by a link to an id inside it. Only one part with the
  // same `group` is open at a time.
  void BeginDetails(std::string_view summary, bool open, std::string_view group = {});
  void EndDetails() { body_ += "</details>\n"; }
  void BeginPart(std::string_view kind) { body_ += "<div class=\"" + EscapeHtml(kind) + "\">\n"; }
  void EndPart() { body_ += "</div>\n"; }

  // A line of a tree, with a bar. The bar is a part of the whole, and begins where the previous
  // line's bar ended.
  struct Line {
    std::string name, count, size, what = {};
    double from = 0, part = 0;  // of 1
    HtmlColours colours = {};
  };
  void BeginBranch(const Line& line, bool open);
  void EndBranch() { body_ += "</details>\n"; }
  void Leaf(const Line& line);

  // Adds HTML made by another file of report/.
  void Add(std::string_view html) { body_ += html; }

  const std::string& body() const { return body_; }
  // Returns the whole page; `shardinit COMMAND` is its generator.
  std::string Finish(std::string_view command, std::string_view title) const;

 private:
  std::string body_;
};

}  // namespace shardinit
