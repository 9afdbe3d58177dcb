// Shards tensors by a map of path patterns. The shardings are written as in torchprime's
// configs/model/sharding (dimensions in order, each null, a mesh axis or a list of axes), in Python
// syntax (`P('fsdp', None)`), or as a placement for each mesh axis (`{fsdp: Shard(0)}`).
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>

#include "base/suggest.h"
#include "base/text.h"
#include "graph/languages/languages.h"
#include "graph/languages/placements.h"
#include "graph/languages/rules.h"
#include "graph/languages/tensor_patterns.h"
#include "report/text.h"

namespace shardinit {
namespace {

// One pattern and its shardings, as written. Mesh axes are looked up when the pattern matches a
// tensor, because patterns of activations may name other axes.
struct MapEntry {
  Located<std::string> pattern;
  Span span;  // of its shardings
  std::string text;
  std::vector<AxisList> dimensions;  // empty if `is_placed`
  bool is_placed = false;
  std::vector<std::pair<Located<std::string>, PythonValue>> by_axis;  // no name: in mesh order

  // Bound when the first tensor matches.
  bool is_bound = false, is_wrong = false;
  std::vector<DimensionPartition> partitions;
  std::vector<Placement> placements;  // one for each mesh axis
};

class MapReader {
 public:
  explicit MapReader(LanguageContext& context) : context_(context) {}

  std::optional<MapEntry> Read(const Node::Entry& item) {
    const Node& node = *item.value;
    MapEntry entry;
    entry.pattern = SpecReader::Text(*item.key);
    entry.span = node.span;
    const size_t before = context_.building.Reported();
    if (node.IsMap()) {
      ReadPlacements(node, &entry);
    } else if (node.IsSequence()) {
      for (const Node::Entry& of : node.entries) ReadItem(*of.value, &entry);
    } else if (node.IsScalar() && node.text.find_first_of("([") != node.text.npos) {
      if (const auto value = ParsePython(node, context_.building.diagnostics)) {
        ReadPython(*value, &entry);
      }
    } else if (!node.IsNull()) {
      entry.dimensions.push_back(context_.reader.ReadMeshAxisList(node));
    }
    if (entry.is_placed && !entry.dimensions.empty()) {
      context_.Error(node.span,
                     "a list has mesh axes for dimensions, or placements for mesh axes, not both");
    }
    if (context_.building.Reported() != before) return {};
    entry.text = TextOf(entry);
    return entry;
  }

 private:
  // Joins texts that YAML splits at the comma, as in `{a: _StridedShard(0, split_factor=2), b: …}`.
  void ReadPlacements(const Node& map, MapEntry* entry) {
    entry->is_placed = true;
    for (size_t i = 0; i < map.entries.size(); ++i) {
      const Node::Entry& axis = map.entries[i];
      Node joined = *axis.value;
      std::string text(joined.text);
      while (std::ranges::count(text, '(') > std::ranges::count(text, ')') &&
             i + 1 < map.entries.size() && map.entries[i + 1].value->IsNull()) {
        text += fmt::format(", {}", map.entries[++i].key->text);
      }
      if (text.size() != joined.text.size()) {
        joined.text = text;
        joined.verbatim = false;
      }
      if (!joined.IsScalar()) {
        context_.Error(joined.span, fmt::format("a placement such as `Shard(0)` is text, not {}",
                                                Describe(joined)));
        continue;
      }
      auto value = ParsePython(joined, context_.building.diagnostics);
      const Located<std::string> name = context_.reader.ReadAxisName(*axis.key, "mesh axis");
      if (!value || name.value.empty()) continue;
      if (!IsPlacement(*value)) {
        context_.Error(value->span, fmt::format("{} is not a placement", Quote(value->text)),
                       "write `{fsdp: Shard(0), tensor: Replicate()}`, or a list of mesh axes");
        continue;
      }
      entry->by_axis.push_back({name, std::move(*value)});
    }
  }

