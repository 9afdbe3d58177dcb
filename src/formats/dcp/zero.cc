// Reads DeepSpeed's checkpoints: ZeRO's flat vectors of all ranks, and universal checkpoints. The
// tensors are the ones that DeepSpeed's `zero_to_fp32.py` makes, in the types of the files.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>

#include "base/error.h"
#include "base/parse_number.h"
#include "base/text.h"
#include "formats/dcp/flat.h"
#include "formats/dcp/saved.h"
#include "formats/input.h"
#include "report/text.h"

namespace shardinit {
namespace dcp {
namespace {

constexpr std::string_view kModelEnd = "_model_states.pt", kOptimizerEnd = "_optim_states.pt";
constexpr char kWholeModel[] = "mp_rank_00_model_states.pt";
constexpr char kScripts[] = "convert it with DeepSpeed's own scripts";
constexpr size_t kMostPieces = size_t{1} << 24;

template <typename... T>
void Require(bool is, const std::string& folder, std::string_view hint,
             fmt::format_string<T...> what, T&&... of) {
  if (is) return;
  throw Error(ExitCode::kRefused,
              fmt::format("cannot read `{}` as a checkpoint of DeepSpeed: {}", Escape(folder),
                          fmt::format(what, std::forward<T>(of)...)),
              std::string(hint));
}

// The paths of files by rank. A file for all ranks has the rank -1.
using RankFiles = std::map<int64_t, std::string>;
struct ZeroFiles {
  RankFiles models, optimizers;
  bool is_universal = false;
};

// Returns the rank in a name such as `bf16_zero_pp_rank_3_mp_rank_00_optim_states.pt`.
std::optional<int64_t> RankIn(std::string_view name, std::string_view end) {
  constexpr std::string_view kBegin = "zero_pp_rank_";
  if (name == kWholeModel) return -1;
  if (name.starts_with("bf16_")) name.remove_prefix(5);
  if (!name.starts_with(kBegin)) return std::nullopt;
  const std::string_view digits = name.substr(kBegin.size());
  const auto rank = ParseNumber<int64_t>(digits.substr(0, digits.find('_')));
  const bool fits =
      rank && *rank >= 0 && name == fmt::format("{}{}_mp_rank_00{}", kBegin, *rank, end);
  return fits ? rank : std::nullopt;
}

// Returns nullopt if the folder has no files of DeepSpeed.
std::optional<ZeroFiles> FindZeroFiles(const std::string& folder) {
  ZeroFiles files;
  for (const std::string& name : NamesIn(folder)) {
    const bool is_model = name.ends_with(kModelEnd);
    if (!is_model && !name.ends_with(kOptimizerEnd)) continue;
    const auto rank = RankIn(name, is_model ? kModelEnd : kOptimizerEnd);
    RankFiles& known = is_model ? files.models : files.optimizers;
    Require(rank && known.emplace(*rank, folder + "/" + name).second, folder, kScripts,
            "{} is of tensor, pipeline or expert parallelism, or of another run", Quote(name));
  }
  files.is_universal = files.optimizers.empty() && InputExists(folder + "/zero/optimizer_state.pt");
  const bool has_any = files.is_universal || !files.models.empty() || !files.optimizers.empty();
  return has_any ? std::optional(std::move(files)) : std::nullopt;
}

// Calls `visit` with each name and value of a dictionary.
template <typename F>
void ForEach(const Value* dict, const std::string& path, F visit) {
  if (dict == nullptr || dict->kind != Value::Kind::kDict) {
    Refuse(path, "its module, shapes or shared tensors are not a dictionary");
  }
  for (size_t i = 0; i + 1 < dict->items.size(); i += 2) {
    visit(TextOf(dict->items[i], path, "name"), *dict->items[i + 1]);
  }
}

const Value& NeedTensor(const Value* value, const std::string& path, const std::string& name) {
  if (value == nullptr || !IsTensor(*value)) Refuse(path, "it has no tensor {}", Quote(name));
  return *value;
}

class ZeroReader {
 public:
  ZeroReader(const std::string& folder, ZeroFiles files)
      : folder_(folder), files_(std::move(files)) {}

