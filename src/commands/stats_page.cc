#include "commands/stats_page.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>

#include "commands/options.h"
#include "graph/outline.h"
#include "report/chart.h"
#include "report/html.h"
#include "report/text.h"

namespace shardinit {
namespace {

// These limits keep a page below about 1.5 MB.
constexpr size_t kMostMeasuredGroups = 400;
constexpr size_t kMostOfGroup = 24;      // histograms of a group
constexpr size_t kMostHistograms = 600;  // histograms of all groups
constexpr size_t kMostTensors = 500;     // tensors of a group in its plot of quantiles
constexpr size_t kMostOpenCharts = 12;   // groups that are initially open

using Results = std::vector<const Measurement*>;

// Tensors that differ only in the numbers of their paths and in their values.
struct MeasuredGroup {
  std::string name;
  Results results;
};

std::vector<MeasuredGroup> MeasuredGroupsOf(const std::vector<Measurement>& results) {
  std::vector<MeasuredGroup> groups;
  std::map<std::string, size_t> by_name;
  for (const Measurement& m : results) {
    const auto [it, is_new] = by_name.try_emplace(
        fmt::format("{} {} {}", WithoutNumbers(m.tensor->path()), InfoOf(m.tensor->dtype()).name,
                    InShape(m.tensor->shape_in_numbers())),
        groups.size());
    if (is_new) groups.emplace_back();
    groups[it->second].results.push_back(&m);
  }
  for (MeasuredGroup& group : groups) {
    std::vector<std::string_view> paths;
    for (const Measurement* m : group.results) paths.push_back(m->tensor->path());
    group.name = AsOne(paths);
  }
  return groups;
}

std::string InDigits(double value) { return fmt::format("{:.3g}", value); }

// Returns the range of `get` over the tensors with finite elements. Skips values that are not
// finite: a sum of finite elements may overflow.
template <typename F>
std::string RangeOf(const Results& results, F get) {
  double least = std::numeric_limits<double>::infinity(), most = -least;
  for (const Measurement* m : results) {
    const double value = m->moments.count == 0 ? std::nan("") : get(*m);
    if (!std::isfinite(value)) continue;
    least = std::min(least, value);
    most = std::max(most, value);
  }
  if (least > most) return "-";
  const std::string low = InDigits(least), high = InDigits(most);
  return low == high ? low : low + " … " + high;
}

// Selects at most `most` tensors, evenly spaced, including the first and the last.
Results Chosen(const Results& results, size_t most) {
  if (results.size() <= most) return results;
  Results chosen;
  for (size_t i = 0; i < most; ++i) {
    chosen.push_back(results[i * (results.size() - 1) / std::max<size_t>(1, most - 1)]);
  }
  return chosen;
}

// Returns the numbers in a path; the tensors of a group differ in them.
std::string NumbersIn(const std::string& path) {
  std::string numbers;
  for (size_t begin = 0; begin <= path.size();) {
    const size_t end = std::min(path.find('.', begin), path.size());
    const std::string part = path.substr(begin, end - begin);
    if (!part.empty() && part.find_first_not_of("0123456789") == part.npos) {
      numbers += (numbers.empty() ? "" : ".") + part;
    }
    begin = end + 1;
  }
  return numbers;
}

// The vertical axis of a chart.
class Scale {
 public:
  explicit Scale(const Results& results) {
    for (const Measurement* m : results) {
      if (m->moments.count == 0) continue;
      least_ = std::min(least_, m->moments.min);
      most_ = std::max(most_, m->moments.max);
    }
  }
  bool is_empty() const { return !(least_ < most_); }
  // Halving keeps the differences of the largest numbers finite.
  double At(double value) const {
    return std::clamp((value / 2 - least_ / 2) / (most_ / 2 - least_ / 2), 0.0, 1.0);
  }
  std::string least() const { return least_ <= most_ ? InDigits(least_) : "-"; }
  std::string most() const { return least_ <= most_ ? InDigits(most_) : "-"; }

