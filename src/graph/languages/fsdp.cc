// Languages that look at shapes alone: FSDPv2 of torch_xla, SingleAxisSharder of torchax, and
// fully_shard of PyTorch, which cuts further what others have cut.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>
#include <utility>

#include "graph/languages/languages.h"
#include "graph/languages/tensor_patterns.h"
#include "report/text.h"

namespace shardinit {
namespace {

bool IsCut(const std::vector<DimensionCut>& cuts) {
  return std::any_of(cuts.begin(), cuts.end(),
                     [](const DimensionCut& cut) { return !cut.axes.empty(); });
}

// Returns whether other languages have cut the tensor, or whether axes other than `own` cut the
// sources of a view.
bool IsCutByOthers(const TensorToCut& tensor, const Cutting& cutting, const std::vector<int>& own) {
  if (cutting.says_cuts) return IsCut(cutting.partition.cuts);
  if (!tensor.is_view) return false;
  const auto& cuts = tensor.before->cuts;
  return std::any_of(cuts.begin(), cuts.end(), [&](const DimensionCut& cut) {
    return std::any_of(cut.axes.begin(), cut.axes.end(), [&](int axis) {
      return std::find(own.begin(), own.end(), axis) == own.end();
    });
  });
}

std::string AxesText(const std::vector<int>& axes, const Mesh& mesh) {
  std::vector<std::string> names;
  for (const int axis : axes) names.push_back(mesh.axes[static_cast<size_t>(axis)]);
  return fmt::format("{}", fmt::join(names, " × "));
}

// Notes that a language was tried on a dimension; `outcome` says why it was not used.
void NoteDimension(const LanguageContext& context, const char* name, const Span& place, size_t d,
                   std::string_view outcome) {
  context.building.why.Note([&](Explanation& notes) {
    notes.rules.push_back({d, {name, name, {}, place}, std::string(outcome)});
  });
}

// Cuts tensors that are not cut yet along their largest dimension, the first one of equals, as
// torch_xla/experimental/spmd_fully_sharded_data_parallel.py does.
class FsdpLanguage : public ShardingLanguage {
 public:
  FsdpLanguage(LanguageContext& context, std::vector<int> axes, Span place)
      : context_(context), axes_(std::move(axes)), place_(place) {}

  bool Cut(const TensorToCut& tensor, Cutting* cutting) override {
    if (tensor.path.empty() || IsCutByOthers(tensor, *cutting, axes_)) return true;
    cutting->says_cuts = true;
    if (tensor.shape.empty()) return true;
    const auto largest = std::max_element(tensor.shape.begin(), tensor.shape.end());
    const auto dimension = static_cast<size_t>(largest - tensor.shape.begin());
    cutting->partition.cuts[dimension].axes = axes_;
    for (size_t d = 0; d < tensor.shape.size(); ++d) {
      if (!context_.building.why.is_taking()) break;
      const char* than = tensor.shape[d] == *largest ? "as large, and first" : "larger";
      NoteDimension(
          context_, "fsdp", place_, d,
          d == dimension ? "" : fmt::format("dimension {} ({}) is {}", dimension, *largest, than));
    }
    return true;
  }
  bool AllowsUneven() const override { return true; }

 private:
  const LanguageContext& context_;
  const std::vector<int> axes_;
  const Span place_;
};

// Cuts the first dimension that the axis divides, as torchax/mesh_util.py does.
class FirstDivisibleLanguage : public OnceLanguage {
 public:
  FirstDivisibleLanguage(LanguageContext& context, std::vector<int> axes, bool replicates,
                         Span place)
      : OnceLanguage(context), axes_(std::move(axes)), replicates_(replicates), place_(place) {}

  bool Cut(const TensorToCut& tensor, Cutting* cutting) override {
    if (tensor.path.empty() || axes_.empty()) return true;  // no axis: a mistake
    if (IsCutByOthers(tensor, *cutting, axes_)) return true;
    cutting->says_cuts = true;
    const int64_t parts = PartsOf(axes_, context_.mesh);
    for (size_t d = 0; d < tensor.shape.size(); ++d) {
      const bool divides = tensor.shape[d] % parts == 0;
      NoteDimension(context_, "first_divisible", place_, d,
                    divides ? "" : fmt::format("{} does not divide it", parts));
      if (!divides) continue;
      cutting->partition.cuts[d].axes = axes_;
      return true;
    }
    if (replicates_) return true;
    return ReportOnce(
        place_,
        fmt::format("`{}` ({}) divides no dimension of `{}` [{}]", AxesText(axes_, context_.mesh),
                    parts, tensor.path, fmt::join(tensor.shape, ", ")),
        "`{first_divisible: {replicate_unshardable: true}}` keeps such tensors whole");
  }

