#include "formats/dcp/zero_files.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "base/parse_number.h"
#include "base/text.h"
#include "formats/input.h"
#include "report/text.h"

namespace shardinit::dcp {
namespace {

constexpr std::string_view kEndOfRank = "_mp_rank_00";
constexpr std::string_view kInExperts = ".deepspeed_moe.experts.deepspeed_experts.";

// Splits `a.3.b` at the number after `.deepspeed_experts.`: the layer's name, the number, the end.
struct ExpertKey {
  std::string layer;
  int64_t number;
  std::string_view end;
};
std::optional<ExpertKey> SplitExpert(std::string_view name) {
  const size_t at = name.find(kInExperts);
  if (at == name.npos) return std::nullopt;
  const std::string_view rest = name.substr(at + kInExperts.size());
  const size_t dot = std::min(rest.find('.'), rest.size());
  const auto number = ParseNumber<uint32_t>(rest.substr(0, dot));
  if (!number) return std::nullopt;
  return ExpertKey{std::string(name.substr(0, at + kInExperts.size())), *number, rest.substr(dot)};
}

// Returns the number between `begin` and the rank in a name such as
// `zero_pp_rank_3_mp_rank_00_optim_states.pt`.
std::optional<int64_t> RankIn(std::string_view name, std::string_view begin, std::string_view end) {
  if (!name.starts_with(begin)) return std::nullopt;
  const std::string_view digits = name.substr(begin.size());
  const auto rank = ParseNumber<uint32_t>(digits.substr(0, digits.find('_')));
  if (!rank || name != fmt::format("{}{}{}{}", begin, *rank, kEndOfRank, end)) return std::nullopt;
  return *rank;
}

// Adds a file to its kind. Returns false if the name or another file is of no known run.
bool AddFile(const std::string& name, const std::string& path, ZeroFiles* files) {
  const bool is_model = name.ends_with(kZeroModelEnd);
  const std::string_view end = is_model ? kZeroModelEnd : kZeroOptimizerEnd;
  RankFiles& known = is_model ? files->models : files->optimizers;
  if (name == kZeroModel) return known.emplace(-1, path).second;
  constexpr std::string_view kLayer = "layer_", kExpert = "_expert_";
  if (const size_t at = name.find(kExpert); is_model && at != name.npos) {
    const auto expert = RankIn(std::string_view(name).substr(at), kExpert, end);
    const auto layer = ParseNumber<uint32_t>(
        std::string_view(name).substr(0, at).substr(std::min(at, kLayer.size())));
    return expert && layer && name.starts_with(fmt::format("{}{}_", kLayer, *layer)) &&
           files->experts.emplace(std::pair(*layer, *expert), path).second;
  }
  if (const auto rank = RankIn(name, "expp_rank_", end); rank && !is_model) {
    return files->expert_optimizers.emplace(*rank, path).second;
  }
  const auto rank = RankIn(name.starts_with("bf16_") ? std::string_view(name).substr(5) : name,
                           "zero_pp_rank_", end);
  return rank && known.emplace(*rank, path).second;
}

}  // namespace

void RequireZero(bool is, const std::string& folder, const std::string& what,
                 const std::string& hint) {
  if (is) return;
  throw Error(
      ExitCode::kRefused,
      fmt::format("cannot read `{}` as a checkpoint of DeepSpeed: {}", Escape(folder), what), hint);
}

bool IsFolderName(std::string_view name) {
  return !name.empty() && name[0] != '.' && name.find_first_of({"/\0", 2}) == name.npos;
}

std::optional<ZeroFiles> FindZeroFiles(const std::string& folder) {
  ZeroFiles files;
  for (const std::string& name : NamesIn(folder)) {
    if (!name.ends_with(kZeroModelEnd) && !name.ends_with(kZeroOptimizerEnd)) continue;
    RequireZero(AddFile(name, folder + "/" + name, &files), folder,
                Quote(name) + " is of tensor or pipeline parallelism, or of another run");
  }
  files.is_universal = files.optimizers.empty() && InputExists(folder + "/zero/optimizer_state.pt");
  if (files.models.empty() && files.optimizers.empty() && files.experts.empty() &&
      !files.is_universal) {
    return std::nullopt;
  }
  return files;
}

std::string FindTag(const std::string& folder) {
  constexpr int64_t kMost = 255;
  const std::string latest = folder + "/latest";
  if (InputExists(latest) && !IsInputFolder(latest) && InputSize(latest) <= kMost) {
    std::string tag = ReadInput(latest, kMost);
    tag.resize(tag.find_last_not_of(" \n") + 1);
    if (IsFolderName(tag) && IsInputFolder(folder + "/" + tag)) return folder + "/" + tag;
  }
  RequireZero(!InputExists(folder + "/zero_to_fp32.py"), folder,
              "its `latest` does not name a folder in it",
              "name the folder of a step, such as `global_step100`");
  return folder;
}

ZeroExperts ReadExperts(const std::string& folder, const ZeroFiles& files, const Value* counts) {
  ZeroExperts experts;
  const bool has_counts = counts != nullptr && counts->kind == Value::Kind::kList;
  const int64_t layers = has_counts ? std::ssize(counts->items) : 0;
  int64_t all = 0;
  for (int64_t i = 0; i < layers; ++i) {
    const int64_t count = NaturalOf(counts->At(static_cast<size_t>(i)), folder, "num_experts");
    RequireZero(count <= std::ssize(files.experts), folder,
                fmt::format("layer {} has {} experts, but the folder has {} files of experts", i,
                            count, files.experts.size()));
    for (int64_t e = 0; e < count; ++e) {
      RequireZero(files.experts.contains({i, e}), folder,
                  fmt::format("`layer_{}_expert_{}_mp_rank_00_model_states.pt` is missing", i, e));
    }
    all += count;
  }
  RequireZero(all == std::ssize(files.experts), folder,
              fmt::format("it has {} files of experts instead of {}", files.experts.size(), all));
  for (const auto& file : files.experts) {
    const std::string& path = file.second;
    ReadTorchFile(path, [&](const Value& root, const FindStorage& find) {
      ForEach(&root, path, "experts", [&](const std::string& name, const Value& value) {
        const auto key = SplitExpert(name);
        if (!key || key->number != file.first.second || !IsTensor(value)) {
          Refuse(path, "{} is not a tensor of expert {}", Quote(name), file.first.second);
        }
        experts.counts[key->layer] =
            NaturalOf(counts->At(static_cast<size_t>(file.first.first)), folder, "num_experts");
        const bool is_new =
            experts.tensors.emplace(name, LocateTensor(value, name, path, find)).second;
        if (!is_new) Refuse(path, "another file has {}, too", Quote(name));
      });
    });
  }
  return experts;
}

std::string ExpertName(const std::string& folder, const ZeroExperts& experts,
                       const std::string& name, int64_t rank, int64_t degree) {
  const auto key = SplitExpert(name);
  const auto count = key ? experts.counts.find(key->layer) : experts.counts.end();
  const bool is_expert = count != experts.counts.end() && count->second % degree == 0 &&
                         key->number < count->second / degree;
  RequireZero(is_expert, folder,
              fmt::format("{} is not an expert of {} ranks", Quote(name), degree));
  return fmt::format("{}{}{}", key->layer, rank * (count->second / degree) + key->number, key->end);
}

}  // namespace shardinit::dcp
