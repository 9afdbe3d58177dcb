#include "commands/plan_ranks.h"

#include <fmt/format.h>

#include <algorithm>

#include "report/chart.h"
#include "report/text.h"

namespace shardinit {
namespace {

constexpr int64_t kMostPlaces = 64;      // for summarized ranks
constexpr int64_t kMostLoads = 1 << 20;  // sums to compute for the loads
constexpr int64_t kShortRun = 8;         // places next to each other on a narrow page
constexpr int64_t kMostAmounts = 16;     // amounts of bytes in a table

std::string ColourOfSlice(int64_t slice) {
  // Gives neighbours distant hues, whatever their number.
  return fmt::format("--c:.5 .2 {}", slice * 137 % 360);
}

// Returns how many consecutive ranks share a place: all indices of the last axes, times a part of
// the next axis, which it divides unless divisors are much too large.
int64_t RanksOfPlace(const Mesh& mesh) {
  if (mesh.world_size() <= kMostSingleRanks) return 1;
  for (int axis = static_cast<int>(mesh.shape.size()) - 1; axis >= 0; --axis) {
    const int64_t stride = mesh.StrideOf(axis), size = mesh.shape[axis];
    const int64_t least = (mesh.world_size() + stride * kMostPlaces - 1) / (stride * kMostPlaces);
    if (least > size) continue;
    for (int64_t part = least; part <= std::min(size, 2 * least); ++part) {
      if (size % part == 0) return stride * part;
    }
    return stride * least;
  }
  return mesh.world_size();
}

class RankPictures {
 public:
  RankPictures(const Plan& plan, const std::vector<TensorKind>& kinds, const Balance& balance,
               HtmlPage* page)
      : plan_(plan), mesh_(plan.graph.mesh), balance_(balance), page_(*page) {
    const int64_t ranks = mesh_.world_size(), step = RanksOfPlace(mesh_);
    const bool has_loads = ranks <= kMostLoads / std::max<int64_t>(1, std::ssize(kinds));
    for (int64_t first = 0; first < ranks; first += step) {
      Place place = {first, std::min(ranks, first + step)};
      for (int64_t rank = first; has_loads && rank < place.end; ++rank) {
        const RankLoad load = LoadOf(plan, kinds, rank);
        place.least = rank == first ? load
                                    : RankLoad{std::min(place.least.held, load.held),
                                               std::min(place.least.stored, load.stored)};
        place.most = {std::max(place.most.held, load.held),
                      std::max(place.most.stored, load.stored)};
      }
      places_.push_back(place);
    }
    has_loads_ = has_loads;
    single_ = step == 1;
  }

  void AddMesh() {
    const int64_t slices = mesh_.devices.slice_count();
    page_.Heading("Mesh");
    if (mesh_.axes.empty()) {
      page_.Paragraph("1 rank, without a mesh.");
    } else {
      page_.Paragraph(fmt::format(
          "{} of {}, the last axis fastest. Each place shows the number of its {}, its index on "
          "each axis, and the colour that its rank has in all pictures.",
          Count(mesh_.world_size(), "rank"), InText(mesh_), single_ ? "rank" : "ranks"));
    }
    if (!single_) {
      page_.Paragraph(fmt::format("There are too many ranks: each place represents {}.",
                                  Count(places_[0].end, "rank")));
    }
    if (slices > 1) {
      page_.Paragraph(fmt::format("{} of {}: the bar below a place has the colour of its slice.",
                                  Count(slices, "slice"),
                                  Count(mesh_.world_size() / slices, "device")));
    }
    page_.Add("<div class=\"mesh\" id=\"mesh\">\n");
    const DeviceMap devices(mesh_);
    // A run contains the places that differ only on the last axis.
    const int64_t run = mesh_.shape.empty() || !single_ ? mesh_.world_size() : mesh_.shape.back();
    for (const Place& place : places_) {
      if (place.first % run == 0) BeginRun(place);
      AddPlace(place, devices);
      if (place.end % run == 0 || place.end == mesh_.world_size()) page_.EndPart();
    }
    page_.EndPart();
  }

  void AddLoads() {
    page_.Heading("Bytes per rank");
    if (has_loads_) {
      page_.Paragraph(single_ ? "Bytes that each rank holds; the darker part is in its file."
                              : "The most that a rank of each place holds; the darker part is the "
                                "least.");
      Chart chart;
      const auto most = static_cast<double>(std::max<int64_t>(1, plan_.max_rank_bytes));
      const double width = 1 / static_cast<double>(places_.size());
      const double gap = std::ssize(places_) <= kShortRun ? 0.05 * width : 0;
      for (size_t i = 0; i < places_.size(); ++i) {
        const Place& place = places_[i];
        const double x = width * static_cast<double>(i);
        const double high = static_cast<double>(place.most.held) / most;
        const double low =
            static_cast<double>(single_ ? place.most.stored : place.least.held) / most;
        const std::string title = RanksText(place) + LoadText(place);
        if (high > low) chart.Bar(x + gap / 2, width - gap, low, high, "a", title);
        if (low > 0) chart.Bar(x + gap / 2, width - gap, 0, low, "b", title);
      }
      const std::string last = Grouped(mesh_.world_size() - 1);
      page_.Add(chart.InHtml({.title = "Bytes that ranks hold",
                              .y = "bytes",
                              .top = InBytes(plan_.max_rank_bytes),
                              .bottom = "0 B",
                              .x = "rank",
                              .left = "0",
                              .right = mesh_.world_size() > 1 ? last : ""}));
    } else {
      page_.Paragraph("Not drawn: there are too many different tensors and ranks.");
    }
    AddAmounts();
  }

