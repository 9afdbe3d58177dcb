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
#include "formats/dcp/saved.h"
#include "formats/dcp/zero_files.h"
#include "formats/input.h"
#include "report/text.h"

namespace shardinit {
namespace dcp {
namespace {

constexpr size_t kMostPieces = size_t{1} << 22;

// Returns the place of a tensor, which must have the shape unless that is null.
TensorInFolder Locate(const Value* value, const Shape* shape, const std::string& name,
                      const std::string& path, const FindStorage& find) {
  if (value == nullptr || !IsTensor(*value)) Refuse(path, "it has no tensor {}", Quote(name));
  TensorInFolder stored = LocateTensor(*value, name, path, find);
  if (shape == nullptr || stored.shape == *shape) return stored;
  Refuse(path, "{} has the shape {} instead of {}", Quote(name), InShape(stored.shape),
         InShape(*shape));
}

// A vector that joins many tensors. It is stored in runs.
struct FlatVector {
  std::string dtype = {};
  int64_t element_bytes = 0;
  std::map<int64_t, FilePiece> runs = {};  // by the position after each
  int64_t size() const { return runs.empty() ? 0 : runs.rbegin()->first; }
};

void Append(const TensorInFolder& stored, const std::string& path, FlatVector* flat) {
  const DTypeInfo* const dtype = FindDType(&ForeignNames::torch, stored.dtype);
  if (dtype == nullptr || stored.shape.size() != 1 ||
      (!flat->dtype.empty() && stored.dtype != flat->dtype) ||
      (!stored.pieces.empty() && !stored.pieces[0].loops.empty())) {
    Refuse(path, "a part of a flat vector of {} is {} {} or not contiguous", flat->dtype,
           stored.dtype, InShape(stored.shape));
  }
  flat->dtype = stored.dtype;
  flat->element_bytes = dtype->bytes;
  if (!stored.pieces.empty()) flat->runs[flat->size() + stored.shape[0]] = stored.pieces[0];
}

// Makes `count` elements of the vector, from `at` on, the tensor's elements from `first` on.
void Place(const FlatVector& flat, int64_t at, int64_t count, int64_t first,
           TensorInFolder* tensor) {
  for (auto run = flat.runs.upper_bound(at); count > 0;) {
    const auto& [end, piece] = *run;
    Box box = FirstBox(tensor->shape, first, std::min(count, end - at));
    const int64_t taken = ElementCount(box.shape);
    const int64_t before = at - (end - piece.box.shape[0]);
    tensor->pieces.push_back(
        {std::move(box), piece.file, piece.offset + before * flat.element_bytes});
    at += taken;
    first += taken;
    count -= taken;
    if (at == end) ++run;
  }
}

class ZeroReader {
 public:
  ZeroReader(const std::string& folder, ZeroFiles files)
      : folder_(folder), files_(std::move(files)), ranks_(std::ssize(files_.optimizers)) {}

  Contents Read() {
    for (const auto& file : files_.optimizers) {
      Need(file.first < ranks(), "it lacks the file of a rank");
      const std::string& path = file.second;
      ReadTorchFile(path, [&](const Value& root, const FindStorage& find) {
        RefuseDivided(root, path);
        ReadOptimizer(dcp::Need(root.Find("optimizer_state_dict"), path, "optimizer"), path, find);
      });
    }
    const bool is_whole = files_.models.contains(-1);
    Need(!files_.models.empty(), "it lacks the files `*{}`, which have the shapes of tensors",
         kZeroModelEnd);
    if (files_.is_universal && !is_whole) stage_ = 3;
    const bool is_split = stage_ == 3;
    if (files_.is_universal) ranks_ = std::ssize(files_.models);
    Need(is_whole != is_split && std::ssize(files_.models) == (is_split ? ranks() : 1) &&
             files_.models.rbegin()->first == (is_split ? ranks() - 1 : -1),
         "it has other files `*{}` than stage {} has", kZeroModelEnd, stage_);
    for (const auto& file : files_.models) {
      const int64_t rank = file.first;
      const std::string& path = file.second;
      ReadTorchFile(path, [&](const Value& root, const FindStorage& find) {
        rank <= 0 ? ReadModel(root, path, find) : CompareBuffers(root, path, find);
        ReadFrozen(root, path, find);
      });
    }
    files_.is_universal ? PlaceUniversal() : is_split ? PlaceSplit() : PlaceJoined();
    for (auto& [name, tensor] : experts_.tensors) {  // frozen experts
      if (!contents_.tensors.contains(name)) Add(name, std::move(tensor));
    }
    for (const auto& [name, frozen] : frozen_) {
      if (is_split) AddFrom(frozen.second, 0, name, frozen.first);
    }
    for (const auto& [alias, source] : shared_) {
      const auto found = contents_.tensors.find(source);
      if (alias == source || found == contents_.tensors.end()) continue;
      contents_.tensors.erase(alias);
      Add(alias, found->second);
    }
    return std::move(contents_);
  }

