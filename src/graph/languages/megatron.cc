// Megatron's tensor parallelism by the roles of layers, [out, in] as it has them
// (megatron/core/tensor_parallel/layers.py): ColumnParallelLinear cuts outputs, and the bias with
// them; RowParallelLinear inputs, and its bias is whole; VocabParallelEmbedding rows. Whole experts
// go to the ranks of another axis.
#include <fmt/format.h>

#include <algorithm>

#include "graph/languages/languages.h"
#include "graph/languages/tensor_patterns.h"

namespace shardinit {
namespace {

constexpr std::string_view kRoles[] = {"column", "row", "vocab", "expert"};
enum Role { kColumn, kRow, kVocab, kExpert };

class MegatronLanguage : public ShardingLanguage {
 public:
  MegatronLanguage(LanguageContext& context, std::vector<int> axes, std::vector<int> expert_axes,
                   TensorPatterns patterns, std::vector<Role> roles)
      : context_(context),
        axes_(std::move(axes)),
        expert_axes_(std::move(expert_axes)),
        patterns_(std::move(patterns)),
        roles_(std::move(roles)) {}

  bool Cut(const TensorToCut& tensor, Cutting* cutting, ShardingNotes* notes) override {
    if (tensor.path.empty()) {
      lacks_tensors_ = true;
      return true;
    }
    const std::vector<size_t>& matches = patterns_.Match(tensor.path);
    if (matches.empty()) return true;
    std::vector<DimensionCut> cuts(tensor.shape.size());
    const auto expert = std::find_if(matches.begin(), matches.end(),
                                     [&](size_t match) { return roles_[match] == kExpert; });
    const size_t first = expert != matches.end() ? 1 : 0;  // Behind that of experts.
    if (first > 0) {
      if (tensor.shape.empty()) return ReportRank(*expert, tensor);
      cuts[0].axes = expert_axes_;
      Note(*expert, 0, notes);
    }
    std::optional<size_t> role;
    for (const size_t match : matches) {
      if (roles_[match] == kExpert) continue;
      if (role && roles_[*role] != roles_[match]) return ReportConflict(*role, match, tensor);
      role = match;
    }
    if (role) {
      const size_t dimension = first + (roles_[*role] == kRow ? 1 : 0);
      if (dimension < cuts.size()) {
        cuts[dimension].axes = axes_;
        Note(*role, dimension, notes);
      } else if (roles_[*role] != kRow || cuts.size() != dimension) {  // A bias.
        return ReportRank(*role, tensor);
      }
    }
    cutting->partition.cuts = std::move(cuts);
    cutting->says_cuts = true;
    return true;
  }

  void CheckUse() override {
    if (!lacks_tensors_) patterns_.CheckUse(context_.building, context_.mesh);
  }

 private:
  void Note(size_t match, size_t dimension, ShardingNotes* notes) const {
    if (notes == nullptr) return;
    const auto& pattern = patterns_.all()[match];
    notes->rules.push_back({dimension,
                            {pattern.value,
                             fmt::format("{}: {}", kRoles[roles_[match]], pattern.value),
                             {},
                             pattern.span},
                            ""});
  }

  bool ReportRank(size_t match, const TensorToCut& tensor) {
    if (is_reported_) return false;
    is_reported_ = true;
    context_.Error(patterns_.all()[match].span,
                   fmt::format("`{}` has {} dimension{}, too few for the role `{}`", tensor.path,
                               tensor.shape.size(), tensor.shape.size() == 1 ? "" : "s",
                               kRoles[roles_[match]]));
    return false;
  }

  bool ReportConflict(size_t a, size_t b, const TensorToCut& tensor) {
    if (is_reported_) return false;
    is_reported_ = true;
    context_.Error(patterns_.all()[b].span,
                   fmt::format("`{}` has two roles, `{}` and `{}`", tensor.path, kRoles[roles_[a]],
                               kRoles[roles_[b]]),
                   "make one of the patterns narrower");
    context_.building.diagnostics.Note(patterns_.all()[a].span, "the other pattern");
    return false;
  }

  LanguageContext& context_;
  const std::vector<int> axes_, expert_axes_;
  TensorPatterns patterns_;
  const std::vector<Role> roles_;  // Of each pattern.
  bool is_reported_ = false, lacks_tensors_ = false;
};

std::unique_ptr<ShardingLanguage> ReadMegatron(LanguageContext& context, const LanguageText& text) {
  std::vector<std::string> keys = {"axis", "expert_axis"};
  keys.insert(keys.begin(), std::begin(kRoles), std::end(kRoles));
  if (!context.CheckKeys(*text.value, "megatron", keys)) return nullptr;
  std::vector<Located<std::string>> patterns;
  std::vector<Role> roles;
  for (const Node::Entry& entry : text.value->entries) {
    const auto role = std::find(std::begin(kRoles), std::end(kRoles), entry.key->text);
    if (role == std::end(kRoles)) continue;
    for (auto& pattern : context.Patterns(entry)) {
      patterns.push_back(std::move(pattern));
      roles.push_back(static_cast<Role>(role - std::begin(kRoles)));
    }
  }
  const bool has_experts = std::find(roles.begin(), roles.end(), kExpert) != roles.end();
  auto axes = context.Axes(text.value->Find("axis"), "tensor", text.key);
  std::vector<int> expert_axes;
  if (has_experts) {
    expert_axes = context.Axes(text.value->Find("expert_axis"), "expert", text.key);
  }
  return std::make_unique<MegatronLanguage>(context, std::move(axes), std::move(expert_axes),
                                            TensorPatterns(std::move(patterns)), std::move(roles));
}

}  // namespace

extern const LanguageRow kMegatronLanguage = {
    .name = "megatron",
    .description =
        "patterns of paths by role: `column`, `row`, `vocab` over `axis`, `expert` "
        "over `expert_axis`",
    .is_word = false,
    .read = ReadMegatron,
};

}  // namespace shardinit