  void ReadItem(const Node& node, MapEntry* entry) {
    if (node.IsScalar() && node.text.find('(') != node.text.npos) {
      if (auto value = ParsePython(node, context_.building.diagnostics)) AddItem(*value, entry);
    } else {
      entry->dimensions.push_back(context_.reader.ReadMeshAxisList(node));
    }
  }

  void ReadPython(const PythonValue& value, MapEntry* entry) {
    const std::string_view name = std::string_view(value.name).substr(value.name.rfind('.') + 1);
    const bool is_spec =
        value.kind == PythonValue::kCall && (name == "P" || name == "PartitionSpec");
    if (!is_spec && value.kind != PythonValue::kSequence) return AddItem(value, entry);
    for (const PythonValue& item : value.items) AddItem(item, entry);
  }

  void AddItem(const PythonValue& item, MapEntry* entry) {
    if (IsPlacement(item)) {
      entry->is_placed = true;
      entry->by_axis.push_back({{"", item.span}, item});
      return;
    }
    AxisList axes = {{}, item.span};
    const auto add = [&](const PythonValue& name) {
      if (name.kind == PythonValue::kName && name.keyword.empty()) {
        axes.value.push_back({name.text, name.span});
      } else {
        const std::string written =
            name.keyword.empty() ? name.text : fmt::format("{}={}", name.keyword, name.text);
        context_.Error(name.span, fmt::format("{} is not a mesh axis", Quote(written)),
                       "write it as in `P('fsdp', None, ('tensor', 'data'))`");
      }
    };
    if (item.kind == PythonValue::kSequence) {
      for (const PythonValue& name : item.items) add(name);
    } else if (item.kind != PythonValue::kNone) {
      add(item);
    }
    entry->dimensions.push_back(std::move(axes));
  }

  static std::string TextOf(const MapEntry& entry) {
    std::vector<std::string> parts;
    for (const AxisList& axes : entry.dimensions) parts.push_back(InText(axes));
    for (const auto& [axis, placement] : entry.by_axis) {
      parts.push_back(axis.value.empty() ? placement.text
                                         : fmt::format("{}: {}", axis.value, placement.text));
    }
    const bool is_named = !entry.by_axis.empty() && !entry.by_axis[0].first.value.empty();
    return is_named ? fmt::format("{{{}}}", fmt::join(parts, ", "))
                    : fmt::format("[{}]", fmt::join(parts, ", "));
  }

  LanguageContext& context_;
};

std::vector<Located<std::string>> PatternsOf(const std::vector<MapEntry>& entries) {
  std::vector<Located<std::string>> patterns;
  for (const MapEntry& entry : entries) patterns.push_back(entry.pattern);
  return patterns;
}

class MapLanguage : public ShardingLanguage {
 public:
  MapLanguage(LanguageContext& context, std::vector<MapEntry> entries)
      : context_(context), entries_(std::move(entries)), patterns_(PatternsOf(entries_)) {}

  bool Shard(const TensorToShard& tensor, TensorSharding* sharding) override {
    if (tensor.path.empty()) return true;
    const std::vector<size_t>& matches = patterns_.Match(tensor.path);
    std::optional<std::vector<DimensionPartition>> dimensions;
    for (const size_t index : matches) {
      auto other = DimensionsBy(entries_[index], tensor);
      if (!other) return false;
      if (!dimensions) {
        dimensions = std::move(other);
      } else if (*other != *dimensions && !AreAlike(*other, *dimensions, tensor)) {
        ReportConflict(matches.front(), index, tensor);
        return false;
      }
      Note(entries_[index], tensor, index != matches.front());
    }
    if (!dimensions) return true;
    sharding->partition.dimensions = std::move(*dimensions);
    sharding->says_sharding = true;
    return true;
  }