  Contents Read() {
    if (!files_.is_universal) ReadOptimizers();
    const bool is_split = stage_ == 3;
    Need(!files_.is_universal || files_.models.contains(-1),
         "its universal tensors are from stage 3, which flattens them");
    Need(!files_.models.empty() && files_.models.begin()->first == (is_split ? 0 : -1) &&
             files_.models.rbegin()->first == (is_split ? ranks() - 1 : -1) &&
             std::ssize(files_.models) == (is_split ? ranks() : 1),
         "it has {} files `*{}` instead of {}", files_.models.size(), kModelEnd,
         is_split ? "one for each rank" : kWholeModel);
    for (const auto& [rank, path] : files_.models) {
      if (rank > 0 && frozen_.empty()) break;
      ReadTorchFile(path, [&](const Value& root, const FindStorage& find) {
        if (rank <= 0) ReadModel(root, path, find);
        ReadFrozen(root, path, find);
      });
    }
    files_.is_universal ? PlaceUniversal() : is_split ? PlaceSplit() : PlaceJoined();
    for (const auto& [name, frozen] : frozen_) {
      if (is_split) Place(name, frozen.shape, frozen.parts, 0);
    }
    for (const auto& [alias, source] : shared_) {
      const auto found = contents_.tensors.find(source);
      if (found != contents_.tensors.end()) contents_.tensors[alias] = found->second;
    }
    return std::move(contents_);
  }

 private:
  using Parameter = std::pair<std::string, Shape>;

  int64_t ranks() const { return std::ssize(files_.optimizers); }

  template <typename... T>
  void Need(bool is, fmt::format_string<T...> what, T&&... of) const {
    Require(is, folder_, kScripts, what, std::forward<T>(of)...);
  }

  void ReadOptimizers() {
    for (const auto& [rank, path] : files_.optimizers) {
      ReadTorchFile(path, [&](const Value& root, const FindStorage& find) {
        RefuseDivided(root, path);
        ReadOptimizer(dcp::Need(root.Find("optimizer_state_dict"), path, "optimizer"), path, find);
      });
    }
    Need(files_.optimizers.rbegin()->first == ranks() - 1, "it lacks the file of a rank");
  }

  void ReadOptimizer(const Value& state, const std::string& path, const FindStorage& find) {
    const Value* stage = state.Find("zero_stage");
    // An enumeration is stored as a call with its number.
    if (stage != nullptr && stage->Maker().ends_with("ZeroStageEnum") && stage->At(1) != nullptr) {
      stage = stage->At(1)->At(0);
    }
    const int64_t number = NaturalOf(stage, path, "zero_stage");
    Need(number >= 1 && number <= 3 && (stage_ == 0 || number == stage_),
         "{} has the stage {} instead of {}", Quote(path), number,
         stage_ == 0 ? "1, 2 or 3" : fmt::to_string(stage_));
    stage_ = number;
    // Each group has a number of ranks if experts can have other ranks than the rest of the model.
    const Value& counts = dcp::Need(state.Find("partition_count"), path, "partition_count");
    const bool is_list = counts.kind == Value::Kind::kList && !counts.items.empty();
    for (size_t i = 0; i < (is_list ? counts.items.size() : 1); ++i) {
      const int64_t count = NaturalOf(is_list ? counts.At(i) : &counts, path, "partition_count");
      Need(count == ranks(), "it is of {} ranks, but has files of {}", count, ranks());
    }
    const char* const key = stage_ == 3 ? "fp32_flat_groups" : "single_partition_of_fp32_groups";
    const std::vector<Value*>& groups = dcp::Need(state.Find(key), path, key).items;
    const bool is_first = flat_.empty();
    if (stage_ == 3) flat_.emplace_back();
    if (stage_ < 3 && is_first) flat_.resize(groups.size());
    Need(stage_ == 3 || groups.size() == flat_.size(), "{} has {} groups instead of {}",
         Quote(path), groups.size(), flat_.size());
    for (size_t g = 0; g < groups.size(); ++g) {
      const Value& vector = NeedTensor(groups[g], path, key);
      (stage_ == 3 ? flat_.back() : flat_[g]).Append(LocateTensor(vector, key, path, find), path);
    }
    if (const Value* all = state.Find("param_alignment_paddings"); all != nullptr && is_first) {
      for (const Value* group : all->items) {
        paddings_.emplace_back();
        for (const Value* of : group->items) {
          paddings_.back().push_back(NaturalOf(of, path, "param_alignment_paddings"));
        }
      }
    }
    CountTensors(state, path, {groups.begin(), groups.end()}, &contents_.others["optimizer"]);
  }

