// Makes a page of HTML that stands alone: nothing from elsewhere, light or dark as the reader's
// system is. Its policy lets it use nothing but itself, and run nothing but the one script of
// templates/page.html, the page around what is added here. All text is escaped here.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace shardinit {

// Escapes text for use between tags and in quotes: a user's text cannot end either, nor reverse a
// line. A text that is longer than any name a spec may have is shortened in the middle.
std::string EscapeHtml(std::string_view text);
// Escapes a path, whose lines may end after its dots and underscores: so no word is broken.
std::string PathInHtml(std::string_view path);
// Writes a number to a thousandth, without zeros at its end.
std::string NumberInHtml(double value);

// These colours are for CSS's oklch(), where equal lightness looks equal: dark text can be read on
// each of them. ColourOf() is for `count` things in a row: neighbours differ, and the hue goes once
// around. ColourOfKind() has distant hues for neighbours, whatever their number.
std::string ColourOf(int64_t number, int64_t count);
std::string ColourOfKind(size_t number);

struct HtmlCell {
  std::string text, id = {};  // the text is a link to an id; without one: text alone
};

struct HtmlColumn {
  enum Kind { kText, kPath, kNumber };
  std::string name;
  Kind kind = kText;
};

// A colour by each of two properties of a tensor, of which the reader chooses one.
struct HtmlColours {
  std::string first, second = {};  // without a second one the first is always taken
  std::string Style() const;       // for `class="k"`
};

class HtmlPage {
 public:
  void Heading(std::string_view text);
  void Paragraph(std::string_view text, bool is_bad = false);
  // Adds names with values, for people.
  void Facts(std::string_view id, const std::vector<std::vector<std::string>>& rows);
  // Adds a table. The rows of tensors become cards where the screen is narrow, and the filter hides
  // them.
  void Table(std::string_view id, const std::vector<HtmlColumn>& columns,
             const std::vector<std::vector<HtmlCell>>& rows, bool of_tensors = false);
  // Adds what hides tensors that do not have the words that the reader types.
  void Filter();
  // Lets the reader choose which of the colours of HtmlColours are shown.
  void ChooseColours(std::string_view first, std::string_view second);
  // Adds what the colours mean. `by` is 0 or 1, as they are chosen.
  void Legend(int by, const std::vector<std::pair<std::string, std::string>>& colours_and_texts);
  // Begins a part that opens on a click or by a link to an id within it. Of those with an equal
  // group one is open at a time.
  void BeginDetails(std::string_view summary, bool open, std::string_view group = {});
  void EndDetails() { body_ += "</details>\n"; }
  void BeginPart(std::string_view kind) { body_ += "<div class=\"" + EscapeHtml(kind) + "\">\n"; }
  void EndPart() { body_ += "</div>\n"; }

  // A line of a tree has a bar, which is a part of the whole and begins where that of the line
  // before it ended.
  struct Line {
    std::string name, count, size, what = {};
    double from = 0, part = 0;  // of 1
    HtmlColours colours = {};
  };
  void BeginBranch(const Line& line, bool open);
  void EndBranch() { body_ += "</details>\n"; }
  void Leaf(const Line& line);

  // Adds HTML that another file of report/ has made.
  void Add(std::string_view html) { body_ += html; }

  const std::string& body() const { return body_; }
  // Returns the whole page, which `shardinit COMMAND` made.
  std::string Finish(std::string_view command, std::string_view title) const;

 private:
  std::string body_;
};

}  // namespace shardinit
