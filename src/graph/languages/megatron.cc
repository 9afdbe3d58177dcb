// Megatron's tensor parallelism by the roles of layers with [out, in] weights
// (megatron/core/tensor_parallel/layers.py). ColumnParallelLinear shards outputs and the bias.
// RowParallelLinear shards inputs; its bias stays whole. VocabParallelEmbedding shards rows. Whole
// experts go to the ranks of another axis in order, the same number to each
// (transformer/moe/moe_layer.py).
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "base/parse_number.h"
#include "base/table.h"
#include "graph/languages/languages.h"
#include "graph/languages/tensor_patterns.h"
#include "report/text.h"

namespace shardinit {
namespace {

constexpr std::string_view kBelow = ".**";
constexpr int64_t kMostExperts = 1'000'000;
constexpr std::string_view kRoles[] = {"column", "row", "vocab", "expert"};
enum Role { kColumn, kRow, kVocab, kExpert };

class MegatronLanguage : public OnceLanguage {
 public:
  MegatronLanguage(LanguageContext& context, const LanguageText& text)
      : OnceLanguage(context), patterns_(ReadRoles(text)) {
    const Node* axis = text.value->Find("axis");
    if (axis != nullptr || std::ranges::any_of(roles_, [](Role role) { return role != kExpert; })) {
      axes_ = context.Axes(axis, "tensor", text.key);
    }
    if (!Contains(roles_, kExpert)) return;
    const size_t before = context.building.Reported();
    expert_axes_ = context.Axes(text.value->Find("expert_axis"), "expert", text.key);
    const bool knows_axes = context.building.Reported() == before;
    if (const Node::Entry* const entry = text.value->FindEntry("num_experts")) {
      experts_ = knows_axes ? ReadExperts(*entry) : 0;
    }
  }

  bool Shard(const TensorToShard& tensor, TensorSharding* sharding) override {
    if (tensor.path.empty()) return true;
    const std::vector<size_t>& matches = patterns_.Match(tensor.path);
    if (matches.empty()) return true;
    std::vector<DimensionPartition> dimensions(tensor.shape.size());
    const auto is_expert = [&](size_t match) { return roles_[match] == kExpert; };
    const auto expert = std::ranges::find_if(matches, is_expert);
    bool is_one = false;  // the tensor belongs to one expert
    for (const size_t match : matches) {
      const auto number = is_expert(match) ? ExpertOf(match, tensor.path) : std::nullopt;
      if (!number) continue;
      is_one = true;
      if (!PinExpert(match, *number, tensor, sharding)) return false;
      break;
    }
    if (is_one && std::ranges::all_of(matches, is_expert)) return true;
    // Dimension 0 counts experts, unless the tensor belongs to one expert.
    const size_t first = expert != matches.end() && !is_one ? 1 : 0;
    if (first > 0) {
      if (tensor.shape.empty()) return ReportRank(*expert, tensor);
      dimensions[0].axes = expert_axes_;
      Note(*expert, 0);
    }
    std::optional<size_t> role;
    for (const size_t match : matches) {
      if (roles_[match] == kExpert) continue;
      if (role && roles_[*role] != roles_[match]) return ReportConflict(*role, match, tensor);
      role = match;
    }
    if (role) {
      const size_t dimension = first + (roles_[*role] == kRow ? 1 : 0);
      if (dimension < dimensions.size()) {
        dimensions[dimension].axes = axes_;
        Note(*role, dimension);
      } else if (roles_[*role] != kRow || dimensions.size() != dimension) {
        // Only the bias of a row layer may lack the dimension: it stays whole.
        return ReportRank(*role, tensor);
      }
    }
    sharding->partition.dimensions = std::move(dimensions);
    sharding->says_sharding = true;
    return true;
  }

  bool Pins() const override { return !expert_axes_.empty(); }

  void CheckUse() override {
    if (context_.lacks_tensors) return;
    patterns_.CheckUse(context_.building, context_.mesh);
    if (is_reported_ || last_expert_ < 0 || last_expert_ + 1 == experts_) return;
    context_.Error(
        patterns_.all()[last_match_].span,
        fmt::format("`num_experts` is {}, but the last expert here is {}", *experts_, last_expert_),
        fmt::format("use {}, or a pattern that has all of them", last_expert_ + 1));
  }

 private:
  // Returns the patterns and stores their roles in roles_.
  std::vector<Located<std::string>> ReadRoles(const LanguageText& text) {
    std::vector<Located<std::string>> patterns;
    bool says_role = false;
    for (const Node::Entry& entry : text.value->entries) {
      const auto role = std::ranges::find(kRoles, entry.key->text);
      if (role == std::end(kRoles)) continue;
      says_role = true;
      for (auto& pattern : context_.Patterns(entry)) {
        patterns.push_back(std::move(pattern));
        roles_.push_back(static_cast<Role>(role - std::begin(kRoles)));
      }
    }
    if (!says_role && !text.value->incomplete) {
      context_.Error(text.key, "`megatron` gives no tensor a role",
                     "write it as in `{megatron: {column: \"**.up_proj.weight\"}}`");
    }
    return patterns;
  }

