// Reads untrusted files of `torch.save`, and Hugging Face folders of them. Runs no code from a
// file, and refuses files that would need it.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/stat.h>

#include <algorithm>
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
#include "formats/parts.h"
#include "formats/weight_map.h"

namespace shardinit {
namespace dcp {
namespace {

// The most bytes of a file's pickle.
constexpr int64_t kMostInPickle = 256 << 20;
constexpr std::string_view kStems[] = {"pytorch_model"};
constexpr FileNames kNames = {.begin = "pytorch_model", .end = ".bin", .stems = kStems};

// The most nesting levels of a state_dict.
constexpr int kMostLevels = 16;
// The most entries of a state_dict.
constexpr size_t kMostEntries = size_t{1} << 22;

class StateDict {
 public:
  StateDict(const std::string& path, const FindStorage& find) : path_(path), find_(find) {}

  // Finds the model, or the requested part, in the root of the pickle.
  Contents Read(const Value& root, const std::string& part) {
    RequireDict(root);
    RefuseSlices(root, path_);
    AddAll(root, 0);
    counts_only_ = false;
    AddAll(root, 0);
    ModelChoice choice = ChooseModel(entries_, KeyOrigin::kStored, part, path_);
    contents_.part = std::move(choice.part);
    contents_.others = std::move(choice.others);
    for (const size_t i : choice.entries) {
      Take(fmt::to_string(fmt::join(entries_[i].keys, ".")), entries_[i], values_[i]);
    }
    return std::move(contents_);
  }

 private:
  void RequireDict(const Value& root) const {
    if (root.kind == Value::Kind::kDict) return;
    const std::string_view maker = root.Maker();
    if (IsTensor(root)) Refuse(path_, "it contains one tensor without a name");
    if (maker.empty()) Refuse(path_, "it does not contain a dictionary of tensors");
    Refuse(path_, "it contains a {}, whose code would have to run: save its `state_dict()`",
           Quote(std::string(maker)));
  }

  static bool IsName(const Value& key) {
    return key.kind == Value::Kind::kText || key.kind == Value::Kind::kInt;
  }
  static std::string KeyIn(const Value& key) {
    return key.kind == Value::Kind::kText  ? key.text
           : key.kind == Value::Kind::kInt ? fmt::to_string(key.number)
                                           : "objects";
  }

  // The value of an entry, and a fault that matters if the entry belongs to the model.
  struct Found {
    const Value* value;
    std::string wrong = {};
  };

  void AddAll(const Value& dict, int level) {
    for (size_t i = 0; i + 1 < dict.items.size(); i += 2) {
      const Value &key = *dict.items[i], &value = *dict.items[i + 1];
      keys_.push_back(KeyIn(key));
      if (!IsName(key) && HasTensor(value)) {
        const auto outer = fmt::to_string(fmt::join(keys_.begin(), keys_.end() - 1, "."));
        const std::string within = outer.empty() ? "the dictionary" : Quote(outer);
        AddEntry(
            {&value,
             fmt::format("the key of a tensor in {} is neither text nor a whole number", within)});
      } else {
        AddValue(value, level);
      }
      keys_.pop_back();
    }
  }

  void AddValue(const Value& value, int level) {
    const bool is_dict = value.kind == Value::Kind::kDict;
    const bool is_list = value.kind == Value::Kind::kList || value.kind == Value::Kind::kTuple;
    if (IsTensor(value) || value.items.empty() || !(is_dict || (is_list && HasTensor(value)))) {
      return AddEntry({&value});
    }
    if (level + is_dict == kMostLevels) {
      return AddEntry({&value, fmt::format("its {} are nested over {} levels",
                                           is_dict ? "dictionaries" : "lists", kMostLevels)});
    }
    if (is_dict) return AddAll(value, level + 1);
    // torch.distributed.checkpoint names list items this way, too.
    for (size_t i = 0; i < value.items.size(); ++i) {
      keys_.push_back(fmt::to_string(i));
      AddValue(*value.items[i], level + 1);
      keys_.pop_back();
    }
  }