 private:
  int64_t ranks() const { return ranks_; }

  template <typename... T>
  void Need(bool is, fmt::format_string<T...> what, T&&... of) const {
    if (!is) RequireZero(false, folder_, fmt::format(what, std::forward<T>(of)...));
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
    // Each group has a number of ranks: an expert is on fewer ranks than the rest of the model.
    const Value& counts = dcp::Need(state.Find("partition_count"), path, "partition_count");
    const bool is_list = counts.kind == Value::Kind::kList && !counts.items.empty();
    std::vector<int64_t> owners;
    for (size_t i = 0; i < (is_list ? counts.items.size() : 1); ++i) {
      owners.push_back(NaturalOf(is_list ? counts.At(i) : &counts, path, "partition_count"));
    }
    const int64_t all = std::ranges::max(owners);
    Need(all == ranks(), "it is of {} ranks, but has files of {}", all, ranks());
    const char* const key = stage_ == 3 ? "fp32_flat_groups" : "single_partition_of_fp32_groups";
    const std::vector<Value*>& groups = dcp::Need(state.Find(key), path, key).items;
    const bool is_first = owners_.empty();
    if (is_first) owners_ = owners;
    Need(owners == owners_, "{} has other groups than the first rank", Quote(path));
    parts_.emplace_back();
    for (const Value* group : groups) {
      parts_.back().push_back(Locate(group, nullptr, key, path, find));
    }
    if (stage_ == 3) {
      flat_.emplace_back();
      for (const TensorInFolder& part : parts_.back()) Append(part, path, &flat_.back());
    }
    Need(stage_ == 3 || groups.size() == parts_[0].size(), "{} has {} groups instead of {}",
         Quote(path), groups.size(), parts_[0].size());
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
    for (const char* key : {"ds_autoep_layers", "autoep_layers"}) {
      const Value* const layers = root.Find(key);
      Need(layers == nullptr || layers->kind == Value::Kind::kNone,
           "AutoEP placed its experts, as `{}` describes", key);
    }
    if (!files_.is_universal) experts_ = ReadExperts(folder_, files_, root.Find("num_experts"));
    const Value* const order =
        MemberOf(root.Find("ds_config"), "use_data_before_expert_parallelism");
    has_data_first_ = order != nullptr && order->number != 0;
    for (const Value* shapes : dcp::Need(root.Find("param_shapes"), path, "param_shapes").items) {
      groups_.emplace_back();
      ForEach(shapes, path, "param_shapes", [&](const std::string& name, const Value& shape) {
        Need(names_.insert(name).second, "{} has two shapes", Quote(name));
        groups_.back().emplace_back(name, ShapeOf(&shape, path, "param_shapes"));
      });
    }
    const Value* const frozen = root.Find("frozen_param_shapes");
    if (frozen != nullptr && frozen->kind != Value::Kind::kNone) {
      ForEach(frozen, path, "frozen_param_shapes",
              [&](const std::string& name, const Value& shape) {
                Need(names_.insert(name).second, "{} has two shapes", Quote(name));
                frozen_[name].first = ShapeOf(&shape, path, "frozen_param_shapes");
              });
    }
    ForEach(root.Find("shared_params"), path, "shared_params",
            [&](const std::string& alias, const Value& source) {
              shared_[alias] = TextOf(&source, path, "shared_params");
              if (names_.contains(shared_[alias])) names_.insert(alias);
            });
    // The rest of the module is buffers and, in stage 1, frozen parameters.
    ForEach(root.Find("module"), path, "module", [&](const std::string& name, const Value& value) {
      if (names_.contains(name)) return;
      if (IsTensor(value)) return Add(name, LocateTensor(value, name, path, find));
      contents_.others["objects"].Add(PartEntry{.keys = {name}});
    });
  }

