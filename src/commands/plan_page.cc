#include "commands/plan_page.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <optional>

#include "commands/tensor_facts.h"
#include "graph/outline.h"
#include "report/html.h"
#include "report/text.h"

namespace shardinit {
namespace {

// These limits keep a page below about 2 MB, and the work for it below about a second.
constexpr int64_t kMostRanks = 1024;       // ranks that are drawn
constexpr int64_t kMostLoads = 1 << 20;    // sums for their loads
constexpr int64_t kMostAmounts = 16;       // amounts of bytes in a table
constexpr int64_t kMostGroups = 400;       // groups of tensors
constexpr int64_t kMostBoxes = 1024;       // boxes of one tensor
constexpr int64_t kMostBoxesOfAll = 5000;  // boxes of all tensors
constexpr int64_t kMostTried = 1 << 16;    // ranks tried for the boxes of one tensor

std::string ColourOfSlice(int64_t slice) {
  // Neighbours have distant hues, whatever their number.
  return fmt::format("hsl({},90%,35%)", slice * 137 % 360);
}

// Tensors that stand in one line.
struct TensorGroup {
  std::string name;
  const Outline* outline;
};

void AddGroups(const Outline& outline, const std::string& prefix,
               std::vector<TensorGroup>* groups) {
  for (const Outline& member : outline.members) {
    const std::string name = prefix + member.name;
    if (member.members.empty()) {
      groups->push_back({name, &member});
    } else {
      AddGroups(member, name + ".", groups);
    }
  }
}

// Places boxes of a tensor on a plane of one or two of its dimensions.
class Plane {
 public:
  explicit Plane(const Tensor& tensor, const Mesh& mesh) : shape_(tensor.shape) {
    std::vector<size_t> dimensions(shape_.size());
    std::iota(dimensions.begin(), dimensions.end(), 0);
    const auto parts = [&](size_t d) { return PartsOf(tensor.partition.cuts[d], mesh); };
    // Sharded dimensions come first, then the longest.
    std::stable_sort(dimensions.begin(), dimensions.end(), [&](size_t a, size_t b) {
      if ((parts(a) > 1) != (parts(b) > 1)) return parts(a) > 1;
      return parts(a) == 1 && shape_[a] > shape_[b];
    });
    for (size_t i = 2; i < dimensions.size(); ++i) hides_ = hides_ || parts(dimensions[i]) > 1;
    dimensions.resize(std::min<size_t>(2, dimensions.size()));
    std::sort(dimensions.begin(), dimensions.end());
    if (!dimensions.empty()) across_ = dimensions.back();
    if (dimensions.size() == 2) down_ = dimensions.front();
    const double x = Extent(across_), y = down_ ? Extent(down_) : 0;
    // The picture's ratio is nearer to 2:1, so that boxes of long and narrow tensors can be seen.
    width_ = std::max(kShortest, kWidest * std::sqrt(x / std::max(x, y)));
    height_ = down_ ? std::max(kShortest, kHighest * std::sqrt(y / std::max(x, y))) : kShortest;
  }

  double width() const { return width_; }
  double height() const { return height_; }

  Svg::Rectangle At(const Box& box) const {
    const auto [x, width] = Along(box, across_, width_);
    const auto [y, height] = Along(box, down_, height_);
    return {x, y, width, height};
  }

  std::string Describe() const {
    if (shape_.size() < 2) return {};
    return fmt::format(
        "Dimension {} goes down, dimension {} to the right, not to scale.{}", *down_, *across_,
        hides_ ? " A further dimension is sharded: boxes that differ in it alone hide one another."
               : "");
  }

 private:
  static constexpr double kWidest = 900, kHighest = 450, kShortest = 60;
  using Dimension = std::optional<size_t>;

  double Extent(Dimension d) const {
    return d ? std::max(1.0, static_cast<double>(shape_[*d])) : 1.0;
  }
  std::array<double, 2> Along(const Box& box, Dimension d, double pixels) const {
    if (!d) return {0, pixels};
    const double unit = pixels / Extent(d);
    return {static_cast<double>(box.offset[*d]) * unit, static_cast<double>(box.shape[*d]) * unit};
  }

  const Shape& shape_;
  Dimension across_, down_;
  double width_, height_;
  bool hides_ = false;
};

class PlanPageWriter {
 public:
  PlanPageWriter(const Plan& plan, const std::vector<TensorKind>& kinds, const Balance& balance)
      : plan_(plan),
        mesh_(plan.graph.mesh),
        kinds_(kinds),
        balance_(balance),
        ranks_(std::min(mesh_.world_size(), kMostRanks)),
        page_(plan.graph.name) {}

  std::string Write(const Facts& facts) {
    std::vector<std::vector<HtmlLink>> rows;
    for (const std::vector<std::string>& row : FactRows(facts)) {
      rows.push_back({{row[0], ""}, {row[1], ""}});
    }
    page_.Table("plan", {}, rows, {});
    if (std::ssize(kinds_) * ranks_ <= kMostLoads) {
      for (int64_t rank = 0; rank < ranks_; ++rank) loads_.push_back(LoadOf(plan_, kinds_, rank));
    }
    AddMesh();
    AddLoads();
    AddTensors();
    return page_.Finish();
  }