 private:
  const std::vector<int> axes_;
  const bool replicates_;
  const Span place_;
};

// Works as torch.distributed.fsdp.fully_shard after parallelize_module: cuts each part of a
// dimension, the first or another one, by those axes that do not cut the tensor yet.
class FullyShardLanguage : public OnceLanguage {
 public:
  FullyShardLanguage(LanguageContext& context, std::vector<int> axes, TensorPatterns patterns,
                     std::vector<int64_t> dimensions, Span place)
      : OnceLanguage(context),
        axes_(std::move(axes)),
        patterns_(std::move(patterns)),
        dimensions_(std::move(dimensions)),
        place_(place) {}

  bool Cut(const TensorToCut& tensor, Cutting* cutting) override {
    if (tensor.path.empty()) return true;
    // A view of a tensor that is cut stays cut like it.
    if (tensor.is_view && !cutting->says_cuts) return true;
    cutting->says_cuts = true;
    std::vector<int> axes = axes_;
    for (const DimensionCut& cut : cutting->partition.cuts) {
      std::erase_if(axes, [&](int axis) {
        return std::find(cut.axes.begin(), cut.axes.end(), axis) != cut.axes.end();
      });
    }
    const auto dimension = DimensionOf(tensor, !axes.empty());
    if (!dimension) return false;
    if (tensor.shape.empty() || axes.empty()) return true;
    DimensionCut& cut = cutting->partition.cuts[*dimension];
    if (*dimension > 0 && !CheckEven(tensor, cut, axes, *dimension)) return false;
    // fully_shard treats its own axes as one axis, which cuts what the other axes left.
    const bool is_first = std::all_of(cut.axes.begin(), cut.axes.end(), [&](int axis) {
      return std::find(axes_.begin(), axes_.end(), axis) != axes_.end();
    });
    if (!is_first) {
      if (cut.nested.empty()) {
        cut.nested.assign(cut.axes.size(), 0);
        cut.nested.front() = std::exchange(cut.segments, 1);
      }
      cut.nested.resize(cut.axes.size() + axes.size(), 0);
      cut.nested[cut.axes.size()] = 1;
    }
    cut.axes.insert(cut.axes.end(), axes.begin(), axes.end());
    NoteDimension(context_, "fully_shard", place_, *dimension, "");
    return true;
  }
  void CheckUse() override {
    if (!context_.lacks_tensors) patterns_.CheckUse(context_.building, context_.mesh);
  }
  bool AllowsUneven() const override { return true; }

  static constexpr int64_t kUnknown = -1;  // a dimension that is a mistake

 private:
  // Returns the dimension that the patterns give the tensor, or the first; nothing after a mistake.
  // The tensor must have it only if it is to be cut.
  std::optional<size_t> DimensionOf(const TensorToCut& tensor, bool is_cut) {
    const std::vector<size_t>& matches = patterns_.Match(tensor.path);
    if (matches.empty()) return 0;
    const auto is_unknown = [&](size_t match) { return dimensions_[match] == kUnknown; };
    if (std::any_of(matches.begin(), matches.end(), is_unknown)) return {};
    const int64_t dimension = dimensions_[matches.front()];
    for (const size_t other : matches) {
      if (dimensions_[other] == dimension) continue;
      ReportOnce(patterns_.all()[other].span,
                 fmt::format("`{}` matches two patterns, for the dimensions {} and {}", tensor.path,
                             dimension, dimensions_[other]));
      return {};
    }
    if (is_cut && !tensor.shape.empty() && dimension >= std::ssize(tensor.shape)) {
      ReportOnce(patterns_.all()[matches.front()].span,
                 fmt::format("`{}` has {}, and so no dimension {}", tensor.path,
                             Count(std::ssize(tensor.shape), "dimension"), dimension));
      return {};
    }
    return static_cast<size_t>(dimension);
  }

