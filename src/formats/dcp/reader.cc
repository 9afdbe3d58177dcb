// Reads folders of torch.distributed.checkpoint that anyone may have written. It trusts nothing in
// them before it is checked.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>

#include "base/error.h"
#include "base/file.h"
#include "base/text.h"
#include "formats/dcp/unpickle.h"
#include "formats/foreign_names.h"
#include "formats/format.h"
#include "formats/little_endian.h"

namespace shardinit {
namespace dcp {
namespace {

constexpr char kMetadata[] = ".metadata";
constexpr size_t kMetadataLimit = size_t{256} << 20;
// The most bytes of a text in an item: its directory, its pickle.
constexpr int64_t kMostInText = 1 << 20;

template <typename... T>
[[noreturn]] void Refuse(const std::string& path, fmt::format_string<T...> what, T&&... of) {
  throw Error(ExitCode::kRefused,
              fmt::format("cannot read `{}` as part of a DCP checkpoint: {}", Escape(path),
                          fmt::format(what, std::forward<T>(of)...)));
}

// Refuses a pickle that lacks this value.
const Value& Need(const Value* value, const std::string& path, std::string_view what) {
  if (value == nullptr) Refuse(path, "it has no {}", what);
  return *value;
}
const std::string& TextOf(const Value* value, const std::string& path, std::string_view what) {
  if (Need(value, path, what).kind != Value::Kind::kText) Refuse(path, "its {} is not text", what);
  return value->text;
}
int64_t NaturalOf(const Value* value, const std::string& path, std::string_view what) {
  constexpr int64_t kMost = int64_t{1} << 48;  // small enough for sums
  if (Need(value, path, what).kind != Value::Kind::kInt || value->number < 0 ||
      value->number > kMost) {
    Refuse(path, "its {} must be a whole number from 0 to 2^48", what);
  }
  return value->number;
}
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

// Reads a tuple of integers, or a `torch.Size` of one, with a product that fits.
Shape ShapeOf(const Value* value, const std::string& path, std::string_view what) {
  if (value != nullptr && value->Maker() == "torch.Size") {
    const Value* const arguments = value->At(1);
    value = arguments != nullptr ? arguments->At(0) : nullptr;
  }
  if (Need(value, path, what).kind != Value::Kind::kTuple || value->items.size() > kMaxRank) {
    Refuse(path, "its {} must be a tuple of at most {} sizes, below 2^59 together", what, kMaxRank);
  }
  Shape shape;
  int64_t count = 1;
  for (const Value* extent : value->items) {
    shape.push_back(NaturalOf(extent, path, what));
    if (__builtin_mul_overflow(count, std::max<int64_t>(1, shape.back()), &count) ||
        count >> 59 != 0) {
      Refuse(path, "its {} must be a tuple of at most {} sizes, below 2^59 together", what,
             kMaxRank);
    }
  }
  return shape;
}

Shape ShapeOf(const Value* object, const char* name, const std::string& path) {
  return ShapeOf(&Member(object, name, path), path, fmt::format("`{}`", name));
}

// A part of a file: the archive that `torch.save` made of a tensor.
class Archive {
 public:
  Archive(std::string path, int64_t offset, int64_t length)
      : path_(std::move(path)), offset_(offset), length_(length), fd_(OpenToRead(path_)) {
    if (offset + length > FileSize(path_)) Refuse(path_, "an item lies beyond its end");
    ReadDirectory();
  }

  const std::string& path() const { return path_; }

  struct Entry {
    int64_t header, size;
    bool stored;
  };
  // Finds a file by the end of its name, which begins with the archive's name. Null: there is none.
  const Entry* Find(std::string_view end) const {
    for (const auto& [name, entry] : entries_) {
      if (name.size() > end.size() && name.ends_with(end)) return &entry;
    }
    return nullptr;
  }
  // Returns the place of the entry's bytes in the file.
  int64_t DataOf(const Entry& entry) const {
    constexpr int64_t kFixed = 30;
    const std::string header = Read(entry.header, kFixed);
    if (!header.starts_with("PK\3\4") || !entry.stored) Refuse(path_, "an item is compressed");
    const int64_t at = entry.header + kFixed + Field(header, 26, 2) + Field(header, 28, 2);
    if (at + entry.size > length_) Refuse(path_, "an item's data lie beyond its end");
    return offset_ + at;
  }
  std::string Text(const Entry& entry) const {
    if (entry.size > kMostInText) Refuse(path_, "an item's pickle is too long");
    return Read(DataOf(entry) - offset_, entry.size);
  }

