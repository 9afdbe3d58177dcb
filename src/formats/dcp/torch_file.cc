// Reads files of `torch.save`, whoever wrote them, and folders of Hugging Face with them. Nothing
// in them is run: what would need that is refused.
#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <set>

#include "base/error.h"
#include "base/file.h"
#include "base/text.h"
#include "formats/dcp/archive.h"
#include "formats/dcp/saved.h"
#include "formats/foreign_names.h"
#include "formats/format.h"
#include "formats/little_endian.h"
#include "formats/weight_map.h"

namespace shardinit {
namespace dcp {
namespace {

// The most bytes of a file's pickle.
constexpr int64_t kMostInPickle = 256 << 20;
constexpr char kIndexFile[] = "pytorch_model.bin.index.json", kWholeFile[] = "pytorch_model.bin";

// Where the bytes of a storage lie in the file.
struct Stored {
  int64_t offset, bytes;
};
// Finds a storage by its key. Throws Error (kRefused).
using FindStorage = std::function<Stored(const std::string& key)>;

// The tensors of a state_dict, whose values lie one in another at most so deep.
constexpr int kMostLevels = 16;
// The most entries of all of them.
constexpr int64_t kMostEntries = 1 << 22;

class StateDict {
 public:
  StateDict(const std::string& path, const FindStorage& find) : path_(path), find_(find) {}

  // Finds the model in the root of the pickle.
  Contents Read(const Value& root) {
    RequireDict(root);
    const Value* model = &root;
    if (!HoldsTensors(root)) {
      model = nullptr;
      for (const char* name : {"state_dict", "model_state_dict", "model", "module", "params"}) {
        const Value* const within = root.Find(name);
        if (within == nullptr || !HoldsTensors(*within)) continue;
        model = within;
        break;
      }
      if (model == nullptr) {
        Refuse(path_, "it holds no model: its keys are {}", KeysOf(root));
      }
    }
    for (size_t i = 0; model != &root && i + 1 < root.items.size(); i += 2) {
      if (root.items[i + 1] != model) ++contents_.others[KeyIn(*root.items[i])];
    }
    AddAll(*model, "", 0);
    return std::move(contents_);
  }

 private:
  void RequireDict(const Value& root) const {
    if (root.kind == Value::Kind::kDict) return;
    const std::string_view maker = root.Maker();
    if (IsTensor(root)) Refuse(path_, "it holds one tensor without a name");
    if (maker.empty()) Refuse(path_, "it holds no dictionary of tensors");
    Refuse(path_, "it holds a {}, whose code would have to run: save its `state_dict()`",
           Quote(std::string(maker)));
  }

  static bool HoldsTensors(const Value& dict) {
    if (dict.kind != Value::Kind::kDict) return false;
    for (size_t i = 0; i + 1 < dict.items.size(); i += 2) {
      if (IsTensor(*dict.items[i + 1])) return true;
    }
    return false;
  }

  static std::string KeyIn(const Value& key) {
    return key.kind == Value::Kind::kText  ? key.text
           : key.kind == Value::Kind::kInt ? fmt::to_string(key.number)
                                           : "objects";
  }
  static std::string KeysOf(const Value& dict) {
    std::string keys;
    for (size_t i = 0; i + 1 < dict.items.size() && i < 16; i += 2) {
      keys += fmt::format("{}{}", i == 0 ? "" : ", ", Quote(KeyIn(*dict.items[i])));
    }
    return keys.empty() ? "none" : keys;
  }

  [[noreturn]] void RefuseDepth(const char* what) const {
    Refuse(path_, "its {} lie too deep in one another: over {} levels", what, kMostLevels);
  }

  void AddAll(const Value& dict, const std::string& prefix, int level) {
    if (level == kMostLevels) RefuseDepth("dictionaries");
    for (size_t i = 0; i + 1 < dict.items.size(); i += 2) {
      const Value &key = *dict.items[i], &value = *dict.items[i + 1];
      if (key.kind != Value::Kind::kText && key.kind != Value::Kind::kInt && HasTensor(value)) {
        Refuse(path_, "the key of a tensor in {} is neither text nor a whole number",
               prefix.empty() ? "the dictionary" : Quote(prefix.substr(0, prefix.size() - 1)));
      }
      AddValue(prefix + KeyIn(key), value, level);
    }
  }