 private:
  struct Place {
    int64_t first, end;  // ranks
    RankLoad least = {}, most = {};
  };

  static std::string RanksText(const Place& place) {
    return place.end == place.first + 1 ? fmt::format("rank {}", place.first)
                                        : fmt::format("ranks {}–{}", place.first, place.end - 1);
  }

  std::string LoadText(const Place& place) const {
    if (!has_loads_) return {};
    const auto range = [](int64_t least, int64_t most) {
      return least == most ? Grouped(most) : Grouped(least) + " to " + Grouped(most);
    };
    return fmt::format("; {} {} bytes, {} of them in {}", single_ ? "holds" : "each holds",
                       range(place.least.held, place.most.held),
                       range(place.least.stored, place.most.stored),
                       single_ ? "its file" : "a file");
  }

  // Returns the index or indices on each axis, as in `3, 0–15`.
  std::string CoordinateText(const Place& place) const {
    const std::vector<int64_t> first = mesh_.CoordinateOf(place.first);
    const std::vector<int64_t> last = mesh_.CoordinateOf(place.end - 1);
    std::string text;
    bool differs = false;
    for (size_t a = 0; a < first.size(); ++a) {
      text += a == 0 ? "" : ", ";
      // After an axis that differs, ranks have every index.
      text += differs               ? fmt::format("0–{}", mesh_.shape[a] - 1)
              : first[a] == last[a] ? fmt::to_string(first[a])
                                    : fmt::format("{}–{}", first[a], last[a]);
      differs = differs || first[a] != last[a];
    }
    return text;
  }

  // Begins a run with the indices on all axes but the last, and the last axis' name.
  void BeginRun(const Place& place) {
    const std::vector<int64_t> coordinate = mesh_.CoordinateOf(place.first);
    std::string label;
    for (size_t a = 0; single_ && a + 1 < coordinate.size(); ++a) {
      label += fmt::format("{}{} {}", label.empty() ? "" : ", ", mesh_.axes[a], coordinate[a]);
    }
    std::string across;
    for (size_t a = single_ && !coordinate.empty() ? coordinate.size() - 1 : 0;
         a < coordinate.size(); ++a) {
      across += (across.empty() ? "" : ", ") + mesh_.axes[a];
    }
    if (!across.empty()) label += (label.empty() ? "" : ", ") + across + " →";
    const bool is_long = single_ && (coordinate.empty() || mesh_.shape.back() > kShortRun);
    page_.BeginPart(is_long ? "run long" : "run");
    if (!label.empty()) page_.Add(fmt::format("<b>{}</b>", EscapeHtml(label)));
  }

  void AddPlace(const Place& place, const DeviceMap& devices) {
    const Device device = devices.At(place.first);
    const bool has_slice = single_ && mesh_.devices.slice_count() > 1;
    const std::string coordinate = CoordinateText(place);
    const std::string what =
        single_ ? fmt::format(": device {} in slice {}", device.id, device.slice) : "";
    const std::string title =
        fmt::format("{} at [{}]{}{}", RanksText(place), coordinate, what, LoadText(place));
    const std::string ranks = RanksText(place);
    std::string text = coordinate.empty() ? "" : fmt::format("<small>{}</small>", coordinate);
    if (single_ && device.id != place.first) {
      text += fmt::format("<small>device {}</small>", device.id);
    }
    page_.Add(fmt::format("<i class=\"k{}\" style=\"--i:{}{}\" title=\"{}\">{}{}</i>\n",
                          has_slice ? " slice" : "", ColourOf(place.first, mesh_.world_size()),
                          has_slice ? ";" + ColourOfSlice(device.slice) : "", EscapeHtml(title),
                          ranks.substr(ranks.find(' ') + 1), text));
  }

  void AddAmounts() {
    if (balance_.ranks.empty()) return;
    std::vector<std::vector<HtmlCell>> rows;
    for (const auto& [bytes, ranks] : balance_.ranks) {
      if (std::ssize(rows) == kMostAmounts) break;
      rows.push_back({{Grouped(bytes)}, {InBytes(bytes)}, {Grouped(ranks)}});
    }
    page_.Table("amounts",
                {{"bytes held", HtmlColumn::kNumber},
                 {"", HtmlColumn::kNumber},
                 {"ranks", HtmlColumn::kNumber}},
                rows);
    if (balance_.ranks.size() > rows.size()) {
      page_.Paragraph(fmt::format("The least {} of {} different amounts.", rows.size(),
                                  Grouped(std::ssize(balance_.ranks))));
    }
  }

  const Plan& plan_;
  const Mesh& mesh_;
  const Balance& balance_;
  HtmlPage& page_;
  std::vector<Place> places_;
  bool has_loads_, single_;
};

}  // namespace

void AddRankPictures(const Plan& plan, const std::vector<TensorKind>& kinds, const Balance& balance,
                     HtmlPage* page) {
  RankPictures pictures(plan, kinds, balance, page);
  pictures.AddMesh();
  pictures.AddLoads();
}

}  // namespace shardinit