 private:
  static int64_t Field(std::string_view in, size_t at, size_t bytes) {
    const uint64_t value = FromLittleEndian({in.data() + at, bytes});
    return static_cast<int64_t>(std::min(value, uint64_t{1} << 60));  // small enough for sums
  }
  // Reads bytes; `at` counts from the beginning of the archive.
  std::string Read(int64_t at, int64_t bytes) const {
    if (at < 0 || at + bytes > length_) Refuse(path_, "an item is not a zip archive");
    std::string text(static_cast<size_t>(bytes), '\0');
    ReadExactly(fd_.get(), path_, text.data(), text.size(), offset_ + at);
    return text;
  }

  // Follows PKWARE's APPNOTE.TXT, 4.3.12 to 4.3.16.
  void ReadDirectory() {
    constexpr int64_t kEnd = 22, kLocator = 20, kEnd64 = 56, kMostComment = 0xffff;
    constexpr int64_t kMany = 0xffffffff;
    const int64_t tail = std::min(length_, kEnd + kMostComment);
    const std::string last = Read(length_ - tail, tail);
    const size_t found = last.rfind("PK\5\6");
    if (found == last.npos || found + kEnd > last.size())
      Refuse(path_, "an item is not a zip archive");
    int64_t size = Field(last, found + 12, 4), at = Field(last, found + 16, 4);
    if (size == kMany || at == kMany) {
      const int64_t locator = length_ - tail + static_cast<int64_t>(found) - kLocator;
      const std::string end = Read(Field(Read(locator, kLocator), 8, 8), kEnd64);
      size = Field(end, 40, 8);
      at = Field(end, 48, 8);
    }
    if (size > kMostInText) Refuse(path_, "an item has a directory that is too long");
    const std::string directory = Read(at, size);
    constexpr size_t kFixed = 46;
    for (std::string_view rest = directory; rest.size() >= kFixed;) {
      const auto name = static_cast<size_t>(Field(rest, 28, 2));
      const auto extra = static_cast<size_t>(Field(rest, 30, 2));
      const size_t all = kFixed + name + extra + static_cast<size_t>(Field(rest, 32, 2));
      if (!rest.starts_with("PK\1\2") || all > rest.size())
        Refuse(path_, "an item's zip directory is damaged");
      Entry entry{Field(rest, 42, 4), Field(rest, 24, 4), Field(rest, 10, 2) == 0};
      TakeLargeFields(rest.substr(kFixed + name, extra), &entry);
      entries_.emplace_back(rest.substr(kFixed, name), entry);
      rest.remove_prefix(all);
    }
  }
  // ZIP64's extra field has those of uncompressed size, compressed size and offset that do not fit.
  // Both sizes of a stored file are equal.
  static void TakeLargeFields(std::string_view extra, Entry* entry) {
    constexpr int64_t kMany = 0xffffffff;
    while (extra.size() >= 4) {
      const int64_t id = Field(extra, 0, 2);
      std::string_view field = extra.substr(4);
      field = field.substr(0, std::min(field.size(), static_cast<size_t>(Field(extra, 2, 2))));
      extra.remove_prefix(4 + field.size());
      if (id != 1) continue;
      if (entry->size == kMany && field.size() >= 16) {
        entry->size = Field(field, 0, 8);
        field.remove_prefix(16);
      }
      if (entry->header == kMany && field.size() >= 8) entry->header = Field(field, 0, 8);
    }
  }

