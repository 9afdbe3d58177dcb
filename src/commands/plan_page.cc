#include "commands/plan_page.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <numeric>
#include <optional>

#include "commands/plan_ranks.h"
#include "commands/tensor_facts.h"
#include "commands/tensor_groups.h"
#include "report/text.h"
#include "report/tiles.h"

namespace shardinit {
namespace {

// These limits keep a page below about 1.5 MB, and its computation below about a second.
constexpr size_t kMostGroups = 400;        // groups of tensors
constexpr int64_t kMostBoxes = 1024;       // boxes of one tensor
constexpr int64_t kMostBoxesOfAll = 5000;  // boxes of all tensors
constexpr int64_t kMostLabels = 64;        // boxes of one tensor that have space for a number
constexpr int64_t kMostTried = 1 << 16;    // ranks tried for the boxes of one tensor

// Maps the boxes of a tensor to a plane of one or two of its dimensions.
class Plane {
 public:
  explicit Plane(const Tensor& tensor, const Mesh& mesh) : shape_(tensor.shape()) {
    std::vector<size_t> dimensions(shape_.size());
    std::iota(dimensions.begin(), dimensions.end(), 0);
    const auto parts = [&](size_t d) { return PartsOf(tensor.partition().dimensions[d], mesh); };
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
    // Bring the picture's ratio closer to 2:1, so that boxes of long, narrow tensors are visible.
    width_ = std::max(kShortest, kWidest * std::sqrt(x / std::max(x, y)));
    height_ = down_ ? std::max(kShortest, kHighest * std::sqrt(y / std::max(x, y))) : kShortest;
  }

  double width() const { return width_; }
  double height() const { return height_; }

  TileArea At(const Box& box) const {
    const auto [x, width] = Along(box, across_);
    const auto [y, height] = Along(box, down_);
    return {x, y, width, height};
  }

  std::string Describe() const {
    if (shape_.size() < 2) return {};
    return fmt::format(
        "Dimension {} ({}) goes down, dimension {} ({}) to the right, not to scale.{}", *down_,
        shape_[*down_], *across_, shape_[*across_],
        hides_ ? " Boxes that differ only in a further sharded dimension hide one another." : "");
  }

 private:
  static constexpr double kWidest = 900, kHighest = 450, kShortest = 60;
  using Dimension = std::optional<size_t>;

  double Extent(Dimension d) const {
    return d ? std::max(1.0, static_cast<double>(shape_[*d])) : 1.0;
  }
  std::array<double, 2> Along(const Box& box, Dimension d) const {
    if (!d) return {0, 1};
    return {static_cast<double>(box.offset[*d]) / Extent(d),
            static_cast<double>(box.shape[*d]) / Extent(d)};
  }

  const Shape& shape_;
  Dimension across_, down_;
  double width_, height_;
  bool hides_ = false;
};

class PlanPageWriter {
 public:
  explicit PlanPageWriter(const Plan& plan)
      : plan_(plan), mesh_(plan.graph.mesh), outline_(OutlineOf(Pointers(plan.graph.tensors))) {
    all_ = GroupsOf(outline_);
    groups_.assign(all_.begin(),
                   all_.begin() + static_cast<std::ptrdiff_t>(std::min(all_.size(), kMostGroups)));
    AddBoxes();  // determines where the other parts can link to
  }

  // Adds a treemap of the bytes of groups, coloured by sharding.
  void AddTreemap(HtmlPage* page) const {
    page->Heading("Bytes by group");
    page->Paragraph(fmt::format(
        "{}: tensors whose paths differ only in numbers are one. A colour is a way of sharding.",
        Count(std::ssize(all_), "group") + " of tensors"));
    std::map<std::string, std::string> colours;
    std::vector<std::pair<std::string, std::string>> legend;
    for (const TensorGroup& group : groups_) {
      const std::string partition = PartitionOf(group);
      const auto [it, is_new] = colours.try_emplace(partition, ColourOfKind(colours.size()));
      if (is_new && legend.size() < kMostNamed) legend.emplace_back(it->second, partition);
    }
    page->Legend(0, legend);
    AddTreemaps(
        groups_,
        {"treemap", [&](size_t g) { return HtmlColours{colours.at(PartitionOf(groups_[g]))}; },
         [&](size_t g) { return IdOf(g); }},
        page);
  }