  void AddEntry(Found found) {
    // Dictionaries may hold the same dictionary many times, so entries can multiply.
    if (counts_only_) {
      if (++count_ > kMostEntries) Refuse(path_, "it has more than {} entries", kMostEntries);
      return;
    }
    PartEntry entry{.keys = keys_};
    if (IsTensor(*found.value)) {
      entry = SavedEntry(keys_, *found.value, path_);
    } else if (HasTensor(*found.value) || IsRebuilt(*found.value)) {
      entry.kind = PartEntry::Kind::kOpaque;
    }
    entries_.push_back(std::move(entry));
    values_.push_back(std::move(found));
  }

  static bool IsRebuilt(const Value& value) {
    return value.Maker().starts_with("torch._utils._rebuild");
  }

  void Take(const std::string& name, const PartEntry& entry, const Found& found) {
    if (!found.wrong.empty()) Refuse(path_, "{}", found.wrong);
    if (entry.kind == PartEntry::Kind::kTensor) return Add(name, *found.value);
    const std::string maker(found.value->Maker());
    if (IsRebuilt(*found.value)) {
      Refuse(path_, "{} is made by {}, which is not read", Quote(name), Quote(maker));
    }
    const bool is_state = name.ends_with("_extra_state");
    if (is_state || entry.kind == PartEntry::Kind::kObject) {
      return contents_.others[is_state ? "_extra_state" : "objects"].Add(entry);
    }
    Refuse(path_, "{} is a {} with tensors, whose code would have to run: save its `state_dict()`",
           Quote(name), Quote(maker));
  }

  // Returns whether a value contains a tensor. A value may contain itself.
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
    if (!contents_.tensors.emplace(name, LocateTensor(value, name, path_, find_)).second) {
      Refuse(path_, "it has {} twice", Quote(name));
    }
  }

