// Languages that use only shapes: FSDPv2 of torch_xla, SingleAxisSharder of torchax, and PyTorch's
// fully_shard, which further shards tensors that others have sharded.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

#include "base/table.h"
#include "graph/languages/languages.h"
#include "graph/languages/tensor_patterns.h"
#include "report/text.h"

namespace shardinit {
namespace {

bool IsSharded(const std::vector<DimensionPartition>& dimensions) {
  return std::ranges::any_of(dimensions,
                             [](const DimensionPartition& by) { return !by.axes.empty(); });
}

// Returns whether other languages have sharded the tensor, or whether axes other than `own` shard
// the sources of a view.
bool IsShardedByOthers(const TensorToShard& tensor, const TensorSharding& sharding,
                       const std::vector<int>& own) {
  if (sharding.says_sharding) return IsSharded(sharding.partition.dimensions);
  if (!tensor.is_view) return false;
  const auto& dimensions = tensor.before->dimensions;
  return std::ranges::any_of(dimensions, [&](const DimensionPartition& by) {
    return std::ranges::any_of(by.axes, [&](int axis) { return !Contains(own, axis); });
  });
}

std::string AxesText(const std::vector<int>& axes, const Mesh& mesh) {
  std::vector<std::string> names;
  for (const int axis : axes) names.push_back(mesh.axes[static_cast<size_t>(axis)]);
  return fmt::format("{}", fmt::join(names, " × "));
}

// Notes that a language was tried on a dimension. `outcome` is why it was not used, or empty.
void NoteDimension(const LanguageContext& context, const char* name, const Span& place, size_t d,
                   std::string_view outcome) {
  context.building.why.Note([&](Explanation& notes) {
    notes.rules.push_back({d, {name, name, {}, place}, std::string(outcome)});
  });
}

// Returns null if the key is not given.
const Node* ValueOf(const LanguageText& text, std::string_view key) {
  return text.value == nullptr ? nullptr : text.value->Find(key);
}

// Creates a language from a mapping of its keys, all of which are optional.
template <typename Language>
std::unique_ptr<ShardingLanguage> Read(LanguageContext& context, const LanguageText& text) {
  const std::vector<std::string> keys(std::begin(Language::kKeys), std::end(Language::kKeys));
  if (text.value != nullptr && !context.CheckKeys(*text.value, Language::kName, keys)) {
    return nullptr;
  }
  return std::make_unique<Language>(context, text);
}

// Shards tensors that are not sharded yet along their largest dimension (the first if several are
// largest), as torch_xla/experimental/spmd_fully_sharded_data_parallel.py does.
class FsdpLanguage : public ShardingLanguage {
 public:
  static constexpr char kName[] = "fsdp";
  static constexpr std::string_view kKeys[] = {"axis"};

  FsdpLanguage(LanguageContext& context, const LanguageText& text)
      : context_(context),
        axes_(context.Axes(ValueOf(text, "axis"), "fsdp", text.key)),
        place_(text.key) {}

