// A page of HTML that stands alone: no script, nothing from elsewhere, light or dark as the reader
// has it. All text is escaped here.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace shardinit {

// For text between tags and in quotes: what a user wrote cannot end either, nor reverse a line.
// Longer than any name that is read: shortened in the middle.
std::string EscapeHtml(std::string_view text);

struct HtmlLink {
  std::string text, id;  // Without an id: text alone.
};

// A picture of so many pixels, of rectangles that say what they are when a pointer is over them.
class Svg {
 public:
  // `name` says what is seen to those who do not see it.
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

// A colour for each of `count` things: neighbours differ, and the hue goes once around.
std::string ColourOf(int64_t number, int64_t count);

class HtmlPage {
 public:
  explicit HtmlPage(std::string_view title);

  void Heading(std::string_view text);
  void Paragraph(std::string_view text);
  // The first row is the head; with `right`, these columns are aligned to the right.
  void Table(std::string_view id, const std::vector<std::string>& head,
             const std::vector<std::vector<HtmlLink>>& rows, const std::vector<bool>& right);
  void Picture(const Svg& picture);
  // Of pages that open in turn. What has the id of a link within one opens it.
  void BeginDetails(std::string_view summary, bool open);
  void EndDetails() { out_ += "</details>\n"; }

  std::string Finish() const { return out_ + "</main>\n</body>\n</html>\n"; }

 private:
  std::string out_;
};

}  // namespace shardinit
