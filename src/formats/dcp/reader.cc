// Reads untrusted folders of torch.distributed.checkpoint. Checks everything before trusting it.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/text.h"
#include "formats/dcp/archive.h"
#include "formats/dcp/saved.h"
#include "formats/foreign_names.h"
#include "formats/format.h"
#include "formats/parts.h"
#include "formats/safetensors/file.h"
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

// Returns where the elements of a chunk are. The chunk's item must be a tensor of this type and
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
  need(tensor.dtype == torch, fmt::format("an item must be of the type {} of `{}`, but is {}",
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

// Returns a path within the folder: the name must not refer to files elsewhere.
std::string PathIn(const std::string& folder, const std::string& name) {
  const std::string parts = "/" + name + "/";
  if (name.empty() || parts.find("//") != parts.npos || parts.find("/../") != parts.npos ||
      name.find('\0') != name.npos) {
    Refuse(folder + "/" + kMetadata, "{} is not in the folder", Quote(name));
  }
  return folder + "/" + name;
}

// The places of chunks, by the name of the tensor and the chunk's offset in it.
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

std::string DTypeOf(const Value& entry, const std::string& path) {
  const Value* const properties = Member(&entry, "properties", path).State();
  const Value* const type = properties != nullptr ? properties->At(0) : nullptr;
  std::string_view name = Need(type, path, "dtype").text;
  if (name.starts_with("torch.")) name.remove_prefix(6);
  return std::string(name);
}

// The files that FileSystemWriter writes with SerializationFormat.SAFETENSORS. Only their headers,
// not `.metadata`, have the places of chunks.
class SafetensorsFiles {
 public:
  // Returns null if the file is not a safetensors file.
  const std::vector<safetensors::Entry>* Find(const std::string& path) {
    const auto [file, is_new] = files_.try_emplace(path);
    if (is_new) {
      char begin[10];
      const bool is_long = InputFile(path).TryRead(0, sizeof begin, begin);
      // Archives have zeros instead of the brace.
      safetensors::Metadata metadata;
      if (is_long && begin[8] == '{') file->second = safetensors::ReadHeader(path, &metadata);
    }
    return file->second ? &*file->second : nullptr;
  }

 private:
  std::map<std::string, std::optional<std::vector<safetensors::Entry>>> files_;
};

FilePiece PlaceIn(const std::vector<safetensors::Entry>& entries, const std::string& name,
                  const DTypeInfo& dtype, const Box& box, const std::string& path) {
  for (const safetensors::Entry& entry : entries) {
    if (entry.name != name || entry.box.offset != box.offset) continue;
    if (entry.dtype != ForeignNamesOf(dtype.dtype).safetensors || entry.box.shape != box.shape) {
      Refuse(path, "{} is {} {}, but {} {} in `{}`", Quote(name), Escape(entry.dtype),
             InShape(entry.box.shape), ForeignNamesOf(dtype.dtype).safetensors, InShape(box.shape),
             kMetadata);
    }
    return {box, path, entry.offset};
  }
  Refuse(path, "it has no chunk of {} at {}", Quote(name), InShape(box.offset));
}

TensorInFolder ReadTensor(const std::string& name, const Value& entry, const Places& places,
                          const std::string& folder, SafetensorsFiles* safetensors) {
  const std::string path = folder + "/" + kMetadata;
  TensorInFolder holding{kMetadata, DTypeOf(entry, path), ShapeOf(&entry, "size", path), {}};
  const DTypeInfo* const dtype = FindDType(&ForeignNames::torch, holding.dtype);
  // A spec cannot ask for an unknown type, and an empty tensor has no chunks to read.
  if (dtype == nullptr || ElementCount(holding.shape) == 0) return holding;
  for (const Value* chunk : Member(&entry, "chunks", path).items) {
    Box box{ShapeOf(chunk, "offsets", path), ShapeOf(chunk, "sizes", path)};
    // PyTorch ignores a chunk without elements, wherever it is.
    if (ElementCount(box.shape) == 0) continue;
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
    const std::string in = PathIn(folder, file);
    if (const auto* const entries = safetensors->Find(in)) {
      holding.pieces.push_back(PlaceIn(*entries, name, *dtype, box, in));
      continue;
    }
    const Archive archive(in, NaturalOf(info, "offset", path), NaturalOf(info, "length", path));
    std::vector<FilePiece> pieces = PlacesOf(archive, *dtype, box);
    std::move(pieces.begin(), pieces.end(), std::back_inserter(holding.pieces));
  }
  RequireWhole(name, holding, folder);
  return holding;
}

// Returns the keys of each entry's name: `planner_data` lists them, or else dots separate them.
class KeysOfNames {
 public:
  explicit KeysOfNames(const Value& root) {
    const Value* const state = root.State();
    const Value* const planned = state != nullptr ? state->Find("planner_data") : nullptr;
    if (planned == nullptr || planned->kind != Value::Kind::kDict) return;
    for (size_t i = 0; i + 1 < planned->items.size(); i += 2) {
      std::vector<std::string> keys;
      for (const Value* key : planned->items[i + 1]->items) {
        keys.push_back(key->kind == Value::Kind::kInt ? fmt::to_string(key->number) : key->text);
      }
      // The tensor is read and reported under the name, so the keys must match it.
      const std::string& name = planned->items[i]->text;
      if (fmt::to_string(fmt::join(keys, ".")) == name) keys_.emplace(name, std::move(keys));
    }
  }

  KeyOrigin origin() const { return keys_.empty() ? KeyOrigin::kDots : KeyOrigin::kStored; }
  std::vector<std::string> Of(const std::string& name) const {
    const auto known = keys_.find(name);
    return known != keys_.end() ? known->second : SplitAtDots(name);
  }

 private:
  std::unordered_map<std::string, std::vector<std::string>> keys_;
};

PartEntry EntryOf(const Value& value, std::vector<std::string> keys, const std::string& path) {
  if (!value.Maker().ends_with(".TensorStorageMetadata")) return {.keys = std::move(keys)};
  return TensorEntry(std::move(keys), ShapeOf(&value, "size", path),
                     FindDType(&ForeignNames::torch, DTypeOf(value, path)));
}

std::optional<Contents> ReadFolder(const std::string& folder, const std::string& part) {
  const std::string path = folder + "/" + kMetadata;
  std::string text;
  if (!ReadInputIfExists(path, kMetadataLimit, &text)) return std::nullopt;
  const Pickle pickle = ReadPickle(text, path);
  const Value& root = *pickle.root;
  const Places places = PlacesIn(root, path);
  const Value& entries = Member(&root, "state_dict_metadata", path);
  if (entries.kind != Value::Kind::kDict)
    Refuse(path, "its `state_dict_metadata` is not a dictionary");
  const KeysOfNames keys(root);
  std::vector<PartEntry> parts;
  for (size_t i = 0; i + 1 < entries.items.size(); i += 2) {
    const std::string& name = TextOf(entries.items[i], path, "names");
    parts.push_back(EntryOf(*entries.items[i + 1], keys.Of(name), path));
  }
  ModelChoice choice = ChooseModel(parts, keys.origin(), part, folder);
  Contents contents;
  SafetensorsFiles safetensors;
  contents.part = std::move(choice.part);
  contents.others = std::move(choice.others);
  for (const size_t i : choice.entries) {
    const std::string& name = entries.items[2 * i]->text;
    const bool is_state = name.find("._extra_state") != name.npos;
    // Other entries are objects, which no spec has.
    if (is_state || parts[i].kind != PartEntry::Kind::kTensor) {
      contents.others[is_state ? "_extra_state" : "objects"].Add(parts[i]);
    } else {
      contents.tensors[name] =
          ReadTensor(name, *entries.items[2 * i + 1], places, folder, &safetensors);
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