  const std::string& path_;
  const FindStorage& find_;
  Contents contents_;
  std::vector<std::string> keys_;  // keys of the current value
  bool counts_only_ = true;        // entries are counted before they take memory
  size_t count_ = 0;
  std::vector<PartEntry> entries_;
  std::vector<Found> values_;       // of each entry
  std::set<const Value*> without_;  // values without a tensor
};

void ReadArchive(const std::string& path, int64_t size, const ReadObject& read) {
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
  read(*pickle.root, find);
}

// If a file is not an archive, `torch.save` begins it with a pickle of this number: its bytes or,
// in protocol 1, its digits.
constexpr std::string_view kMagic =
                               "l\xfc\x9c"
                               "F\xf9 j\xa8P\x19",
                           kMagicDigits = "119547037146038801333356";

// Finds the storages that a pickle names, with the size of their elements.
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

// Reads files of PyTorch before 1.6: pickles of a magic number, a version, the system, the object,
// and the keys of its storages. Then each storage follows, after its number of elements.
void ReadLegacy(const std::string& path, int64_t size, const ReadObject& read) {
  const InputFile file(path);
  std::string head(static_cast<size_t>(std::min(size, kMostInPickle)), '\0');
  file.Read(0, std::ssize(head), head.data());
  std::string_view rest = head;
  const auto next = [&] {
    Pickle pickle = ReadPickle(rest, path);
    rest.remove_prefix(pickle.bytes);
    return pickle;
  };
  if (const Pickle number = next();
      number.root->text != kMagic && number.root->text != kMagicDigits) {
    Refuse(path, "it is not an archive of `torch.save`");
  }
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
  read(*object.root, find);
}

}  // namespace

PartEntry SavedEntry(std::vector<std::string> keys, const Value& value, const std::string& path) {
  try {
    const SavedTensor tensor = TensorOf(value, path);
    return TensorEntry(std::move(keys), tensor.shape,
                       FindDType(&ForeignNames::torch, tensor.dtype));
  } catch (const Error& error) {
    if (error.code() != ExitCode::kRefused) throw;
    PartEntry entry{.keys = std::move(keys), .kind = PartEntry::Kind::kTensor, .rank = 2};
    entry.is_float = true;
    return entry;
  }
}

void CountTensors(const Value& root, const std::string& path, std::set<const Value*> counted,
                  PartSize* size) {
  std::vector<const Value*> rest = {&root};
  while (!rest.empty()) {
    const Value* const next = rest.back();
    rest.pop_back();
    if (!counted.insert(next).second) continue;
    if (IsTensor(*next)) {
      size->Add(SavedEntry({}, *next, path));
      continue;
    }
    rest.insert(rest.end(), next->items.begin(), next->items.end());
    rest.insert(rest.end(), next->held.begin(), next->held.end());
  }
}

TensorInFolder LocateTensor(const Value& value, const std::string& name, const std::string& path,
                            const FindStorage& find) {
  const std::string place = fmt::format("{}` at `{}", path, name);
  SavedTensor tensor = TensorOf(value, place);
  TensorInFolder holding{NameOf(path), tensor.dtype, tensor.shape, {}};
  const DTypeInfo* const dtype = FindDType(&ForeignNames::torch, tensor.dtype);
  if (dtype != nullptr && ElementCount(tensor.shape) > 0) {
    const Stored stored = find(tensor.storage);
    if (tensor.storage_bytes > stored.bytes) {
      Refuse(path, "the storage of {} has {} bytes instead of {}", Quote(name), stored.bytes,
             tensor.storage_bytes);
    }
    holding.pieces =
        PiecesOf(tensor, dtype->bytes, WholeOf(tensor.shape), path, stored.offset, place);
  }
  return holding;
}

void ReadTorchFile(const std::string& path, const ReadObject& read) {
  const InputFile file(path);
  std::string begin(15, '\0');
  if (!file.TryRead(0, std::ssize(begin), begin.data())) Refuse(path, "it is too short");
  if (begin.starts_with("PK\3\4")) return ReadArchive(path, file.size(), read);
  // Pickles of protocol 1 have no magic number.
  if (begin[0] != '\x80' && !begin.starts_with("L1195470")) {
    Refuse(path, "it is not an archive of `torch.save`");
  }
  ReadLegacy(path, file.size(), read);
}

Contents ReadModelFile(const std::string& path, const std::string& part) {
  Contents contents;
  ReadTorchFile(path, [&](const Value& root, const FindStorage& find) {
    contents = StateDict(path, find).Read(root, part);
  });
  return contents;
}

namespace {

std::optional<Contents> ReadTorchSet(const std::string& folder, const std::string& index,
                                     const std::string& part) {
  Contents contents;
  const auto chosen = ChooseFiles(folder, kNames, index, &contents);
  if (!chosen) return std::nullopt;
  for (const std::string& file : chosen->files) {
    Contents of = ReadModelFile(fmt::format("{}/{}", folder, file), part);
    for (auto& [name, holding] : of.tensors) {
      const auto [there, is_new] = contents.tensors.emplace(name, std::move(holding));
      if (!is_new) {
        throw Error(ExitCode::kRefused,
                    fmt::format("{} is in `{}` and `{}`", Quote(name), there->second.file, file));
      }
    }
    contents.part = of.part;
    for (const auto& [name, size] : of.others) contents.others[name].Add(size);
  }
  CheckWeightMap(folder, *chosen, &contents);
  return contents;
}

std::optional<Contents> ReadTorchFolder(const std::string& folder, const std::string& part) {
  return ReadTorchSet(folder, "", part);
}

Contents ReadTorchPath(const std::string& path, const std::string& part) {
  if (IsIndex(path, kNames.end)) return *ReadTorchSet(FolderOf(path), NameOf(path), part);
  return ReadModelFile(path, part);
}

}  // namespace
}  // namespace dcp

extern const FormatReader kTorchReader = {
    .what = "PyTorch files",
    .dtype = &ForeignNames::torch,
    .read = dcp::ReadTorchFolder,
    .read_file = dcp::ReadTorchPath,
};

}  // namespace shardinit