 private:
  double least_ = std::numeric_limits<double>::infinity(), most_ = -least_;
};

std::string Histogram(const Measurement& m) {
  Chart chart;
  const auto most = static_cast<double>(*std::max_element(m.histogram.begin(), m.histogram.end()));
  const double width = 1 / static_cast<double>(m.histogram.size());
  for (size_t i = 0; i < m.histogram.size(); ++i) {
    if (m.histogram[i] == 0) continue;
    chart.Bar(width * static_cast<double>(i), width, 0, static_cast<double>(m.histogram[i]) / most,
              "b", Count(m.histogram[i], "element"));
  }
  return chart.InHtml(
      {.title = std::string(m.tensor->path()),
       .y = "elements",
       .top = fmt::format("{:.3g} %", 100 * most / static_cast<double>(m.moments.count)),
       .bottom = "0 %",
       .x = "value",
       .left = InDigits(m.moments.min),
       .right = InDigits(m.moments.max)});
}

// Draws the quantile function of one tensor.
std::string QuantileFunction(const Measurement& m, const Scale& scale) {
  Chart chart;
  Chart::Points points = {{0, scale.At(m.moments.min)}};
  for (size_t i = 0; i < m.quantiles.size(); ++i) {
    points.emplace_back(kQuantiles[i], scale.At(m.quantiles[i]));
  }
  points.emplace_back(1, scale.At(m.moments.max));
  chart.Line(points);
  return chart.InHtml({.title = "Quantiles",
                       .y = "value",
                       .top = scale.most(),
                       .bottom = scale.least(),
                       .x = "part of the elements that are not larger",
                       .left = "0",
                       .right = "1"});
}

// Draws bands of quantiles over the tensors of a group, and lines for the declared values.
std::string QuantileBands(const Results& results, const Scale& scale) {
  Results shown;
  for (const Measurement* m : Chosen(results, kMostTensors)) {
    if (m->moments.count > 0) shown.push_back(m);
  }
  const double last = static_cast<double>(std::max<size_t>(2, shown.size()) - 1);
  const auto line = [&](auto get) {
    Chart::Points points;
    for (size_t i = 0; i < shown.size(); ++i) {
      points.emplace_back(static_cast<double>(i) / last, scale.At(get(*shown[i])));
    }
    return points;
  };
  const auto quantile = [&](size_t q) {
    return line([q](const Measurement& m) { return m.quantiles[q]; });
  };
  Chart chart;
  chart.Band(line([](const Measurement& m) { return m.moments.min; }),
             line([](const Measurement& m) { return m.moments.max; }), "q q0", "all elements");
  chart.Band(quantile(0), quantile(8), "q q1", "from 0.1 % to 99.9 % of the elements");
  chart.Band(quantile(2), quantile(6), "q q2", "from 5 % to 95 % of the elements");
  chart.Band(quantile(3), quantile(5), "q q3", "from 25 % to 75 % of the elements");
  chart.Line(quantile(kMedian));
  if (std::all_of(shown.begin(), shown.end(),
                  [](const Measurement* m) { return m->declared.has_value(); })) {
    for (const double sign : {-1.0, 1.0}) {
      chart.Line(
          line([sign](const Measurement& m) { return m.declared->mean + sign * m.declared->std; }),
          "declared");
    }
  }
  return chart.InHtml({.title = "Quantiles of each tensor",
                       .y = "value",
                       .top = scale.most(),
                       .bottom = scale.least(),
                       .x = "number in the path",
                       .left = NumbersIn(std::string(shown.front()->tensor->path())),
                       .right = NumbersIn(std::string(shown.back()->tensor->path()))});
}

class StatsPageWriter {
 public:
  explicit StatsPageWriter(const std::vector<Measurement>& results)
      : results_(results), groups_(MeasuredGroupsOf(results)) {}