  void AddValue(const std::string& name, const Value& value, int level) {
    // Dictionaries may hold the same one many times, and so multiply.
    if (++visited_ > kMostEntries) Refuse(path_, "it has more than {} entries", kMostEntries);
    if (IsTensor(value)) return Add(name, value);
    if (value.kind == Value::Kind::kDict) return AddAll(value, name + ".", level + 1);
    if (value.Maker().starts_with("torch._utils._rebuild")) {
      Refuse(path_, "{} is made by {}, which is not read", Quote(name),
             Quote(std::string(value.Maker())));
    }
    const bool is_state = name.ends_with("_extra_state");
    if (is_state || !HasTensor(value)) {
      ++contents_.others[is_state ? "_extra_state" : "objects"];
      return;
    }
    if (value.kind != Value::Kind::kList && value.kind != Value::Kind::kTuple) {
      Refuse(path_,
             "{} is a {} with tensors, whose code would have to run: save its `state_dict()`",
             Quote(name), Quote(std::string(value.Maker())));
    }
    if (level == kMostLevels) RefuseDepth("lists");
    // torch.distributed.checkpoint names the items of a list so, too.
    for (size_t i = 0; i < value.items.size(); ++i) {
      AddValue(fmt::format("{}.{}", name, i), *value.items[i], level + 1);
    }
  }

  // Returns whether there is a tensor anywhere in a value, which may hold itself.
  bool HasTensor(const Value& value) {
    std::set<const Value*> seen;
    std::vector<const Value*> rest = {&value};
    while (!rest.empty()) {
      const Value* const next = rest.back();
      rest.pop_back();
      if (IsTensor(*next)) return true;
      if (without_.contains(next) || !seen.insert(next).second) continue;
      rest.insert(rest.end(), next->items.begin(), next->items.end());
      rest.insert(rest.end(), next->held.begin(), next->held.end());
    }
    without_.merge(seen);
    return false;
  }

  void Add(const std::string& name, const Value& value) {
    const std::string place = fmt::format("{}` at `{}", path_, name);
    SavedTensor tensor = TensorOf(value, place);
    Holding holding{NameOf(path_), tensor.dtype, tensor.shape, {}};
    const DTypeInfo* const dtype = FindDType(&ForeignNames::torch, tensor.dtype);
    if (dtype != nullptr && ElementCount(tensor.shape) > 0) {
      const Stored stored = find_(tensor.storage);
      if (tensor.storage_bytes > stored.bytes) {
        Refuse(path_, "the storage of {} has {} bytes instead of {}", Quote(name), stored.bytes,
               tensor.storage_bytes);
      }
      holding.pieces =
          PiecesOf(tensor, dtype->bytes, WholeOf(tensor.shape), path_, stored.offset, place);
    }
    if (!contents_.tensors.emplace(name, std::move(holding)).second) {
      Refuse(path_, "it has {} twice", Quote(name));
    }
  }