  void CheckUse() override {
    if (context_.lacks_tensors || patterns_.AllUsed()) return;
    const auto declared = DeclaredPaths(context_.building, context_.mesh);
    for (const size_t i : patterns_.Unused(declared)) CheckActivation(entries_[i], declared);
  }

 private:
  // Returns nothing if the entry is wrong, which is reported once.
  std::optional<std::vector<DimensionPartition>> DimensionsBy(MapEntry& entry,
                                                              const TensorToShard& tensor) {
    if (!entry.is_bound) Bind(&entry);
    if (entry.is_wrong) return {};
    if (entry.is_placed) {
      auto dimensions = DimensionsOf(entry.placements, tensor, context_);
      entry.is_wrong = !dimensions;
      return dimensions;
    }
    if (entry.partitions.size() > tensor.shape.size()) {
      entry.is_wrong = true;
      return context_.Error(entry.span,
                            fmt::format("{} has {}, but `{}` has {}", entry.text,
                                        Count(std::ssize(entry.partitions), "entry", "entries"),
                                        tensor.path, Count(std::ssize(tensor.shape), "dimension")),
                            "give at most one entry for each dimension");
    }
    std::vector<DimensionPartition> dimensions = entry.partitions;
    dimensions.resize(tensor.shape.size());
    return dimensions;
  }

  bool AreAlike(std::vector<DimensionPartition> a, std::vector<DimensionPartition> b,
                const TensorToShard& tensor) const {
    PartitionSpec first, second;
    first.dimensions = std::move(a);
    second.dimensions = std::move(b);
    return Simplified(std::move(first), tensor.shape, context_.mesh) ==
           Simplified(std::move(second), tensor.shape, context_.mesh);
  }

  void Bind(MapEntry* entry) {
    entry->is_bound = true;
    const Mesh& mesh = context_.mesh;
    const Building& building = context_.building;
    const size_t before = building.Reported();
    std::vector<int> used;
    for (const AxisList& axes : entry->dimensions) {
      entry->partitions.emplace_back(BindAxes(axes, mesh, &used, building));
    }
    if (entry->is_placed) BindPlacements(entry);
    entry->is_wrong = building.Reported() != before ||
                      MayLack(building.spec.mesh, building.spec.wrong.Has("mesh"));
  }

  void BindPlacements(MapEntry* entry) {
    const Mesh& mesh = context_.mesh;
    entry->placements.resize(mesh.axes.size());
    const bool in_order = entry->by_axis.empty() || entry->by_axis[0].first.value.empty();
    if (in_order && !entry->by_axis.empty() && entry->by_axis.size() != mesh.axes.size()) {
      context_.Error(
          entry->span,
          fmt::format("{}, but the mesh has {}", Count(entry->by_axis.size(), "placement"),
                      Count(mesh.axes.size(), "axis", "axes")),
          "give one for each axis, or name the axes: `{fsdp: Shard(0)}`");
      return;
    }
    for (size_t i = 0; i < entry->by_axis.size(); ++i) {
      const auto& [name, value] = entry->by_axis[i];
      const auto placement = ReadPlacement(value, context_);
      std::vector<int> used;
      const std::vector<int> axis =
          in_order ? std::vector<int>{static_cast<int>(i)}
                   : BindAxes({{name}, name.span}, mesh, &used, context_.building);
      if (placement && !axis.empty()) {
        entry->placements[static_cast<size_t>(axis.front())] = *placement;
      }
    }
  }

  void ReportConflict(size_t first, size_t second, const TensorToShard& tensor) {
    if (!conflicts_.insert({first, second}).second) return;
    const MapEntry& a = entries_[first];
    const MapEntry& b = entries_[second];
    context_.Error(b.pattern.span,
                   fmt::format("`{}` matches two patterns that shard it in two ways, {} and {}",
                               tensor.path, a.text, b.text),
                   "make one of them narrower, or the two equal");
    context_.building.diagnostics.Note(a.pattern.span, "the other pattern");
  }