  std::string Write(const std::string& name) {
    AddOverview();
    page_.Heading("Values by group");
    page_.Paragraph(
        "Bands have all elements, those from 0.1 % to 99.9 %, from 5 % to 95 % and from 25 % to "
        "75 %; the line is the median. Dashed lines are the declared mean, less and plus the "
        "declared standard deviation. A histogram has 20 equal parts.");
    const size_t shown = std::min(groups_.size(), kMostMeasuredGroups);
    for (size_t g = 0; g < shown; ++g) AddGroup(g);
    return page_.Finish("stats", name);
  }

 private:
  void AddOverview() {
    int64_t elements = 0, wrong = 0, untested = 0, initial = 0;
    for (const Measurement& m : results_) {
      elements += m.moments.count + m.not_finite();
      wrong += m.is_wrong;
      initial += m.is_initial.value_or(false);
      untested += !m.is_wrong && !m.declared;
    }
    page_.Heading("Overview");
    page_.Paragraph(fmt::format("{}, {}; tensors that differ only in numbers are one group.",
                                Count(std::ssize(results_), "tensor"), Count(elements, "element")));
    if (wrong > 0) {
      page_.Paragraph(Count(wrong, "tensor") + (wrong == 1 ? " is" : " are") + " not as declared.",
                      true);
    } else {
      page_.Paragraph(
          untested == 0
              ? "All are as the spec declares."
              : fmt::format("No tensor deviates from its declaration; {} cannot be tested.",
                            Grouped(untested)));
    }
    if (initial > 0) {
      page_.Paragraph(Count(initial, "tensor") + (initial == 1 ? " is" : " are") +
                      " exactly as the spec initializes " + (initial == 1 ? "it." : "them."));
    }
    AddSpread();
    page_.Filter();
    if (groups_.size() > kMostMeasuredGroups) {
      page_.Paragraph(fmt::format("The first {} groups of {} are shown.", kMostMeasuredGroups,
                                  Grouped(std::ssize(groups_))));
    }
    std::vector<std::vector<HtmlCell>> rows;
    for (size_t g = 0; g < std::min(groups_.size(), kMostMeasuredGroups); ++g)
      rows.push_back(RowOf(g));
    page_.Table("groups",
                {{"tensor", HtmlColumn::kPath},
                 {"tensors", HtmlColumn::kNumber},
                 {"mean", HtmlColumn::kNumber},
                 {"std", HtmlColumn::kNumber},
                 {"declared std", HtmlColumn::kNumber},
                 {"min", HtmlColumn::kNumber},
                 {"max", HtmlColumn::kNumber},
                 {"probability", HtmlColumn::kNumber},
                 {"as declared", HtmlColumn::kNumber}},
                rows, true);
  }

  std::vector<HtmlCell> RowOf(size_t g) const {
    const Results& results = groups_[g].results;
    double probability = 2, least = std::numeric_limits<double>::infinity(), most = -least;
    int64_t wrong = 0, declared = 0;
    for (const Measurement* m : results) {
      if (m->fit) probability = std::min(probability, m->fit->probability);
      wrong += m->is_wrong;
      if (!m->declared) continue;
      ++declared;
      least = std::min(least, m->declared->std);
      most = std::max(most, m->declared->std);
    }
    const std::string low = InDigits(least), high = InDigits(most);
    const Scale scale(results);
    return {{groups_[g].name, fmt::format("g{}", g)},
            {Grouped(std::ssize(results))},
            {RangeOf(results, [](const Measurement& m) { return m.moments.mean; })},
            {RangeOf(results, [](const Measurement& m) { return m.moments.std(); })},
            {declared == 0 ? "-"
             : low == high ? low
                           : low + " … " + high},
            {scale.least()},
            {scale.most()},
            {probability > 1 ? "-" : fmt::format("{:.3g}", probability)},
            {wrong > 0      ? fmt::format("no: {}", Grouped(wrong))
             : declared > 0 ? "yes"
                            : "-"}};
  }