  const std::string& path_;
  const FindStorage& find_;
  Contents contents_;
  int64_t visited_ = 0;
  std::set<const Value*> without_;  // values without a tensor
};

Contents ReadArchive(const std::string& path, int64_t size) {
  const Archive archive(path, 0, size);
  if (archive.Find("/constants.pkl") != nullptr) {
    Refuse(path, "it is TorchScript, whose code would have to run: save its `state_dict()`");
  }
  const Archive::Entry* const text = archive.Find("/data.pkl");
  if (text == nullptr) Refuse(path, "it has no data.pkl");
  if (const Archive::Entry* const order = archive.Find("/byteorder")) {
    if (archive.Text(*order, kMostInPickle) != "little") {
      Refuse(path, "its numbers are big-endian: load it with PyTorch, and save it again");
    }
  }
  const Pickle pickle = ReadPickle(archive.Text(*text, kMostInPickle), path);
  const FindStorage find = [&](const std::string& key) -> Stored {
    const Archive::Entry* const data = archive.Find("/data/" + key);
    if (data == nullptr) Refuse(path, "it has no storage {}", Quote(key));
    return {archive.DataOf(*data), data->size};
  };
  return StateDict(path, find).Read(*pickle.root);
}

// `torch.save` begins files that are no archives with this pickle of a number.
constexpr std::string_view kMagic(
    "\x80\x02\x8a\nl\xfc\x9c"
    "F\xf9 j\xa8P\x19.",
    15);

// The storages that a pickle names, with the size of their elements.
void FindStorages(const Pickle& pickle, const std::string& path,
                  std::map<std::string, int64_t>* elements) {
  for (const Value& value : pickle.values) {
    if (value.kind != Value::Kind::kPersistent) continue;
    const Value& id = Need(value.At(0), path, "storage");
    std::string_view type = Need(id.At(1), path, "storage").text;
    if (type.starts_with("torch.")) type.remove_prefix(6);
    const DTypeInfo* const dtype = type == "storage.UntypedStorage"
                                       ? &InfoOf(DType::u8)
                                       : FindDType(&ForeignNames::storage, type);
    if (dtype == nullptr) Refuse(path, "a storage is of the type {}", Quote(std::string(type)));
    const Value* const view = id.At(5);
    if (view != nullptr && view->kind != Value::Kind::kNone) {
      Refuse(path, "a storage is a view of another: load it with PyTorch, and save it again");
    }
    (*elements)[TextOf(id.At(2), path, "storage")] = dtype->bytes;
  }
}

// Reads the files of PyTorch before 1.6: a number, a version, what wrote it, the object, the keys
// of its storages; then these, each with its number of elements before it.
Contents ReadLegacy(const std::string& path, int64_t size) {
  const InputFile file(path);
  std::string head(static_cast<size_t>(std::min(size, kMostInPickle)), '\0');
  file.Read(0, std::ssize(head), head.data());
  std::string_view rest = std::string_view(head).substr(kMagic.size());
  const auto next = [&] {
    Pickle pickle = ReadPickle(rest, path);
    rest.remove_prefix(pickle.bytes);
    return pickle;
  };
  if (const Pickle version = next(); version.root->number != 1001) {
    Refuse(path, "it has the version {} instead of 1001", version.root->number);
  }
  const Pickle system = next();
  const Value* const little = system.root->Find("little_endian");
  if (little == nullptr || little->number != 1) Refuse(path, "its numbers are not little-endian");
  const Pickle object = next();
  const Pickle keys = next();
  std::map<std::string, int64_t> elements;
  FindStorages(object, path, &elements);
  std::map<std::string, Stored> storages;
  int64_t at = static_cast<int64_t>(head.size() - rest.size());
  for (const Value* key : keys.root->items) {
    const auto element = elements.find(TextOf(key, path, "storage"));
    if (element == elements.end()) Refuse(path, "no tensor names the storage {}", Quote(key->text));
    char count[8];
    if (size - at < 8) Refuse(path, "it ends too early");
    file.Read(at, sizeof count, count);
    at += 8;
    const uint64_t many = FromLittleEndian({count, sizeof count});
    if (many > static_cast<uint64_t>((size - at) / element->second)) {
      Refuse(path,
             "it ends too early: the storage {} has {} elements of {} bytes, but {} bytes are left",
             Quote(key->text), many, element->second, size - at);
    }
    const int64_t bytes = static_cast<int64_t>(many) * element->second;
    storages[key->text] = {at, bytes};
    at += bytes;
  }
  if (at != size) Refuse(path, "it has {} bytes, but its storages end at {}", size, at);
  const FindStorage find = [&](const std::string& key) -> Stored {
    const auto found = storages.find(key);
    if (found == storages.end()) Refuse(path, "it has no storage {}", Quote(key));
    return found->second;
  };
  return StateDict(path, find).Read(*object.root);
}

Contents ReadTorchFile(const std::string& path) {
  const InputFile file(path);
  std::string magic(kMagic.size(), '\0');
  if (!file.ReadIfThere(0, std::ssize(magic), magic.data())) Refuse(path, "it is too short");
  if (magic == kMagic) return ReadLegacy(path, file.size());
  if (!magic.starts_with("PK\3\4")) Refuse(path, "it is no archive that `torch.save` makes");
  return ReadArchive(path, file.size());
}

std::optional<Contents> ReadTorchFolder(const std::string& folder) {
  std::vector<std::string> files = NamesIn(folder);
  std::erase_if(files, [](const std::string& name) {
    return !name.starts_with("pytorch_model") || !name.ends_with(".bin");
  });
  if (files.empty()) return std::nullopt;
  Contents contents;
  const auto index = ReadWeightMap(folder, kIndexFile);
  KeepListed(index, kIndexFile, kWholeFile, &files, &contents);
  for (const std::string& file : files) {
    Contents of = ReadTorchFile(fmt::format("{}/{}", folder, file));
    for (auto& [name, holding] : of.tensors) {
      const auto [there, is_new] = contents.tensors.emplace(name, std::move(holding));
      if (!is_new) {
        throw Error(ExitCode::kRefused,
                    fmt::format("{} is in `{}` and `{}`", Quote(name), there->second.file, file));
      }
    }
    for (const auto& [name, count] : of.others) contents.others[name] += count;
  }
  CheckWeightMap(index, kIndexFile, &contents);
  return contents;
}

}  // namespace
}  // namespace dcp

extern const FormatReader kTorchReader = {
    .what = "PyTorch files",
    .dtype = &ForeignNames::torch,
    .read = dcp::ReadTorchFolder,
    .read_file = dcp::ReadTorchFile,
};

}  // namespace shardinit