  // Returns 0 after an error.
  int64_t ReadExperts(const Node::Entry& entry) {
    const auto experts = context_.Integer(entry, 1, kMostExperts);
    if (!experts) return 0;
    const int64_t ranks = PartsOf(expert_axes_, context_.mesh);
    if (*experts % ranks == 0) return *experts;
    std::vector<std::string_view> names;
    for (const int axis : expert_axes_) {
      names.push_back(context_.mesh.axes[static_cast<size_t>(axis)]);
    }
    const bool is_one = names.size() == 1;
    context_.Error(
        entry.value->span,
        fmt::format("mesh ax{} `{}` ({}) do{} not divide {} experts", is_one ? "is" : "es",
                    fmt::join(names, " × "), ranks, is_one ? "es" : "", *experts),
        "use sizes that divide them: each rank has the same number of experts");
    return 0;
  }

  // Returns the expert of a path that matches a pattern ending in `.**`: the first number after the
  // part that the rest of the pattern matches.
  std::optional<int64_t> ExpertOf(size_t match, std::string_view path) const {
    std::string_view around = patterns_.all()[match].value;
    if (!around.ends_with(kBelow)) return {};
    around.remove_suffix(kBelow.size());
    bool is_below = false;
    for (size_t start = 0; start < path.size();) {
      const size_t end = std::min(path.find('.', start), path.size());
      const auto number =
          is_below ? ParseNumber<int64_t>(path.substr(start, end - start)) : std::nullopt;
      if (number) return number;
      is_below = is_below || PathMatches(around, path.substr(0, end));
      start = end + 1;
    }
    return {};
  }

  // Pins the tensor to the ranks that have the expert.
  bool PinExpert(size_t match, int64_t expert, const TensorToShard& tensor,
                 TensorSharding* sharding) {
    const Located<std::string>& pattern = patterns_.all()[match];
    if (experts_ == 0) return false;
    if (!experts_) {
      return ReportOnce(pattern.span,
                        fmt::format("`{}` is of expert {}, but the number of experts is unknown",
                                    tensor.path, expert),
                        "add `num_experts`, as in `{expert: \"**.experts.**\", num_experts: 8}`");
    }
    if (expert >= *experts_) {
      return ReportOnce(pattern.span, fmt::format("`{}` is of expert {}, but `num_experts` is {}",
                                                  tensor.path, expert, *experts_));
    }
    if (expert > last_expert_) {
      last_expert_ = expert;
      last_match_ = match;
    }
    if (tensor.says_stage) return true;
    const Mesh& mesh = context_.mesh;
    int64_t rank = expert / (*experts_ / PartsOf(expert_axes_, mesh));
    std::vector<Pin>& pins = sharding->partition.pins;
    for (auto axis = expert_axes_.rbegin(); axis != expert_axes_.rend(); ++axis) {
      const int64_t extent = mesh.shape[static_cast<size_t>(*axis)];
      const int64_t index = rank % extent;
      rank /= extent;
      if (extent == 1) continue;
      // A view is on the same ranks as its sources.
      const Pin pin = {*axis, {index}};
      const auto known =
          std::ranges::find_if(pins, [&](const Pin& other) { return other.axis == *axis; });
      if (known != pins.end() && *known != pin) continue;
      if (known == pins.end()) pins.push_back(pin);
      context_.building.why.Note([&](Explanation& notes) {
        notes.pins.push_back({mesh.axes[static_cast<size_t>(*axis)],
                              {},
                              fmt::format("{}, by expert {}", index, expert),
                              pattern.span});
      });
    }
    std::ranges::sort(pins);
    return true;
  }

  void Note(size_t match, size_t dimension) const {
    context_.building.why.Note([&](Explanation& notes) {
      const Located<std::string>& pattern = patterns_.all()[match];
      const std::string text = fmt::format("{}: {}", kRoles[roles_[match]], pattern.value);
      notes.rules.push_back({dimension, {pattern.value, text, {}, pattern.span}, ""});
    });
  }

  bool ReportRank(size_t match, const TensorToShard& tensor) {
    return ReportOnce(
        patterns_.all()[match].span,
        fmt::format("`{}` has {}, too few for the role `{}`", tensor.path,
                    Count(std::ssize(tensor.shape), "dimension"), kRoles[roles_[match]]));
  }

  bool ReportConflict(size_t a, size_t b, const TensorToShard& tensor) {
    if (is_reported_) return false;
    ReportOnce(patterns_.all()[b].span,
               fmt::format("`{}` has two roles, `{}` and `{}`", tensor.path, kRoles[roles_[a]],
                           kRoles[roles_[b]]),
               "make one of the patterns narrower");
    context_.building.diagnostics.Note(patterns_.all()[a].span, "the other pattern");
    return false;
  }

  std::vector<int> axes_, expert_axes_;
  std::optional<int64_t> experts_;  // none: unknown number; 0: an error
  int64_t last_expert_ = -1;        // the last expert that was placed, and its pattern
  size_t last_match_ = 0;
  std::vector<Role> roles_;  // of each pattern
  TensorPatterns patterns_;
};

std::unique_ptr<ShardingLanguage> ReadMegatron(LanguageContext& context, const LanguageText& text) {
  std::vector<std::string> keys = {"axis", "expert_axis", "num_experts"};
  keys.insert(keys.begin(), std::begin(kRoles), std::end(kRoles));
  if (!context.CheckKeys(*text.value, "megatron", keys)) return nullptr;
  return std::make_unique<MegatronLanguage>(context, text);
}

}  // namespace

extern const LanguageRow kMegatronLanguage = {
    .name = "megatron",
    .description =
        "patterns of paths by role: `column`, `row`, `vocab` over `axis`, `expert` over "
        "`expert_axis`, and `num_experts`",
    .is_word = false,
    .read = ReadMegatron,
};

}  // namespace shardinit