  // Plots every tensor's standard deviation on a logarithmic axis, in the model's order.
  void AddSpread() {
    double least = std::numeric_limits<double>::infinity(), most = 0;
    std::vector<const Measurement*> spread;
    for (const Measurement& m : results_) {
      const double std = m.moments.count > 0 ? m.moments.std() : 0;
      if (!(std > 0) || !std::isfinite(std)) continue;
      spread.push_back(&m);
      least = std::min(least, std);
      most = std::max(most, std);
    }
    if (spread.empty()) return;
    // The ends are powers of ten, so that rounding errors of equal deviations are invisible.
    const double low = std::floor(std::log10(least)), high = std::floor(std::log10(most)) + 1;
    const Results shown = Chosen(spread, kMostTensors);
    const double width = 1 / static_cast<double>(shown.size());
    Chart chart;
    for (size_t i = 0; i < shown.size(); ++i) {
      const double at = (std::log10(shown[i]->moments.std()) - low) / (high - low);
      chart.Bar(
          width * (static_cast<double>(i) + 0.1), 0.8 * width, 0, std::max(at, 0.005), "b",
          fmt::format("{}: std {}", shown[i]->tensor->path(), InDigits(shown[i]->moments.std())));
    }
    const std::string constant = Count(std::ssize(results_) - std::ssize(spread), "tensor");
    page_.Add(chart.InHtml(
        {.title = fmt::format("Standard deviation of each tensor, by its logarithm{}",
                              spread.size() == results_.size()
                                  ? ""
                                  : fmt::format("; {} without one left out", constant)),
         .y = "std",
         .top = fmt::format("1e{:g}", high),
         .bottom = fmt::format("1e{:g}", low),
         .x = "tensors in the order of the model",
         .left = "first",
         .right = "last"}));
  }

  void AddGroup(size_t g) {
    const MeasuredGroup& group = groups_[g];
    const Measurement& first = *group.results.front();
    page_.BeginDetails(group.name, groups_.size() <= kMostOpenCharts || g == 0);
    page_.Add(fmt::format("<div id=\"g{}\">\n", g));
    page_.Paragraph(fmt::format("{} {}, {}", InfoOf(first.tensor->dtype()).name,
                                InShape(first.tensor->shape_in_numbers()), ValuesOf(group)));
    const Scale scale(group.results);
    if (scale.is_empty()) {
      page_.Paragraph(first.moments.count == 0
                          ? "No element is finite."
                          : fmt::format("All elements are {}.", InDigits(first.moments.min)));
    } else {
      AddCharts(group, scale);
    }
    page_.EndPart();
    page_.EndDetails();
  }

  // Describes the values of a group's tensors, with one text for values that differ in numbers.
  static std::string ValuesOf(const MeasuredGroup& group) {
    std::vector<const Tensor*> tensors;
    for (const Measurement* m : group.results) tensors.push_back(m->tensor);
    const bool are_views = tensors.front()->view() != nullptr;
    return are_views ? InitText(*tensors.front()) : DescribeValues(tensors);
  }

  void AddCharts(const MeasuredGroup& group, const Scale& scale) {
    const bool one = group.results.size() == 1;
    page_.Add(one ? QuantileFunction(*group.results[0], scale)
                  : QuantileBands(group.results, scale));
    Results varied;
    for (const Measurement* m : group.results) {
      if (m->moments.max > m->moments.min) varied.push_back(m);
    }
    const Results shown = Chosen(varied, std::min(kMostOfGroup, kMostHistograms - drawn_));
    drawn_ += shown.size();
    if (shown.size() < varied.size()) {
      page_.Paragraph(fmt::format("Histograms of {} tensors of {}:", shown.size(),
                                  Grouped(std::ssize(varied))));
    }
    page_.BeginPart("small");
    for (const Measurement* m : shown) page_.Add(Histogram(*m));
    page_.EndPart();
  }

  const std::vector<Measurement>& results_;
  const std::vector<MeasuredGroup> groups_;
  size_t drawn_ = 0;  // histograms
  HtmlPage page_;
};

}  // namespace

std::string StatsPage(const std::string& name, const std::vector<Measurement>& results) {
  return StatsPageWriter(results).Write(name);
}

}  // namespace shardinit
