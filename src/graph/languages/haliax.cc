// Haliax's maps from logical axes to mesh axes. Their order does not matter. A dimension without an
// entry stays whole.
#include <fmt/format.h>

#include <map>
#include <set>

#include "base/suggest.h"
#include "base/text.h"
#include "graph/languages/languages.h"
#include "graph/languages/rules.h"

namespace shardinit {
namespace {

struct HaliaxEntry {
  Located<std::string> name;  // `embed`, or `embed#2` for a tensor's second `embed`
  AxisList written;
  std::vector<int> axes;
  bool used = false;
};

class HaliaxLanguage : public ShardingLanguage {
 public:
  HaliaxLanguage(LanguageContext& context, std::vector<HaliaxEntry> entries, bool is_wrong)
      : context_(context), entries_(std::move(entries)), is_wrong_(is_wrong) {
    for (HaliaxEntry& entry : entries_) by_name_[entry.name.value] = &entry;
  }

  bool Shard(const TensorToShard& tensor, TensorSharding* sharding) override {
    if (tensor.axes == nullptr) return true;
    const AxisNames& axes = *tensor.axes;
    std::vector<DimensionPartition> partitions(axes.size());
    std::map<std::string, int> times;
    std::map<int, size_t> dimensions;  // mesh axis → dimension
    for (size_t d = 0; d < axes.size(); ++d) {
      if (axes[d].value.empty()) continue;
      HaliaxEntry* entry = Find(axes[d].value, ++times[axes[d].value]);
      if (entry == nullptr) continue;
      for (const int axis : entry->axes) {
        const auto [other, is_first] = dimensions.emplace(axis, d);
        if (is_first || is_wrong_) continue;
        ReportTwice(*entry, axis, axes, other->second, d, tensor);
        return false;
      }
      partitions[d].axes = entry->axes;
      context_.building.why.Note([&](Explanation& notes) {
        notes.rules.push_back(
            {d,
             {axes[d].value,
              fmt::format("{{{}: {}}}", entry->name.value, InText(entry->written)),
              {},
              entry->name.span},
             ""});
      });
    }
    if (is_wrong_ || axes.size() != tensor.shape.size()) return false;
    sharding->partition.dimensions = std::move(partitions);
    sharding->says_sharding = true;
    return true;
  }

  void CheckUse() override {
    if (context_.building.spec.wrong.Has("layouts")) return;
    const std::set<std::string> names = LogicalAxes(context_.building.spec);
    for (const HaliaxEntry& entry : entries_) {
      const std::string name = entry.name.value.substr(0, entry.name.value.find('#'));
      const bool is_numbered = name.size() != entry.name.value.size();
      if (entry.used || (!is_numbered && names.count(name) != 0)) continue;
      const std::vector<std::string> known(names.begin(), names.end());
      context_.Error(entry.name.span,
                     names.count(name) != 0
                         ? fmt::format("no tensor has as many axes `{}` as {} needs", name,
                                       Quote(entry.name.value))
                         : fmt::format("no tensor has the logical axis `{}`", name),
                     names.count(name) != 0 ? "remove it"
                     : known.empty()        ? kNoLogicalAxes
                                            : DidYouMean(name, known));
    }
  }

 private:
  HaliaxEntry* Find(const std::string& name, int time) {
    auto found = by_name_.find(fmt::format("{}#{}", name, time));
    if (found == by_name_.end()) found = by_name_.find(name);
    if (found == by_name_.end()) return nullptr;
    found->second->used = true;
    return found->second;
  }

  void ReportTwice(const HaliaxEntry& entry, int axis, const AxisNames& axes, size_t first,
                   size_t second, const TensorToShard& tensor) {
    if (!reported_.insert(&axes).second) return;
    const bool is_same = axes[first].value == axes[second].value;
    context_.Error(
        entry.name.span,
        fmt::format(
            "mesh axis `{}` would shard `{}` twice: its dimensions {} and {}, `{}` and `{}`",
            context_.mesh.axes[static_cast<size_t>(axis)], tensor.path, first, second,
            axes[first].value, axes[second].value),
        is_same ? fmt::format("`{}#2: null` keeps the second one whole", axes[second].value)
                : "each mesh axis may shard one dimension of a tensor, once");
  }

  LanguageContext& context_;
  std::vector<HaliaxEntry> entries_;
  std::map<std::string, HaliaxEntry*> by_name_;
  std::set<const AxisNames*> reported_;
  const bool is_wrong_;
};

std::unique_ptr<ShardingLanguage> ReadHaliax(LanguageContext& context, const LanguageText& text) {
  const Node& map = *text.value;
  if (!map.IsMap()) {
    return context.Error(map.span,
                         fmt::format("`haliax` takes a mapping of axes, not {}", Describe(map)),
                         "write it as in `{haliax: {embed: fsdp, mlp: tensor}}`");
  }
  std::vector<HaliaxEntry> entries;
  const size_t before = context.building.Reported();
  for (const Node::Entry& item : map.entries) {
    Node name = *item.key;
    const size_t hash = name.text.find('#');
    const std::string_view number = hash == name.text.npos ? "1" : name.text.substr(hash + 1);
    if (number.empty() || number.find_first_not_of("0123456789") != number.npos ||
        number.starts_with('0')) {
      context.Error(name.span, fmt::format("{} is not the name of an axis", Quote(name.text)),
                    "`embed#2` is the second axis `embed` of a tensor");
      continue;
    }
    name.text = name.text.substr(0, hash);
    HaliaxEntry entry = {context.reader.ReadAxisName(name, "logical axis"),
                         context.reader.ReadMeshAxisList(*item.value),
                         {}};
    if (entry.name.value.empty()) continue;
    entry.name.value = item.key->text;
    std::vector<int> used;
    entry.axes = BindAxes(entry.written, context.mesh, &used, context.building);
    entries.push_back(std::move(entry));
  }
  if (map.entries.empty() && !map.incomplete) {
    context.Error(map.span, "`haliax` names no axis", "write it as in `{haliax: {embed: fsdp}}`");
  }
  const bool is_wrong = map.incomplete || context.building.Reported() != before;
  return std::make_unique<HaliaxLanguage>(context, std::move(entries), is_wrong);
}

}  // namespace

extern const LanguageRow kHaliaxLanguage = {
    .name = "haliax",
    .description =
        "logical axes, each with mesh axes, in any order; `embed#2` is the second `embed` of a "
        "tensor",
    .is_word = false,
    .read = ReadHaliax,
};

}  // namespace shardinit