  bool Shard(const TensorToShard& tensor, TensorSharding* sharding) override {
    if (tensor.path.empty() || IsShardedByOthers(tensor, *sharding, axes_)) return true;
    sharding->says_sharding = true;
    if (tensor.shape.empty()) return true;
    const auto largest = std::ranges::max_element(tensor.shape);
    const auto dimension = static_cast<size_t>(largest - tensor.shape.begin());
    sharding->partition.dimensions[dimension].axes = axes_;
    for (size_t d = 0; d < tensor.shape.size(); ++d) {
      if (!context_.building.why.is_taking()) break;
      const char* than = tensor.shape[d] == *largest ? "as large, and first" : "larger";
      NoteDimension(
          context_, kName, place_, d,
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

// Shards the first dimension that the axis divides, as torchax/mesh_util.py does.
class FirstDivisibleLanguage : public OnceLanguage {
 public:
  static constexpr char kName[] = "first_divisible";
  static constexpr std::string_view kKeys[] = {"axis", "replicate_unshardable"};

  FirstDivisibleLanguage(LanguageContext& context, const LanguageText& text)
      : OnceLanguage(context), place_(text.key) {
    const Node* replicates = ValueOf(text, "replicate_unshardable");
    if (replicates != nullptr && !IsBoolean(*replicates)) {
      context.Error(replicates->span,
                    fmt::format("`replicate_unshardable` is `true` or `false`, not {}",
                                Describe(*replicates)));
    }
    // After an error, tensors that cannot be sharded are not reported.
    replicates_ = replicates != nullptr && replicates->text != "false";
    axes_ = context.Axes(ValueOf(text, "axis"), "fsdp", text.key);
  }

  bool Shard(const TensorToShard& tensor, TensorSharding* sharding) override {
    if (tensor.path.empty() || axes_.empty()) return true;  // no axis: an error was reported
    if (IsShardedByOthers(tensor, *sharding, axes_)) return true;
    sharding->says_sharding = true;
    const int64_t parts = PartsOf(axes_, context_.mesh);
    for (size_t d = 0; d < tensor.shape.size(); ++d) {
      const bool divides = tensor.shape[d] % parts == 0;
      NoteDimension(context_, kName, place_, d,
                    divides ? "" : fmt::format("{} does not divide it", parts));
      if (!divides) continue;
      sharding->partition.dimensions[d].axes = axes_;
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
  std::vector<int> axes_;
  bool replicates_;
  const Span place_;
};

// Works like torch.distributed.fsdp.fully_shard after parallelize_module: shards each part of a
// dimension (by default the first) by the axes that do not shard the tensor yet.
class FullyShardLanguage : public OnceLanguage {
 public:
  static constexpr char kName[] = "fully_shard";
  static constexpr std::string_view kKeys[] = {"axes", "dimensions"};

  FullyShardLanguage(LanguageContext& context, const LanguageText& text)
      : OnceLanguage(context),
        patterns_(ReadDimensions(ValueOf(text, "dimensions"))),
        axes_(context.Axes(ValueOf(text, "axes"), "fsdp", text.key)),
        place_(text.key) {}

  bool Shard(const TensorToShard& tensor, TensorSharding* sharding) override {
    if (tensor.path.empty()) return true;
    // A view of a sharded tensor keeps that sharding.
    if (tensor.is_view && !sharding->says_sharding) return true;
    sharding->says_sharding = true;
    std::vector<int> axes = axes_;
    for (const DimensionPartition& by : sharding->partition.dimensions) {
      std::erase_if(axes, [&](int axis) { return Contains(by.axes, axis); });
    }
    const auto dimension = DimensionOf(tensor, !axes.empty());
    if (!dimension) return false;
    if (tensor.shape.empty() || axes.empty()) return true;
    DimensionPartition& by = sharding->partition.dimensions[*dimension];
    if (*dimension > 0 && !CheckEven(tensor, by, axes, *dimension)) return false;
    // fully_shard treats its own axes as one axis, which shards the parts that the other axes left.
    const bool is_first =
        std::ranges::all_of(by.axes, [&](int axis) { return Contains(axes_, axis); });
    if (!is_first) {
      if (by.nested.empty()) {
        by.nested.assign(by.axes.size(), 0);
        by.nested.front() = std::exchange(by.segments, 1);
      }
      by.nested.resize(by.axes.size() + axes.size(), 0);
      by.nested[by.axes.size()] = 1;
    }
    by.axes.insert(by.axes.end(), axes.begin(), axes.end());
    NoteDimension(context_, kName, place_, *dimension, "");
    return true;
  }
  void CheckUse() override {
    if (!context_.lacks_tensors) patterns_.CheckUse(context_.building, context_.mesh);
  }
  bool AllowsUneven() const override { return true; }

 private:
  static constexpr int64_t kUnknown = -1;  // a dimension that has an error

  // Returns the patterns and stores their dimensions in dimensions_.
  std::vector<Located<std::string>> ReadDimensions(const Node* written) {
    std::vector<Located<std::string>> patterns;
    if (written != nullptr && !written->IsMap()) {
      context_.Error(
          written->span, fmt::format("`dimensions` takes a mapping, not {}", Describe(*written)),
          "map patterns of paths to dimensions, for tensors that are not sharded on the first");
    } else if (written != nullptr) {
      for (const Node::Entry& entry : written->entries) {
        patterns.push_back(SpecReader::Text(*entry.key));
        dimensions_.push_back(context_.Integer(entry, 0, 31).value_or(kUnknown));
      }
    }
    return patterns;
  }

  // Returns the dimension that the patterns give the tensor, or the first. Returns nothing after an
  // error. The tensor must have it only if `is_sharded`.
  std::optional<size_t> DimensionOf(const TensorToShard& tensor, bool is_sharded) {
    const std::vector<size_t>& matches = patterns_.Match(tensor.path);
    if (matches.empty()) return 0;
    const auto is_unknown = [&](size_t match) { return dimensions_[match] == kUnknown; };
    if (std::ranges::any_of(matches, is_unknown)) return {};
    const int64_t dimension = dimensions_[matches.front()];
    for (const size_t other : matches) {
      if (dimensions_[other] == dimension) continue;
      return ReportOnce(patterns_.all()[other].span,
                        fmt::format("`{}` matches two patterns, for the dimensions {} and {}",
                                    tensor.path, dimension, dimensions_[other]));
    }
    if (is_sharded && !tensor.shape.empty() && dimension >= std::ssize(tensor.shape)) {
      return ReportOnce(patterns_.all()[matches.front()].span,
                        fmt::format("`{}` has {}, so there is no dimension {}", tensor.path,
                                    Count(std::ssize(tensor.shape), "dimension"), dimension));
    }
    return static_cast<size_t>(dimension);
  }

  // PyTorch's fully_shard shards dimensions after the first only into equal parts.
  bool CheckEven(const TensorToShard& tensor, const DimensionPartition& before,
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
          "use a multiple, or choose another dimension under `dimensions`");
    }
    return true;
  }

  std::vector<int64_t> dimensions_;  // of each pattern
  TensorPatterns patterns_;
  const std::vector<int> axes_;
  const Span place_;
};

}  // namespace

extern const LanguageRow kFsdpLanguage = {
    .name = "fsdp",
    .description =
        "shards tensors that are not sharded yet, by their largest dimension (the first if equal), "
        "over `axis`, like FSDPv2 of PyTorch/XLA",
    .is_word = true,
    .read = Read<FsdpLanguage>,
};

extern const LanguageRow kFirstDivisibleLanguage = {
    .name = "first_divisible",
    .description =
        "shards tensors that are not sharded yet, by the first dimension that `axis` divides, like "
        "torchax",
    .is_word = true,
    .read = Read<FirstDivisibleLanguage>,
};

extern const LanguageRow kFullyShardLanguage = {
    .name = "fully_shard",
    .description =
        "shards all tensors further, by the first dimension over those `axes` that do not shard it "
        "yet, as fully_shard of PyTorch does after parallelize_module",
    .is_word = true,
    .read = Read<FullyShardLanguage>,
};

}  // namespace shardinit