  // The rest of the module is replicated in stage 3.
  void CompareBuffers(const Value& root, const std::string& path, const FindStorage& find) const {
    ForEach(root.Find("module"), path, "module", [&](const std::string& name, const Value& value) {
      const auto first = contents_.tensors.find(name);
      if (names_.contains(name) || first == contents_.tensors.end()) return;
      const Shape& shape = first->second.shape;
      RequireReplica(name, first->second, WholeOf(shape), Locate(&value, &shape, name, path, find));
    });
  }

  // Frozen parameters are not in optimizers. In stage 3, each rank has a part of each.
  void ReadFrozen(const Value& root, const std::string& path, const FindStorage& find) {
    const Value* const fragments = root.Find("frozen_param_fragments");
    for (auto& [name, frozen] : frozen_) {
      Shape shape = frozen.first;
      if (stage_ == 3) shape = {(ElementCount(shape) + ranks() - 1) / ranks()};
      const Value* const value = fragments != nullptr ? fragments->Find(name) : nullptr;
      TensorInFolder stored = Locate(value, &shape, name, path, find);
      stage_ == 3 ? Append(stored, path, &frozen.second) : Add(name, std::move(stored));
    }
  }

  void Add(const std::string& name, TensorInFolder holding) {
    pieces_ += holding.pieces.size();
    Need(pieces_ <= kMostPieces, "its tensors have more than {} pieces", kMostPieces);
    Need(contents_.tensors.emplace(name, std::move(holding)).second, "it has {} twice",
         Quote(name));
  }

  void AddFrom(const FlatVector& flat, int64_t at, const std::string& name, const Shape& shape) {
    const int64_t count = ElementCount(shape);
    Need(at <= flat.size() && count <= flat.size() - at,
         "{} ends after the {} elements of its group", Quote(name), flat.size());
    TensorInFolder holding{NameOf(files_.models.begin()->second), flat.dtype, shape, {}};
    Place(flat, at, count, 0, &holding);
    Add(name, std::move(holding));
  }

  // Stages 1 and 2 join the tensors of a group and split the vector evenly, without its padding.
  void PlaceJoined() {
    const size_t groups = parts_[0].size();
    Need(owners_.size() == 1 || owners_.size() == groups, "it has {} groups instead of {}", groups,
         owners_.size());
    Need(groups_.size() == groups && (paddings_.empty() || paddings_.size() == groups),
         "its parameters have {} groups, its optimizer {} and its paddings {}", groups_.size(),
         groups, paddings_.size());
    paddings_.resize(groups);
    for (size_t g = 0; g < groups; ++g) {
      paddings_[g].resize(groups_[g].size());
      const int64_t owners = owners_[std::min(g, owners_.size() - 1)];
      Need(owners > 0 && ranks() % owners == 0, "group {} is of {} of {} ranks", g, owners,
           ranks());
      const int64_t degree = ranks() / owners;
      for (int64_t e = 0; e < degree; ++e) {
        FlatVector flat;
        for (int64_t i = 0; i < owners; ++i) {
          const int64_t rank = has_data_first_ ? e * owners + i : i * degree + e;
          Append(parts_[static_cast<size_t>(rank)][g], files_.optimizers.at(rank), &flat);
        }
        PlaceGroup(g, flat, e, owners);
      }
    }
  }

  // Places the tensors of a group that one expert-parallel rank has. `owners` ranks share them.
  void PlaceGroup(size_t g, const FlatVector& flat, int64_t expert_rank, int64_t owners) {
    const int64_t degree = ranks() / owners;
    int64_t at = 0;
    for (size_t i = 0; i < groups_[g].size(); ++i) {
      const auto& [name, shape] = groups_[g][i];
      const std::string whole =
          degree == 1 ? name : ExpertName(folder_, experts_, name, expert_rank, degree);
      const auto expert = experts_.tensors.find(whole);
      Need(degree == 1 || (expert != experts_.tensors.end() && expert->second.shape == shape),
           "the files of experts lack {} {}", Quote(whole), InShape(shape));
      AddFrom(flat, at, whole, shape);
      at += ElementCount(shape) + paddings_[g][i];
    }
    // The padding at the end is known only up to a multiple of this.
    const int64_t unit = 2 * owners;
    Need((at + unit - 1) / unit == (flat.size() + unit - 1) / unit,
         "group {} has {} elements instead of {}", g, flat.size(), at);
  }