  const std::string path_;
  const int64_t offset_, length_;
  Fd fd_;
  std::vector<std::pair<std::string, Entry>> entries_;
};

// Returns where the elements of an item are, which must be a contiguous tensor of that type and
// shape.
int64_t PlaceOf(const Archive& archive, const DTypeInfo& dtype, const Shape& shape) {
  const std::string& path = archive.path();
  const auto need = [&](bool is, std::string_view what) {
    if (!is) Refuse(path, "{}", what);
  };
  const Archive::Entry* const text = archive.Find("/data.pkl");
  need(text != nullptr, "an item has no data.pkl");
  const Pickle pickle = ReadPickle(archive.Text(*text), path);
  const std::string_view maker = pickle.root->Maker();
  const bool has_type = maker == "torch._utils._rebuild_tensor_v3";
  need(has_type || maker == "torch._utils._rebuild_tensor_v2", "an item is not a tensor");
  const Value& arguments = Need(pickle.root->At(1), path, "arguments");
  const Value& id = Need(arguments.At(0), path, "storage");
  const Value& storage =
      Need(id.kind == Value::Kind::kPersistent ? id.At(0) : nullptr, path, "storage");
  const std::string_view type_name = has_type ? Need(arguments.At(6), path, "type").text
                                              : Need(storage.At(1), path, "storage").text;
  const ForeignNames& names = ForeignNamesOf(dtype.dtype);
  const std::string_view wanted = has_type ? names.torch : names.storage;
  need(!wanted.empty() && type_name == fmt::format("torch.{}", wanted),
       fmt::format("an item is not of the type {} that `{}` says", names.torch, kMetadata));
  need(ShapeOf(arguments.At(2), path, "shape") == shape,
       "an item has another shape than its chunk");
  const Shape strides = ShapeOf(arguments.At(3), path, "strides");
  int64_t stride = 1;
  for (size_t d = shape.size(); d-- > 0; stride *= shape[d]) {
    need(strides.size() == shape.size() && (strides[d] == stride || shape[d] == 1),
         "an item is not contiguous");
  }
  const int64_t first = NaturalOf(arguments.At(1), path, "offset") * dtype.bytes;
  const Archive::Entry* const data =
      archive.Find("/data/" + TextOf(storage.At(2), path, "storage"));
  need(data != nullptr && first + ElementCount(shape) * dtype.bytes <= data->size,
       "an item has fewer elements than its shape");
  return archive.DataOf(*data) + first;
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
      Refuse(path, "a chunk of {} does not have as many dimensions as the tensor", Quote(name));
    }
    for (size_t d = 0; d < box.shape.size(); ++d) {
      if (box.offset[d] + box.shape[d] > holding.shape[d]) {
        Refuse(path, "a chunk of {} lies outside the tensor's shape", Quote(name));
      }
    }
    if (ElementCount(box.shape) == 0) continue;
    const auto place = places.find({name, box.offset});
    if (place == places.end()) Refuse(path, "it lists no file for a chunk of {}", Quote(name));
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
    const int64_t offset = PlaceOf(archive, *dtype, box.shape);
    holding.pieces.push_back({std::move(box), archive.path(), offset});
  }
  RequireWhole(name, holding);
  return holding;
}

constexpr std::string_view kModel = "model.", kOptimizer = "optim.";

// Returns whether all of a checkpoint is a model or its optimizer, each under a name of its own,
// and whether it has an optimizer.
bool HasOptimizer(const Value& entries) {
  bool has = false;
  for (size_t i = 0; i + 1 < entries.items.size(); i += 2) {
    const std::string& name = entries.items[i]->text;
    if (name.starts_with(kOptimizer)) {
      has = true;
    } else if (!name.starts_with(kModel)) {
      return false;
    }
  }
  return has;
}

std::optional<Contents> ReadFolder(const std::string& folder) {
  const std::string path = folder + "/" + kMetadata;
  std::string text;
  if (!ReadFileIfExists(path, kMetadataLimit, &text)) return std::nullopt;
  const Pickle pickle = ReadPickle(text, path);
  const Value& root = *pickle.root;
  const Places places = PlacesIn(root, path);
  const Value& entries = Member(&root, "state_dict_metadata", path);
  if (entries.kind != Value::Kind::kDict)
    Refuse(path, "its `state_dict_metadata` is not a dictionary");
  Contents contents;
  const bool has_optimizer = HasOptimizer(entries);
  if (has_optimizer) contents.prefix = kModel;
  for (size_t i = 0; i + 1 < entries.items.size(); i += 2) {
    const std::string& name = TextOf(entries.items[i], path, "names");
    if (has_optimizer && name.starts_with(kOptimizer)) {
      ++contents.optimizer_entries;
      continue;
    }
    const Value& entry = *entries.items[i + 1];
    // Any other entry is an object, which no spec has.
    if (!entry.Maker().ends_with(".TensorStorageMetadata")) continue;
    contents.tensors[name] = ReadTensor(name, entry, places, folder);
  }
  return contents;
}

}  // namespace

}  // namespace dcp

extern const FormatReader kDcpReader = {
    .what = "DCP files",
    .name_of = [](DType dtype) { return ForeignNamesOf(dtype).torch; },
    .read = dcp::ReadFolder,
};

}  // namespace shardinit