 private:
  std::string LoadText(int64_t rank) const {
    if (loads_.empty()) return {};
    const RankLoad& load = loads_[static_cast<size_t>(rank)];
    return fmt::format("; holds {} bytes, {} of them in its file", Grouped(load.held),
                       Grouped(load.stored));
  }

  void NoteRanks() {
    if (ranks_ == mesh_.world_size()) return;
    page_.Paragraph(fmt::format("The first {} of {} are drawn.", Grouped(ranks_),
                                Count(mesh_.world_size(), "rank")));
  }

  void AddMesh() {
    const DeviceMap devices(mesh_);
    const int64_t slices = mesh_.devices.slice_count();
    page_.Heading("Mesh");
    page_.Paragraph(fmt::format(
        "{}{}, row-major, the last axis fastest: each place has the colour of its "
        "rank, here and below, and the id of its device.",
        Count(mesh_.world_size(), "rank"), mesh_.axes.empty() ? "" : " of " + InText(mesh_)));
    if (slices > 1) {
      page_.Paragraph(fmt::format("{} of {}: the bar below a place has the colour of its slice.",
                                  Count(slices, "slice"),
                                  Count(mesh_.world_size() / slices, "device")));
    }
    NoteRanks();
    constexpr int64_t kColumns = 32;
    constexpr double kWidth = 30, kHeight = 24, kGap = 6, kLabel = 60;
    // Neighbours on the last axis stand together.
    const int64_t last = mesh_.shape.empty() ? 1 : mesh_.shape.back();
    const int64_t run = last > kColumns ? kColumns : last;
    const int64_t columns = std::min(ranks_, kColumns / run * run);
    const int64_t lines = (ranks_ + columns - 1) / columns;
    const double width =
        kLabel + static_cast<double>(columns) * kWidth + static_cast<double>(columns / run) * kGap;
    Svg picture(width, static_cast<double>(lines) * (kHeight + kGap), "mesh", "mesh");
    for (int64_t rank = 0; rank < ranks_; ++rank) {
      const int64_t column = rank % columns, line = rank / columns;
      const double x =
          kLabel + static_cast<double>(column) * kWidth + static_cast<double>(column / run) * kGap;
      const double y = static_cast<double>(line) * (kHeight + kGap);
      const Device device = devices.At(rank);
      if (column == 0) picture.Text(0, y + 15, fmt::format("rank {}", rank));
      picture.Rect(
          {x, y, kWidth, kHeight}, ColourOf(rank, mesh_.world_size()),
          fmt::format("rank {} at {}: device {} in slice {}{}", rank,
                      InShape(mesh_.CoordinateOf(rank)), device.id, device.slice, LoadText(rank)));
      if (slices > 1) picture.Rect({x, y + kHeight - 5, kWidth, 5}, ColourOfSlice(device.slice));
      if (device.id < 100'000) {
        picture.Text(x + kWidth / 2, y + 14, fmt::to_string(device.id), "in");
      }
    }
    page_.Picture(picture);
  }

  void AddLoads() {
    page_.Heading("Bytes per rank");
    if (!loads_.empty()) {
      page_.Paragraph("What each rank holds; the darker part is in its file.");
      NoteRanks();
      constexpr double kHeight = 120, kWidth = 1000, kLabel = 70;
      const double bar = std::min(30.0, kWidth / static_cast<double>(ranks_));
      const auto most = static_cast<double>(std::max<int64_t>(1, plan_.max_rank_bytes));
      Svg picture(kLabel + bar * static_cast<double>(ranks_), kHeight + 4, "bytes per rank",
                  "loads");
      picture.Text(0, 10, InBytes(plan_.max_rank_bytes));
      picture.Text(0, kHeight, "0 B");
      for (int64_t rank = 0; rank < ranks_; ++rank) {
        const RankLoad& load = loads_[static_cast<size_t>(rank)];
        const double x = kLabel + bar * static_cast<double>(rank);
        const double held = kHeight * static_cast<double>(load.held) / most;
        const double stored = kHeight * static_cast<double>(load.stored) / most;
        const std::string title = fmt::format("rank {}{}", rank, LoadText(rank));
        picture.Rect({x, kHeight - held, bar, held}, "#9fb4cc", title);
        if (load.stored > 0) picture.Rect({x, kHeight - stored, bar, stored}, "#3d6fa8", title);
      }
      page_.Picture(picture);
    } else {
      page_.Paragraph("Not drawn: there are too many different tensors.");
    }
    if (balance_.ranks.empty()) return;
    std::vector<std::vector<HtmlLink>> rows;
    for (const auto& [bytes, ranks] : balance_.ranks) {
      if (std::ssize(rows) == kMostAmounts) break;
      rows.push_back({{Grouped(bytes), ""}, {InBytes(bytes), ""}, {Grouped(ranks), ""}});
    }
    page_.Table("amounts", {"bytes held", "", "ranks"}, rows, {true, true, true});
    if (balance_.ranks.size() > rows.size()) {
      page_.Paragraph(fmt::format("The least {} of {} different amounts.", rows.size(),
                                  Grouped(std::ssize(balance_.ranks))));
    }
  }