  void Note(const MapEntry& entry, const TensorToShard& tensor, bool is_same) const {
    context_.building.why.Note([&](Explanation& notes) {
      const Located<std::string>& pattern = entry.pattern;
      const std::string text = fmt::format("{}: {}", pattern.value, entry.text);
      for (size_t d = 0; d < tensor.shape.size(); ++d) {
        notes.rules.push_back({d,
                               {pattern.value, text, {}, pattern.span},
                               is_same ? "another pattern shards it in the same way" : ""});
      }
    });
  }

  // Checks a pattern without a match. As in torchprime, it may be for the output of a module,
  // unless it could be for one of the module's own tensors, which have fewer dimensions.
  void CheckActivation(const MapEntry& entry, const std::vector<DeclaredPath>& declared) {
    std::string_view module = entry.pattern.value;
    const size_t bracket = module.rfind('[');
    const bool is_item = module.ends_with(']') && bracket != module.npos &&
                         module.find_first_not_of("0123456789", bracket + 1) == module.size() - 1;
    if (is_item) module = module.substr(0, bracket);
    const DeclaredPath* own = nullptr;
    bool is_module = false;
    for (const DeclaredPath& of : declared) {
      for (size_t dot = of.path.find('.'); dot != of.path.npos; dot = of.path.find('.', dot + 1)) {
        if (!PathMatches(module, std::string_view(of.path).substr(0, dot))) continue;
        is_module = true;
        // Placements are only for tensors: no trainer places the output of a module.
        const bool could_be = of.path.find('.', dot + 1) == of.path.npos && !is_item &&
                              (entry.is_placed || entry.dimensions.size() <= of.rank);
        if (could_be && own == nullptr) own = &of;
      }
    }
    if (is_module && own == nullptr && !entry.is_placed) return;
    const std::string pattern = Quote(entry.pattern.value);
    if (own != nullptr) {
      const size_t last = own->path.rfind('.');
      context_.Error(
          entry.pattern.span, fmt::format("{} matches a module, but no tensor", pattern),
          fmt::format("did you mean {}?", Quote(entry.pattern.value + own->path.substr(last))));
      return;
    }
    std::string hint = NearestPath(entry.pattern.value, declared);
    for (const LanguageRow* language : Languages()) {
      if (Closest(entry.pattern.value, {std::string(language->name)}).empty()) continue;
      hint = fmt::format("did you mean `{}`?", language->name);
    }
    context_.Error(entry.pattern.span, fmt::format("no tensor matches {}", pattern), hint);
  }

  LanguageContext& context_;
  std::vector<MapEntry> entries_;
  TensorPatterns patterns_;
  std::set<std::pair<size_t, size_t>> conflicts_;  // reported pairs
};

std::unique_ptr<ShardingLanguage> ReadMap(LanguageContext& context, const LanguageText& text) {
  const Node& map = *text.value;
  if (!map.IsMap()) {
    return context.Error(map.span,
                         fmt::format("`map` takes a mapping of patterns, not {}", Describe(map)),
                         "write it as in `{map: {model.norm.weight: [fsdp]}}`");
  }
  std::vector<MapEntry> entries;
  bool is_wrong = map.incomplete;
  for (const Node::Entry& item : map.entries) {
    if (item.key->text == "uneven") continue;
    auto entry = MapReader(context).Read(item);
    is_wrong |= !entry;
    if (entry) entries.push_back(std::move(*entry));
  }
  if (entries.empty() && !is_wrong) context.Error(map.span, "the map has no pattern");
  return std::make_unique<MapLanguage>(context, std::move(entries));
}

}  // namespace

extern const LanguageRow kMapLanguage = {
    .name = "map",
    .description =
        "patterns of paths, each with mesh axes for the dimensions or placements for the mesh axes",
    .is_word = false,
    .read = ReadMap,
};

}  // namespace shardinit
