// Reads folders of torch.distributed.checkpoint that anyone may have written. It trusts nothing in
// them before it is checked.
#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <string>
#include <unordered_map>
#include <utility>

#include "base/error.h"
#include "base/file.h"
#include "base/text.h"
#include "formats/dcp/archive.h"
#include "formats/dcp/saved.h"
#include "formats/foreign_names.h"
#include "formats/format.h"
#include "report/text.h"

namespace shardinit {
namespace dcp {
namespace {

constexpr char kMetadata[] = ".metadata";
constexpr size_t kMetadataLimit = size_t{256} << 20;
// The most bytes of an item's pickle.
constexpr int64_t kMostInText = 1 << 20;

const Value& Member(const Value* object, const char* name, const std::string& path) {
  const Value* const state = object != nullptr ? object->State() : nullptr;
  return Need(state != nullptr ? state->Find(name) : nullptr, path, fmt::format("`{}`", name));
}

// These return a member of an object.
const std::string& TextOf(const Value* object, const char* name, const std::string& path) {
  return TextOf(&Member(object, name, path), path, fmt::format("`{}`", name));
}
int64_t NaturalOf(const Value* object, const char* name, const std::string& path) {
  return NaturalOf(&Member(object, name, path), path, fmt::format("`{}`", name));
}

Shape ShapeOf(const Value* object, const char* name, const std::string& path) {
  return ShapeOf(&Member(object, name, path), path, fmt::format("`{}`", name));
}

// Returns where the elements of a chunk are: an item, which must be a tensor of that type and
// shape.
std::vector<FilePiece> PlacesOf(const Archive& archive, const DTypeInfo& dtype, const Box& box) {
  const std::string& path = archive.path();
  const auto need = [&](bool is, std::string_view what) {
    if (!is) Refuse(path, "{}", what);
  };
  const Archive::Entry* const text = archive.Find("/data.pkl");
  need(text != nullptr, "an item has no data.pkl");
  const Pickle pickle = ReadPickle(archive.Text(*text, kMostInText), path);
  need(IsTensor(*pickle.root), "an item is not a tensor");
  SavedTensor tensor = TensorOf(*pickle.root, path);
  const std::string_view torch = ForeignNamesOf(dtype.dtype).torch;
  need(tensor.dtype == torch, fmt::format("an item is not of the type {} that `{}` says, but {}",
                                          torch, kMetadata, Escape(tensor.dtype)));
  need(tensor.shape == box.shape,
       fmt::format("an item has another shape than its chunk: {}, not {}", InShape(tensor.shape),
                   InShape(box.shape)));
  if (const Archive::Entry* const order = archive.Find("/byteorder")) {
    need(archive.Text(*order, kMostInText) == "little", "its numbers are big-endian");
  }
  const Archive::Entry* const data = archive.Find("/data/" + tensor.storage);
  need(data != nullptr, fmt::format("it has no storage {}", Quote(tensor.storage)));
  tensor.storage_bytes = std::min(tensor.storage_bytes, data->size);
  return PiecesOf(tensor, dtype.bytes, box, path, archive.DataOf(*data), path);
}

// Returns a path within the folder: the name must not lead elsewhere.
std::string PathIn(const std::string& folder, const std::string& name) {
  const std::string parts = "/" + name + "/";
  if (name.empty() || parts.find("//") != parts.npos || parts.find("/../") != parts.npos ||
      name.find('\0') != name.npos) {
    Refuse(folder + "/" + kMetadata, "{} is not in the folder", Quote(name));
  }
  return folder + "/" + name;
}

// The places of chunks, by the name of their tensor and their offset in it.
using Places = std::map<std::pair<std::string, Shape>, const Value*>;

Places PlacesIn(const Value& root, const std::string& path) {
  Places places;
  const Value& storage = Member(&root, "storage_data", path);
  if (storage.kind != Value::Kind::kDict) Refuse(path, "its `storage_data` is not a dictionary");
  for (size_t i = 0; i + 1 < storage.items.size(); i += 2) {
    const Value* const index = storage.items[i];
    const Value* const state = index->State();
    const Value* const offset = state != nullptr ? state->Find("offset") : nullptr;
    // Objects have no offset.
    if (offset == nullptr || offset->kind == Value::Kind::kNone) continue;
    places[{TextOf(index, "fqn", path), ShapeOf(offset, path, "`offset`")}] = storage.items[i + 1];
  }
  return places;
}

Holding ReadTensor(const std::string& name, const Value& entry, const Places& places,
                   const std::string& folder) {
  const std::string path = folder + "/" + kMetadata;
  const Value* const properties = Member(&entry, "properties", path).State();
  const Value* const type = properties != nullptr ? properties->At(0) : nullptr;
  std::string_view type_name = Need(type, path, "dtype").text;
  if (type_name.starts_with("torch.")) type_name.remove_prefix(6);
  Holding holding{kMetadata, std::string(type_name), ShapeOf(&entry, "size", path), {}};
  const DTypeInfo* const dtype = FindDType(&ForeignNames::torch, type_name);
  // A tensor that no spec can ask for, or that is empty, has no chunks to read.
  if (dtype == nullptr || ElementCount(holding.shape) == 0) return holding;
  for (const Value* chunk : Member(&entry, "chunks", path).items) {
    Box box{ShapeOf(chunk, "offsets", path), ShapeOf(chunk, "sizes", path)};
    if (box.shape.size() != holding.shape.size() || box.offset.size() != holding.shape.size()) {
      Refuse(path, "a chunk of {} does not have as many dimensions as the tensor: {} at {}, and {}",
             Quote(name), InShape(box.shape), InShape(box.offset), InShape(holding.shape));
    }
    for (size_t d = 0; d < box.shape.size(); ++d) {
      if (box.offset[d] + box.shape[d] > holding.shape[d]) {
        Refuse(path, "a chunk of {} lies outside the tensor's shape: {} at {}, and {}", Quote(name),
               InShape(box.shape), InShape(box.offset), InShape(holding.shape));
      }
    }
    if (ElementCount(box.shape) == 0) continue;
    const auto place = places.find({name, box.offset});
    if (place == places.end()) {
      Refuse(path, "it lists no file for a chunk of {}, at {}", Quote(name), InShape(box.offset));
    }
    const Value* const info = place->second;
    const Value* const transforms =
        info->State() != nullptr ? info->State()->Find("transform_descriptors") : nullptr;
    if (transforms != nullptr && transforms->kind != Value::Kind::kNone) {
      Refuse(path, "a chunk of {} is transformed", Quote(name));
    }
    const std::string& file = TextOf(info, "relative_path", path);
    if (holding.pieces.empty()) holding.file = file;
    const Archive archive(PathIn(folder, file), NaturalOf(info, "offset", path),
                          NaturalOf(info, "length", path));
    std::vector<FilePiece> pieces = PlacesOf(archive, *dtype, box);
    std::move(pieces.begin(), pieces.end(), std::back_inserter(holding.pieces));
  }
  RequireWhole(name, holding, folder);
  return holding;
}

constexpr std::string_view kModel = "model", kModelPrefix = "model.";

constexpr std::string_view kOptimizers[] = {"optim", "optimizer", "optimizers", "opt_state"};
// These stand beside a model and its optimizer in the state of a run. A model may have such names
// itself, so that alone they are taken for the model.
constexpr std::string_view kBesideOptimizers[] = {
    "lr_scheduler", "lr_schedulers", "scheduler", "train_state", "dataloader", "rng",
    "rng_state",    "step",          "epoch",     "loss_scaler", "scaler",
};

template <size_t n>
bool IsOneOf(const std::string_view (&names)[n], std::string_view key) {
  return std::find(std::begin(names), std::end(names), key) != std::end(names);
}

// The first key of each name: `planner_data` knows where it ends, else it ends at the first dot.
class FirstKeys {
 public:
  FirstKeys(const Value& root, const Value& entries) {
    const Value* const state = root.State();
    planned_ = state != nullptr ? state->Find("planner_data") : nullptr;
    if (planned_ != nullptr && planned_->kind == Value::Kind::kDict) {
      for (size_t i = 0; i + 1 < planned_->items.size(); i += 2) {
        const Value* const first = planned_->items[i + 1]->At(0);
        const bool is_nested = planned_->items[i + 1]->At(1) != nullptr;
        if (first == nullptr || first->kind != Value::Kind::kText) continue;
        keys_.emplace(planned_->items[i]->text, Key{first->text, is_nested});
      }
    }
    bool all_of_run = true;
    for (size_t i = 0; i + 1 < entries.items.size(); i += 2) {
      has_optimizer_ |= IsOneOf(kOptimizers, KeyOf(entries.items[i]->text).text);
    }
    for (size_t i = 0; i + 1 < entries.items.size(); i += 2) {
      const std::string& name = entries.items[i]->text;
      const Key key = KeyOf(name);
      const bool is_model = key.text == kModel && key.is_nested;
      has_model_ |= is_model && keys_.contains(name);
      if (is_model) continue;
      all_of_run &= IsOfRun(key.text);
      has_others_ = true;
    }
    // Without that knowledge, a model is told from what is beside it if nothing else is there.
    has_model_ |= has_others_ && all_of_run && keys_.empty();
  }