  void AddTensors() {
    std::vector<const Tensor*> tensors;
    for (const Tensor& tensor : plan_.graph.tensors) tensors.push_back(&tensor);
    const Outline outline = OutlineOf(tensors);
    std::vector<TensorGroup> groups;
    AddGroups(outline, "", &groups);
    page_.Heading("Tensors");
    const size_t shown = std::min<size_t>(kMostGroups, groups.size());
    page_.Paragraph(fmt::format(
        "{} as {}: tensors that differ only in the numbers of their paths are one group.",
        Count(outline.count, "tensor"), Count(std::ssize(groups), "group")));
    if (shown < groups.size()) {
      page_.Paragraph(fmt::format("The first {} groups are shown.", Grouped(kMostGroups)));
    }
    std::vector<std::vector<HtmlLink>> rows;
    for (size_t g = 0; g < shown; ++g) {
      const Outline& group = *groups[g].outline;
      const Tensor& tensor = *group.tensors.front();
      const Sharding sharding = plan_.ShardingOf(tensor);
      rows.push_back({{groups[g].name, fmt::format("t{}", g)},
                      {Grouped(group.count), ""},
                      {InBytes(group.bytes), ""},
                      {std::string(InfoOf(tensor.dtype).name), ""},
                      {InShape(tensor.shape), ""},
                      {InText(tensor.partition, mesh_), ""},
                      {Grouped(sharding.CountBoxes()), ""},
                      {Grouped(sharding.holders()), ""}});
    }
    page_.Table("tensors",
                {"tensor", "tensors", "size", "dtype", "shape", "partition", "boxes", "holders"},
                rows, {false, true, true, false, false, false, true, true});
    page_.Heading("Boxes");
    page_.Paragraph(
        "The first tensor of each group, sharded: a box has the colour of the lowest rank that "
        "holds it.");
    int64_t left = kMostBoxesOfAll;
    size_t drawn = 0;
    for (; drawn < shown && left > 0; ++drawn) {
      AddBoxes(groups[drawn], drawn, std::min(left, kMostBoxes), &left);
    }
    if (drawn < groups.size()) {
      page_.Paragraph(
          fmt::format("The boxes of the other {} are left out, to keep this page small.",
                      Count(std::ssize(groups) - static_cast<int64_t>(drawn), "group")));
    }
  }

  // Adds the boxes of one tensor, at most `most`.
  void AddBoxes(const TensorGroup& group, size_t number, int64_t most, int64_t* left) {
    const Tensor& tensor = *group.outline->tensors.front();
    const Sharding sharding = plan_.ShardingOf(tensor);
    const Plane plane(tensor, mesh_);
    Svg picture(plane.width(), plane.height(), tensor.path, fmt::format("t{}", number));
    const std::string replicas =
        sharding.holders() > 1 ? " and " + Count(sharding.holders() - 1, "replica") : "";
    // First holders are at the lowest index of all axes that shard nothing.
    int64_t step = mesh_.world_size();
    for (const DimensionCut& cut : tensor.partition.cuts) {
      for (const int axis : cut.axes) step = std::min(step, mesh_.StrideOf(axis));
    }
    int64_t drawn = 0, tried = 0;
    for (int64_t rank = sharding.LowestRank();
         rank < mesh_.world_size() && drawn < most && tried < kMostTried; rank += step, ++tried) {
      if (!sharding.IsFirstHolder(rank)) continue;
      for (const Box& box : sharding.BoxesOn(rank)) {
        if (drawn == most) break;
        ++drawn;
        picture.Rect(plane.At(box), ColourOf(rank, mesh_.world_size()),
                     fmt::format("rank {}{}: {}", rank, replicas, InSlices(box)));
      }
    }
    *left -= drawn;
    page_.BeginDetails(fmt::format("{} {} {}", tensor.path, InShape(tensor.shape),
                                   InText(tensor.partition, mesh_)),
                       number == 0);
    const int64_t boxes = sharding.CountBoxes();
    page_.Paragraph(
        fmt::format("{}, each held by {}. {}{}", Count(boxes, "box", "boxes"),
                    Count(sharding.holders(), "rank"), plane.Describe(),
                    drawn < boxes ? fmt::format(" {} of them are drawn.", Grouped(drawn)) : ""));
    page_.Picture(picture);
    page_.EndDetails();
  }

  const Plan& plan_;
  const Mesh& mesh_;
  const std::vector<TensorKind>& kinds_;
  const Balance& balance_;
  const int64_t ranks_;          // ranks that are drawn
  std::vector<RankLoad> loads_;  // loads of these, or none
  HtmlPage page_;
};

}  // namespace

std::string PlanPage(const Plan& plan, const Facts& facts, const std::vector<TensorKind>& kinds,
                     const Balance& balance) {
  return PlanPageWriter(plan, kinds, balance).Write(facts);
}

}  // namespace shardinit