  void ReadModel(const Value& root, const std::string& path, const FindStorage& find) {
    RefuseDivided(root, path);
    Need(root.Find("ds_autoep_layers") == nullptr && root.Find("autoep_layers") == nullptr,
         "its experts have other ranks than the rest of the model");
    for (const Value* shapes : dcp::Need(root.Find("param_shapes"), path, "param_shapes").items) {
      groups_.emplace_back();
      ForEach(shapes, path, [&](const std::string& name, const Value& shape) {
        Need(names_.insert(name).second, "{} has two shapes", Quote(name));
        groups_.back().emplace_back(name, ShapeOf(&shape, path, "param_shapes"));
      });
    }
    const Value* const frozen = root.Find("frozen_param_shapes");
    if (frozen != nullptr && frozen->kind != Value::Kind::kNone) {
      ForEach(frozen, path, [&](const std::string& name, const Value& shape) {
        Need(names_.insert(name).second, "{} has two shapes", Quote(name));
        frozen_[name].shape = ShapeOf(&shape, path, "frozen_param_shapes");
      });
    }
    ForEach(root.Find("shared_params"), path, [&](const std::string& alias, const Value& source) {
      shared_[alias] = TextOf(&source, path, "shared_params");
      if (names_.contains(shared_[alias])) names_.insert(alias);
    });
    // The rest of the module is buffers and, in stage 1, frozen parameters.
    const Value* const module = root.Find("module");
    ForEach(module, path, [&](const std::string& name, const Value& value) {
      if (names_.contains(name)) return;
      if (IsTensor(value)) return Add(name, LocateTensor(value, name, path, find));
      contents_.others["objects"].Add(PartEntry{.keys = {name}});
    });
    CountTensors(root, path, {module, root.Find("frozen_param_fragments")},
                 &contents_.others["run"]);
    if (contents_.others["run"].tensors == 0) contents_.others.erase("run");
  }

  // Frozen parameters are not in optimizers. In stage 3, each rank has a part of each.
  void ReadFrozen(const Value& root, const std::string& path, const FindStorage& find) {
    const Value* const fragments = root.Find("frozen_param_fragments");
    for (auto& [name, frozen] : frozen_) {
      const Value* const value = fragments != nullptr ? fragments->Find(name) : nullptr;
      TensorInFolder stored = LocateTensor(NeedTensor(value, path, name), name, path, find);
      Shape wanted = frozen.shape;
      if (stage_ == 3) wanted = {(ElementCount(wanted) + ranks() - 1) / ranks()};
      if (stored.shape != wanted) {
        Refuse(path, "{} has the shape {} instead of {}", Quote(name), InShape(stored.shape),
               InShape(wanted));
      }
      stage_ == 3 ? frozen.parts.Append(stored, path) : Add(name, std::move(stored));
    }
  }

  void Add(const std::string& name, TensorInFolder holding) {
    pieces_ += holding.pieces.size();
    Need(pieces_ <= kMostPieces, "its tensors have more than {} pieces", kMostPieces);
    Need(contents_.tensors.emplace(name, std::move(holding)).second, "it has {} twice",
         Quote(name));
  }

  // Adds a tensor whose elements are in a vector from `at` on.
  void Place(const std::string& name, const Shape& shape, const FlatVector& flat, int64_t at) {
    const int64_t count = ElementCount(shape);
    Need(at <= flat.size() && count <= flat.size() - at,
         "{} ends after the {} elements of its group", Quote(name), flat.size());
    TensorInFolder holding{NameOf(files_.models.begin()->second), flat.dtype(), shape, {}};
    flat.Place(at, count, 0, &holding);
    Add(name, std::move(holding));
  }

  // Stages 1 and 2 join the tensors of a group and split the vector evenly, without its padding.
  void PlaceJoined() {
    Need(groups_.size() == flat_.size() && (paddings_.empty() || paddings_.size() == flat_.size()),
         "its parameters have {} groups, its optimizer {} and its paddings {}", groups_.size(),
         flat_.size(), paddings_.size());
    for (size_t g = 0; g < groups_.size(); ++g) {
      int64_t at = 0;
      if (paddings_.empty()) paddings_.resize(groups_.size());
      paddings_[g].resize(groups_[g].size());
      for (size_t i = 0; i < groups_[g].size(); ++i) {
        const auto& [name, shape] = groups_[g][i];
        Place(name, shape, flat_[g], at);
        at += ElementCount(shape) + paddings_[g][i];
      }
      // The padding at the end is known only up to a multiple of this.
      const int64_t unit = 2 * ranks();
      Need((at + unit - 1) / unit == (flat_[g].size() + unit - 1) / unit,
           "group {} has {} elements instead of {}", g, flat_[g].size(), at);
    }
  }