  // Tells whether the model is what stands under `model`.
  bool has_model() const { return has_model_; }
  // Returns the key under which an entry is that is not the model; empty: it is the model.
  std::string OtherOf(const std::string& name) const {
    const Key key = KeyOf(name);
    if (has_model_) return key.text == kModel ? "" : key.text;
    return IsOfRun(key.text) ? key.text : "";
  }

 private:
  struct Key {
    std::string text;
    bool is_nested;
  };

  bool IsOfRun(std::string_view key) const {
    return has_optimizer_ && (IsOneOf(kOptimizers, key) || IsOneOf(kBesideOptimizers, key));
  }

  Key KeyOf(const std::string& name) const {
    const auto known = keys_.find(name);
    if (known != keys_.end()) return known->second;
    const size_t dot = name.find('.');
    return {name.substr(0, dot), dot != name.npos};
  }

  const Value* planned_;
  std::unordered_map<std::string, Key> keys_;
  bool has_model_ = false, has_others_ = false, has_optimizer_ = false;
};

std::optional<Contents> ReadFolder(const std::string& folder) {
  const std::string path = folder + "/" + kMetadata;
  std::string text;
  if (!ReadInputIfExists(path, kMetadataLimit, &text)) return std::nullopt;
  const Pickle pickle = ReadPickle(text, path);
  const Value& root = *pickle.root;
  const Places places = PlacesIn(root, path);
  const Value& entries = Member(&root, "state_dict_metadata", path);
  if (entries.kind != Value::Kind::kDict)
    Refuse(path, "its `state_dict_metadata` is not a dictionary");
  Contents contents;
  const FirstKeys keys(root, entries);
  if (keys.has_model()) contents.prefix = kModelPrefix;
  for (size_t i = 0; i + 1 < entries.items.size(); i += 2) {
    const std::string& name = TextOf(entries.items[i], path, "names");
    const Value& entry = *entries.items[i + 1];
    const bool is_state = name.find("._extra_state") != name.npos;
    // An entry that is no tensor is an object, which no spec has.
    const bool is_tensor = !is_state && entry.Maker().ends_with(".TensorStorageMetadata");
    std::string other = keys.OtherOf(name);
    if (other.empty() && !is_tensor) other = is_state ? "_extra_state" : "objects";
    if (other.empty()) {
      contents.tensors[name] = ReadTensor(name, entry, places, folder);
    } else {
      ++contents.others[other];
    }
  }
  return contents;
}

}  // namespace

}  // namespace dcp

extern const FormatReader kDcpReader = {
    .what = "DCP files",
    .dtype = &ForeignNames::torch,
    .read = dcp::ReadFolder,
};

}  // namespace shardinit
