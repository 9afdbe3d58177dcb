#include "report/chart.h"

#include <fmt/format.h>

#include "report/html.h"
#include "report/template.h"

namespace shardinit {
namespace {

constexpr double kChartWidth = 1000, kChartHeight = 100;  // as in templates/chart.html

std::string InMark(std::string_view title) {
  return title.empty() ? "" : fmt::format("<title>{}</title>", EscapeHtml(title));
}

std::string PathOf(const Chart::Points& points, char command = 'M') {
  std::string path;
  for (const auto& [x, y] : points) {
    path += fmt::format("{}{} {}", command, NumberInHtml(kChartWidth * x),
                        NumberInHtml(kChartHeight * (1 - y)));
    command = 'L';
  }
  return path;
}

}  // namespace

void Chart::Bar(double x, double width, double from, double to, std::string_view style,
                std::string_view title) {
  marks_ += fmt::format(
      "<rect class=\"{}\" x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\">{}</rect>\n",
      EscapeHtml(style), NumberInHtml(kChartWidth * x), NumberInHtml(kChartHeight * (1 - to)),
      NumberInHtml(kChartWidth * width), NumberInHtml(kChartHeight * (to - from)), InMark(title));
}

void Chart::Line(const Points& points, std::string_view style) {
  marks_ += fmt::format("<path class=\"line {}\" d=\"{}\"/>\n", EscapeHtml(style), PathOf(points));
}

void Chart::Band(const Points& below, const Points& above, std::string_view style,
                 std::string_view title) {
  marks_ += fmt::format("<path class=\"{}\" d=\"{}{}Z\">{}</path>\n", EscapeHtml(style),
                        PathOf(above), PathOf({below.rbegin(), below.rend()}, 'L'), InMark(title));
}

std::string Chart::InHtml(const ChartFrame& frame) const {
  return FillTemplate("chart.html", {{"title", EscapeHtml(frame.title)},
                                     {"y", EscapeHtml(frame.y)},
                                     {"top", EscapeHtml(frame.top)},
                                     {"bottom", EscapeHtml(frame.bottom)},
                                     {"x", EscapeHtml(frame.x)},
                                     {"left", EscapeHtml(frame.left)},
                                     {"right", EscapeHtml(frame.right)},
                                     {"width", NumberInHtml(kChartWidth)},
                                     {"marks", marks_}});
}

}  // namespace shardinit