  // Stage 3 splits each tensor evenly, with padding in the last parts.
  void PlaceSplit() {
    int64_t at = 0;
    for (const auto& group : groups_) {
      for (const auto& [name, shape] : group) {
        const int64_t count = ElementCount(shape), part = (count + ranks() - 1) / ranks();
        TensorInFolder holding{NameOf(files_.models.at(0)), flat_[0].dtype, shape, {}};
        for (int64_t r = 0; r < ranks(); ++r) {
          const FlatVector& flat = flat_[static_cast<size_t>(r)];
          Need(flat.dtype == holding.dtype, "rank {} has {} instead of {}", r, flat.dtype,
               holding.dtype);
          Need(part <= flat.size() - at, "{} ends after the {} elements of rank {}", Quote(name),
               flat.size(), r);
          Place(flat, at, std::clamp<int64_t>(count - r * part, 0, part), r * part, &holding);
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
      for (const auto& tensor : group) {
        const std::string& name = tensor.first;
        Need(IsFolderName(name), "{} is not the name of a folder", Quote(name));
        const std::string path = fmt::format("{}/zero/{}/fp32.pt", folder_, name);
        ReadTorchFile(path, [&](const Value& root, const FindStorage& find) {
          if (stage_ < 3) {
            return Add(name, Locate(root.Find("param"), &tensor.second, name, path, find));
          }
          FlatVector flat;  // without a shape
          const Shape shape = {ElementCount(tensor.second)};
          Append(Locate(&root, &shape, name, path, find), path, &flat);
          AddFrom(flat, 0, name, tensor.second);
        });
      }
    }
  }

  const std::string& folder_;
  const ZeroFiles files_;
  Contents contents_;
  int64_t ranks_;
  int64_t stage_ = 0;                               // 0 for universal checkpoints of stages 1 and 2
  std::vector<FlatVector> flat_;                    // of each rank in stage 3
  std::vector<std::vector<TensorInFolder>> parts_;  // of each rank: a part of each group
  std::vector<int64_t> owners_;                     // of each group: the ranks that share a tensor
  ZeroExperts experts_;
  bool has_data_first_ = false;  // if ranks with the same experts are neighbours
  std::vector<std::vector<int64_t>> paddings_;
  std::vector<std::vector<std::pair<std::string, Shape>>> groups_;
  std::map<std::string, std::pair<Shape, FlatVector>> frozen_;
  std::map<std::string, std::string> shared_;
  std::set<std::string> names_;  // tensors that are not taken from the module
  size_t pieces_ = 0;
};

std::optional<Contents> ReadZero(const std::string& given, const std::string& part) {
  const std::string folder = FindTag(given);
  std::optional<ZeroFiles> files = FindZeroFiles(folder);
  if (!files) return std::nullopt;
  if (!files->is_universal && files->optimizers.empty()) {
    const std::string model = folder + "/" + kZeroModel;
    bool is_zero = !files->models.contains(-1);
    ZeroExperts experts;
    const auto read = [&](const Value& root, const FindStorage&) {
      const Value* const shapes = root.Find("param_shapes");
      is_zero = shapes != nullptr && shapes->kind != Value::Kind::kNone;
      if (!is_zero) experts = ReadExperts(folder, *files, root.Find("num_experts"));
    };
    if (!is_zero) ReadTorchFile(model, read);
    RequireZero(!is_zero, folder, fmt::format("it has no files `*{}`", kZeroOptimizerEnd),
                "name a model file to read the model in the type of the run");
    Contents contents = ReadModelFile(model, part);
    if (contents.part == "module" || contents.part.empty()) {
      for (auto& [name, tensor] : experts.tensors) contents.tensors["module." + name] = tensor;
    }
    return contents;
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
