#include "commands/tensor_groups.h"

#include <fmt/format.h>

#include <numeric>

#include "report/text.h"
#include "report/tiles.h"

namespace shardinit {
namespace {

constexpr double kTreemapHeight = 340;  // pixels
constexpr double kEnlargedHeight = 170;
constexpr double kTreemapRatio = 2.5;  // between the ratios of a wide and a narrow page
constexpr double kLeastPart = 0.02;    // least share of a group in a treemap's bytes
constexpr int kMostTreemaps = 4;

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

// Returns the last two parts of a name, which are the most informative in little space.
std::string EndOf(const std::string& name) {
  const size_t dot = name.rfind('.');
  const size_t before = dot == name.npos || dot == 0 ? name.npos : name.rfind('.', dot - 1);
  return before == name.npos ? name : name.substr(before + 1);
}

std::string PartOf(double bytes, double total) {
  const double percent = 100 * bytes / total;
  return percent >= 0.1 ? fmt::format("{:.1f} %", percent) : "< 0.1 %";
}

// Writes treemaps of groups. Each shows the groups that were too small in the previous one.
class Treemaps {
 public:
  Treemaps(const std::vector<TensorGroup>& groups, const TreemapStyle& style, HtmlPage* page)
      : groups_(groups), style_(style), page_(*page) {}

  void Write() {
    std::vector<size_t> numbers(groups_.size());
    std::iota(numbers.begin(), numbers.end(), 0);
    all_ = BytesOf(numbers);
    if (all_ <= 0) return;
    for (int level = 0; level < kMostTreemaps && !numbers.empty(); ++level) {
      if (level > 0) {
        page_.Paragraph(fmt::format("The {}, enlarged: together they are {} of the bytes.",
                                    Count(std::ssize(numbers), "smaller group"),
                                    PartOf(BytesOf(numbers), all_)));
      }
      std::vector<size_t> small;
      if (level + 1 < kMostTreemaps) TakeSmall(&numbers, &small);
      Add(level, numbers, small);
      numbers = std::move(small);
    }
  }

 private:
  double BytesOf(size_t group) const { return static_cast<double>(groups_[group].outline->bytes); }
  double BytesOf(const std::vector<size_t>& groups) const {
    double bytes = 0;
    for (const size_t g : groups) bytes += BytesOf(g);
    return bytes;
  }

  // Moves groups that are too small to see to `*small`. One or two are not worth a treemap.
  void TakeSmall(std::vector<size_t>* groups, std::vector<size_t>* small) const {
    const double least = kLeastPart * BytesOf(*groups);
    std::vector<size_t> large;
    for (const size_t g : *groups) (BytesOf(g) < least ? *small : large).push_back(g);
    if (small->size() > 2) {
      *groups = std::move(large);
    } else {
      small->clear();
    }
  }

  void Add(int level, const std::vector<size_t>& groups, const std::vector<size_t>& small) {
    std::vector<double> weights;
    for (const size_t g : groups) weights.push_back(BytesOf(g));
    if (!small.empty()) weights.push_back(BytesOf(small));
    const std::vector<TileArea> areas =
        TreemapOf(weights, level == 0 ? kTreemapRatio : 2 * kTreemapRatio);
    std::vector<Tile> tiles;
    for (size_t i = 0; i < weights.size(); ++i) {
      const std::string size = fmt::format("{}, {}", InBytes(static_cast<int64_t>(weights[i])),
                                           PartOf(weights[i], all_));
      if (i == groups.size()) {
        const std::string name = Count(std::ssize(small), "smaller group");
        tiles.push_back({areas[i], {"0.8 0 0"}, fmt::format("{}: {}", name, size), name, size});
        continue;
      }
      const TensorGroup& group = groups_[groups[i]];
      const std::string count = Count(group.outline->count, "tensor");
      tiles.push_back({areas[i], style_.colours_of(groups[i]),
                       fmt::format("{}: {}, {}", group.name, count, size), EndOf(group.name), size,
                       style_.link_of ? style_.link_of(groups[i]) : "", true});
    }
    page_.Add(TilesInHtml(fmt::format("{}{}", style_.id, level), "treemap of bytes", 0,
                          level == 0 ? kTreemapHeight : kEnlargedHeight, tiles));
  }

  const std::vector<TensorGroup>& groups_;
  const TreemapStyle& style_;
  HtmlPage& page_;
  double all_ = 0;
};

}  // namespace

std::vector<TensorGroup> GroupsOf(const Outline& outline) {
  std::vector<TensorGroup> groups;
  AddGroups(outline, "", &groups);
  return groups;
}

void AddTreemaps(const std::vector<TensorGroup>& groups, const TreemapStyle& style,
                 HtmlPage* page) {
  Treemaps(groups, style, page).Write();
}

}  // namespace shardinit