  // Stage 3 splits each tensor evenly, with padding in the last parts.
  void PlaceSplit() {
    int64_t at = 0;
    for (const auto& group : groups_) {
      for (const auto& [name, shape] : group) {
        const int64_t count = ElementCount(shape), part = (count + ranks() - 1) / ranks();
        TensorInFolder holding{NameOf(files_.models.at(0)), flat_[0].dtype(), shape, {}};
        for (int64_t r = 0; r < ranks(); ++r) {
          const FlatVector& flat = flat_[static_cast<size_t>(r)];
          Need(part <= flat.size() - at, "{} ends after the {} elements of rank {}", Quote(name),
               flat.size(), r);
          flat.Place(at, std::clamp<int64_t>(count - r * part, 0, part), r * part, &holding);
        }
        Add(name, std::move(holding));
        at += part;
      }
    }
    for (const FlatVector& flat : flat_) {
      Need(at == flat.size(), "a rank has {} elements instead of {}", flat.size(), at);
    }
  }

  // Only trained tensors are taken from their files, because DeepSpeed rounds the others.
  void PlaceUniversal() {
    for (const auto& group : groups_) {
      for (const auto& [name, shape] : group) {
        Need(!name.empty() && name[0] != '.' && name.find_first_of({"/\0", 2}) == name.npos,
             "{} is not the name of a folder", Quote(name));
        const std::string path = fmt::format("{}/zero/{}/fp32.pt", folder_, name);
        ReadTorchFile(path, [&](const Value& root, const FindStorage& find) {
          const Value& value = NeedTensor(root.Find("param"), path, "param");
          TensorInFolder holding = LocateTensor(value, name, path, find);
          Need(holding.shape == shape, "{} has the shape {} instead of {}", Quote(name),
               InShape(holding.shape), InShape(shape));
          Add(name, std::move(holding));
        });
      }
    }
  }

  const std::string& folder_;
  const ZeroFiles files_;
  Contents contents_;
  int64_t stage_ = 0;             // 0 for universal checkpoints
  std::vector<FlatVector> flat_;  // of each group or, in stage 3, of each rank
  std::vector<std::vector<int64_t>> paddings_;
  std::vector<std::vector<Parameter>> groups_;
  struct Frozen {
    Shape shape;
    FlatVector parts;
  };
  std::map<std::string, Frozen> frozen_;
  std::map<std::string, std::string> shared_;
  std::set<std::string> names_;  // tensors that are not taken from the module
  size_t pieces_ = 0;
};

// Returns the folder of a run's newest checkpoint, which `latest` names, or else the folder itself.
std::string FindTag(const std::string& folder) {
  constexpr size_t kMost = 255;
  const std::string latest = folder + "/latest";
  std::string tag;
  if (InputExists(latest) && !IsInputFolder(latest) && InputSize(latest) <= int64_t{kMost}) {
    tag = ReadInput(latest, kMost);
    tag.resize(tag.find_last_not_of(" \n") + 1);
  }
  const bool is_name = !tag.empty() && tag[0] != '.' && tag.find_first_of({"/\0", 2}) == tag.npos;
  if (is_name && IsInputFolder(folder + "/" + tag)) return folder + "/" + tag;
  Require(!InputExists(folder + "/zero_to_fp32.py"), folder,
          "name the folder of a step, such as `global_step100`",
          "its `latest` does not name a folder in it");
  return folder;
}

std::optional<Contents> ReadZero(const std::string& given, const std::string& part) {
  const std::string folder = FindTag(given);
  std::optional<ZeroFiles> files = FindZeroFiles(folder);
  if (!files) return std::nullopt;
  const bool has_model = files->models.contains(-1);
  if (!files->is_universal && files->optimizers.empty()) {
    bool is_zero = !has_model;
    const std::string model = folder + "/" + kWholeModel;
    if (has_model) {
      ReadTorchFile(model, [&](const Value& root, const FindStorage&) {
        const Value* const shapes = root.Find("param_shapes");
        is_zero = shapes != nullptr && shapes->kind != Value::Kind::kNone;
      });
    }
    Require(!is_zero, folder,
            has_model ? "name its model file to read the model in the type of the run" : kScripts,
            "it has no files `*{}`", kOptimizerEnd);
    return ReadModelFile(model, part);
  }
  if (!part.empty() && part != ".") {
    throw Usage(fmt::format("`{}` has no part {} with tensors", Escape(folder), Quote(part)),
                fmt::format("leave out `{}`", kPartOption));
  }
  return ZeroReader(folder, *std::move(files)).Read();
}

}  // namespace
}  // namespace dcp

extern const FormatReader kZeroReader = {
    .what = "DeepSpeed files",
    .dtype = &ForeignNames::torch,
    .read = dcp::ReadZero,
};

}  // namespace shardinit
