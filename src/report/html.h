// Makes a page of HTML that stands alone: no script, nothing from elsewhere, light or dark as the
// reader's system is. Its policy lets it use nothing but itself, whatever may ever stand in it. The
// page around what is added here is templates/page.html. All text is escaped here.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace shardinit {

// Escapes text for use between tags and in quotes: a user's text cannot end either, nor reverse a
// line. A text that is longer than any name a spec may have is shortened in the middle.
std::string EscapeHtml(std::string_view text);

struct HtmlLink {
  std::string text, id;  // without an id: text alone
};

// A picture has a size in pixels and consists of rectangles that show their titles when a pointer
// is over them.
class Svg {
 public:
  // `name` describes the picture to those who do not see it.
  Svg(double width, double height, std::string_view name, std::string_view id = {});

  struct Rectangle {
    double x, y, width, height;
  };
  void Rect(const Rectangle& at, std::string_view fill, std::string_view title = {});
  void Text(double x, double y, std::string_view text, std::string_view style = {});
  std::string Finish() const { return out_ + "</svg>\n"; }

 private:
  std::string out_;
};

// Returns a colour for each of `count` things: neighbours differ, and the hue goes once around.
std::string ColourOf(int64_t number, int64_t count);

class HtmlPage {
 public:
  explicit HtmlPage(std::string_view title) : title_(title) {}

  void Heading(std::string_view text);
  void Paragraph(std::string_view text);
  // Adds a table. The first row is the head; the columns of `right` are aligned to the right.
  void Table(std::string_view id, const std::vector<std::string>& head,
             const std::vector<std::vector<HtmlLink>>& rows, const std::vector<bool>& right);
  void Picture(const Svg& picture);
  // Begins a part that opens on a click or by a link to an id within it; one is open at a time.
  void BeginDetails(std::string_view summary, bool open);
  void EndDetails() { body_ += "</details>\n"; }

  std::string Finish() const;

 private:
  const std::string title_;
  std::string body_;
};

}  // namespace shardinit