  // PyTorch's fully_shard cuts other dimensions than the first only into equal parts.
  bool CheckEven(const TensorToCut& tensor, const DimensionCut& before,
                 const std::vector<int>& axes, size_t dimension) {
    const Mesh& mesh = context_.mesh;
    const int64_t parts = PartsOf(axes, mesh);
    const Shape shape = {tensor.shape[dimension]};
    const PartitionSpec partition = {before};
    const Sharding sharding(mesh, Replicas::kFull, shape, partition);
    if (shape[0] % (DivisorOf(before, mesh) * parts) == 0) return true;
    for (const int64_t rank : RanksAlong(before.axes, mesh)) {
      const int64_t left = sharding.ElementsOn(rank);
      if (left % parts == 0) continue;
      return ReportOnce(
          place_,
          fmt::format("`{}` ({}) does not divide the {} that rank {} has of dimension {} of `{}`, "
                      "and fully_shard of PyTorch refuses that for all but the first dimension",
                      AxesText(axes, mesh), parts, left, rank, dimension, tensor.path),
          "use a multiple, or another of its dimensions under `dimensions`");
    }
    return true;
  }

  const std::vector<int> axes_;
  TensorPatterns patterns_;
  const std::vector<int64_t> dimensions_;  // of each pattern
  const Span place_;
};

const Node* Value(const LanguageText& text, std::string_view key) {
  return text.value == nullptr ? nullptr : text.value->Find(key);
}

bool CheckText(LanguageContext& context, const LanguageText& text, std::string_view name,
               const std::vector<std::string>& keys) {
  return text.value == nullptr || context.CheckKeys(*text.value, name, keys);
}

std::unique_ptr<ShardingLanguage> ReadFsdp(LanguageContext& context, const LanguageText& text) {
  if (!CheckText(context, text, "fsdp", {"axis"})) return nullptr;
  auto axes = context.Axes(Value(text, "axis"), "fsdp", text.key);
  return std::make_unique<FsdpLanguage>(context, std::move(axes), text.key);
}

std::unique_ptr<ShardingLanguage> ReadFirstDivisible(LanguageContext& context,
                                                     const LanguageText& text) {
  if (!CheckText(context, text, "first_divisible", {"axis", "replicate_unshardable"})) {
    return nullptr;
  }
  const Node* replicates = Value(text, "replicate_unshardable");
  if (replicates != nullptr && !IsBoolean(*replicates)) {
    context.Error(
        replicates->span,
        fmt::format("`replicate_unshardable` is `true` or `false`, not {}", Describe(*replicates)));
  }
  auto axes = context.Axes(Value(text, "axis"), "fsdp", text.key);
  return std::make_unique<FirstDivisibleLanguage>(
      context, std::move(axes), replicates != nullptr && replicates->text == "true", text.key);
}

std::unique_ptr<ShardingLanguage> ReadFullyShard(LanguageContext& context,
                                                 const LanguageText& text) {
  if (!CheckText(context, text, "fully_shard", {"axes", "dimensions"})) return nullptr;
  std::vector<Located<std::string>> patterns;
  std::vector<int64_t> dimensions;
  const Node* written = Value(text, "dimensions");
  if (written != nullptr && !written->IsMap()) {
    context.Error(
        written->span, fmt::format("`dimensions` takes a mapping, not {}", Describe(*written)),
        "map patterns of paths to dimensions, for tensors that are not sharded on the first");
  } else if (written != nullptr) {
    for (const Node::Entry& entry : written->entries) {
      patterns.push_back(SpecReader::Text(*entry.key));
      dimensions.push_back(context.Integer(entry, 0, 31).value_or(FullyShardLanguage::kUnknown));
    }
  }
  return std::make_unique<FullyShardLanguage>(
      context, context.Axes(Value(text, "axes"), "fsdp", text.key),
      TensorPatterns(std::move(patterns)), std::move(dimensions), text.key);
}

}  // namespace

extern const LanguageRow kFsdpLanguage = {
    .name = "fsdp",
    .description =
        "shards what is not sharded yet, by its largest dimension, the first of equals, over "
        "`axis`, as FSDPv2 of PyTorch/XLA does",
    .is_word = true,
    .read = ReadFsdp,
};

extern const LanguageRow kFirstDivisibleLanguage = {
    .name = "first_divisible",
    .description =
        "shards what is not sharded yet, by the first dimension that `axis` divides, as torchax "
        "does",
    .is_word = true,
    .read = ReadFirstDivisible,
};

extern const LanguageRow kFullyShardLanguage = {
    .name = "fully_shard",
    .description =
        "shards all tensors further, by the first dimension over those `axes` that do not shard it "
        "yet, as fully_shard of PyTorch does after parallelize_module",
    .is_word = true,
    .read = ReadFullyShard,
};

}  // namespace shardinit
