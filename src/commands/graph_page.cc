#include "commands/graph_page.h"

#include <fmt/format.h>

#include <map>
#include <utility>

#include "commands/tensor_groups.h"
#include "graph/outline.h"
#include "report/text.h"

namespace shardinit {
namespace {

// These limits keep a page below about 1 MB.
constexpr size_t kMostTiles = 400;
constexpr int64_t kMostLines = 2000;     // lines of the tree
constexpr size_t kMostNamed = 24;        // kinds in a legend
constexpr size_t kMostOpenGroups = 100;  // groups of a tree that is initially open

// Groups tensors by a common property, with a colour for each group.
class ColouredKinds {
 public:
  // Adds the tensors to the counts of their kind.
  void Count(const std::string& kind, const Outline& outline) {
    const auto [it, is_new] = kinds_.try_emplace(kind, kinds_.size());
    if (is_new) order_.push_back({kind, 0, 0});
    order_[it->second].tensors += outline.count;
    order_[it->second].bytes += outline.bytes;
  }
  std::string ColourOf(const std::string& kind) const { return ColourOfKind(kinds_.at(kind)); }

  std::vector<std::pair<std::string, std::string>> Legend() const {
    std::vector<std::pair<std::string, std::string>> legend;
    for (const Kind& kind : order_) {
      if (legend.size() == kMostNamed) {
        legend.emplace_back("", fmt::format("and {} more", order_.size() - kMostNamed));
        break;
      }
      legend.emplace_back(
          ColourOfKind(legend.size()),
          fmt::format("{}: {}, {}", kind.name, shardinit::Count(kind.tensors, "tensor"),
                      InBytes(kind.bytes)));
    }
    return legend;
  }

 private:
  struct Kind {
    std::string name;
    int64_t tensors, bytes;
  };
  std::map<std::string, size_t> kinds_;
  std::vector<Kind> order_;
};

// Writes the treemap and the tree of one list of tensors.
class GraphPart {
 public:
  GraphPart(const Shown& shown, const Tensors& tensors, int64_t depth)
      : shown_(shown), outline_(OutlineOf(tensors)), depth_(depth), groups_(GroupsOf(outline_)) {
    // With a layout, only stored tensors have a partition of their own.
    has_partition_ = !shown.plan.graph.drawn || tensors.front()->view() != nullptr;
    for (const TensorGroup& group : groups_) {
      const TensorText text = TextOf(group.outline->tensors, shown);
      values_.Count(KindOfValues(*group.outline, text), *group.outline);
      partitions_.Count(PartitionOf(text), *group.outline);
    }
  }

  void Write(std::string_view id, HtmlPage* page) {
    page->Legend(0, values_.Legend());
    page->Legend(1, partitions_.Legend());
    std::vector<TensorGroup> drawn = groups_;
    if (drawn.size() > kMostTiles) {
      page->Paragraph(fmt::format("The first {} groups of {} are in the treemap.", kMostTiles,
                                  Grouped(std::ssize(groups_))));
      drawn.resize(kMostTiles);
    }
    AddTreemaps(drawn, {std::string(id), [&](size_t g) { return ColoursOf(*groups_[g].outline); }},
                page);
    page->BeginPart("tree");
    AddMembers(outline_, 0, page);
    page->EndPart();
    if (left_ < 0) page->Paragraph("The rest of the tree is left out, to keep this page small.");
  }

 private:
  // Returns the distribution of the values, or the operation of a view.
  static std::string KindOfValues(const Outline& outline, const TensorText& text) {
    const Tensor& tensor = *outline.tensors.front();
    if (tensor.view() == nullptr) return text.values;
    const ViewOperation* operation = tensor.view()->root.operation;
    return operation == nullptr ? "as drawn" : std::string(operation->name);
  }

  std::string PartitionOf(const TensorText& text) const {
    return has_partition_ ? text.partition : "as it is stored";
  }

  HtmlColours ColoursOf(const Outline& outline) const {
    const TensorText text = TextOf(outline.tensors, shown_);
    return {values_.ColourOf(KindOfValues(outline, text)), partitions_.ColourOf(PartitionOf(text))};
  }

  HtmlPage::Line LineOf(const Outline& outline) const {
    const double total = static_cast<double>(std::max<int64_t>(1, outline_.bytes));
    HtmlPage::Line line = {.name = outline.name,
                           .count = Grouped(outline.count),
                           .size = InBytes(outline.bytes),
                           .from = static_cast<double>(before_) / total,
                           .part = static_cast<double>(outline.bytes) / total};
    if (!outline.members.empty()) {
      line.colours = {"0.7 0 0"};
      return line;
    }
    const TensorText text = TextOf(outline.tensors, shown_);
    line.colours = ColoursOf(outline);
    line.what = fmt::format("{} {}{}{}, {}", text.dtype, text.shape, has_partition_ ? " " : "",
                            has_partition_ ? text.partition : "", text.values);
    return line;
  }

  void AddMembers(const Outline& outline, int64_t level, HtmlPage* page) {
    for (const Outline& member : outline.members) {
      if (--left_ < 0) return;
      if (member.members.empty()) {
        page->Leaf(LineOf(member));
        before_ += member.bytes;
      } else {
        page->BeginBranch(LineOf(member),
                          depth_ > 0 ? level + 1 < depth_ : groups_.size() <= kMostOpenGroups);
        AddMembers(member, level + 1, page);
        page->EndBranch();
      }
    }
  }

  const Shown& shown_;
  const Outline outline_;
  const int64_t depth_;
  const std::vector<TensorGroup> groups_;
  bool has_partition_;
  ColouredKinds values_, partitions_;
  int64_t before_ = 0;         // bytes of the tensors that already have a line
  int64_t left_ = kMostLines;  // lines that may follow
};

}  // namespace

std::string GraphPage(const Shown& shown, int64_t depth) {
  const InitGraph& graph = shown.plan.graph;
  HtmlPage page;
  page.Paragraph(HeadingOf(shown));
  page.Paragraph(
      "Tensors whose paths differ only in numbers are one. Areas and bars show bytes, in the order "
      "of the model: each bar begins where the previous one ends.");
  page.ChooseColours("initializer", "sharding");
  page.Filter();
  if (graph.drawn) page.Heading("Drawn");
  GraphPart(shown, shown.drawn, depth).Write("drawn", &page);
  if (graph.drawn) {
    page.Heading(fmt::format("Stored by layout {}", graph.layout));
    GraphPart(shown, shown.stored, depth).Write("stored", &page);
  }
  return page.Finish("graph", graph.name);
}

}  // namespace shardinit