  void AddTensors(HtmlPage* page) const {
    page->Heading("Tensors");
    page->Filter();
    if (groups_.size() < all_.size()) {
      page->Paragraph(fmt::format("The first {} groups of {} are shown.", kMostGroups,
                                  Grouped(std::ssize(all_))));
    }
    std::vector<std::vector<HtmlCell>> rows;
    for (size_t g = 0; g < groups_.size(); ++g) {
      const Outline& group = *groups_[g].outline;
      const Tensor& tensor = *group.tensors.front();
      const Sharding sharding = plan_.ShardingOf(tensor);
      rows.push_back({{groups_[g].name, IdOf(g)},
                      {Grouped(group.count)},
                      {InBytes(group.bytes)},
                      {std::string(InfoOf(tensor.dtype()).name)},
                      {InShape(tensor.shape())},
                      {PartitionOf(groups_[g])},
                      {Grouped(sharding.CountBoxes())},
                      {Grouped(sharding.holders())}});
    }
    page->Table("tensors",
                {{"tensor", HtmlColumn::kPath},
                 {"tensors", HtmlColumn::kNumber},
                 {"size", HtmlColumn::kNumber},
                 {"dtype"},
                 {"shape"},
                 {"partition"},
                 {"boxes", HtmlColumn::kNumber},
                 {"holders", HtmlColumn::kNumber}},
                rows, true);
    page->Heading("Boxes");
    page->Paragraph(
        "The first tensor of each group, sharded: a box has the colour of the lowest rank that "
        "holds it.");
    for (const std::string& boxes : boxes_) page->Add(boxes);
    if (boxes_.size() < all_.size()) {
      page->Paragraph(
          fmt::format("The boxes of the other {} are left out, to keep this page small.",
                      Count(std::ssize(all_) - std::ssize(boxes_), "group")));
    }
  }

 private:
  static constexpr size_t kMostNamed = 24;  // partitions in the legend

  static std::vector<const Tensor*> Pointers(const std::vector<Tensor>& tensors) {
    std::vector<const Tensor*> pointers;
    for (const Tensor& tensor : tensors) pointers.push_back(&tensor);
    return pointers;
  }

  std::string PartitionOf(const TensorGroup& group) const {
    return InText(group.outline->tensors.front()->partition(), mesh_);
  }

  // Returns the id of the picture of a group's boxes; empty: it is omitted.
  std::string IdOf(size_t group) const {
    return group < boxes_.size() ? fmt::format("t{}", group) : "";
  }

  void AddBoxes() {
    int64_t left = kMostBoxesOfAll;
    for (size_t g = 0; g < groups_.size() && left > 0; ++g) {
      const Tensor& tensor = *groups_[g].outline->tensors.front();
      const std::vector<Tile> tiles = BoxesOf(tensor, std::min(left, kMostBoxes));
      left -= std::ssize(tiles);
      const Sharding sharding = plan_.ShardingOf(tensor);
      const Plane plane(tensor, mesh_);
      const int64_t boxes = sharding.CountBoxes();
      HtmlPage part;
      part.BeginDetails(fmt::format("{} {} {}", tensor.path(), InShape(tensor.shape()),
                                    InText(tensor.partition(), mesh_)),
                        g == 0, "one");
      part.Paragraph(fmt::format("{}, each held by {}. {}{}", Count(boxes, "box", "boxes"),
                                 Count(sharding.holders(), "rank"), plane.Describe(),
                                 std::ssize(tiles) < boxes ? fmt::format(" {} of them are drawn.",
                                                                         Grouped(std::ssize(tiles)))
                                                           : ""));
      part.Add(
          TilesInHtml(fmt::format("t{}", g), tensor.path(), plane.width(), plane.height(), tiles));
      part.EndDetails();
      boxes_.push_back(part.body());
    }
  }

  // Returns at most `most` boxes of a tensor.
  std::vector<Tile> BoxesOf(const Tensor& tensor, int64_t most) const {
    const Sharding sharding = plan_.ShardingOf(tensor);
    const Plane plane(tensor, mesh_);
    const bool has_labels = sharding.CountBoxes() <= kMostLabels;
    const std::string replicas =
        sharding.holders() > 1 ? " and " + Count(sharding.holders() - 1, "replica") : "";
    // A first holder has the lowest index on all axes that do not shard the tensor.
    int64_t step = mesh_.world_size();
    for (const DimensionPartition& by : tensor.partition().dimensions) {
      for (const int axis : by.axes) step = std::min(step, mesh_.StrideOf(axis));
    }
    std::vector<Tile> tiles;
    int64_t tried = 0;
    for (int64_t rank = sharding.LowestRank();
         rank < mesh_.world_size() && std::ssize(tiles) < most && tried < kMostTried;
         rank += step, ++tried) {
      if (!sharding.IsFirstHolder(rank)) continue;
      for (const Box& box : sharding.BoxesOn(rank)) {
        if (std::ssize(tiles) == most) break;
        tiles.push_back({.area = plane.At(box),
                         .colours = {ColourOf(rank, mesh_.world_size())},
                         .title = fmt::format("rank {}{}: {}", rank, replicas, InSlices(box)),
                         .label = has_labels ? fmt::to_string(rank) : ""});
      }
    }
    return tiles;
  }

  const Plan& plan_;
  const Mesh& mesh_;
  const Outline outline_;
  std::vector<TensorGroup> all_, groups_;  // `groups_` are shown
  std::vector<std::string> boxes_;         // of the first groups
};

}  // namespace

std::string PlanPage(const Plan& plan, const Facts& facts, const std::vector<TensorKind>& kinds,
                     const Balance& balance) {
  HtmlPage page;
  page.Facts("plan", FactRows(facts));
  AddRankPictures(plan, kinds, balance, &page);
  const PlanPageWriter tensors(plan);
  tensors.AddTreemap(&page);
  tensors.AddTensors(&page);
  return page.Finish("plan", plan.graph.name);
}

}  // namespace shardinit
