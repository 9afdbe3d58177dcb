#include "formats/dcp/saved.h"

#include <sys/stat.h>

#include <algorithm>
#include <cstdint>

#include "base/error.h"
#include "base/text.h"
#include "formats/foreign_names.h"
#include "formats/little_endian.h"

namespace shardinit::dcp {
namespace {

// The most bytes of an archive's directory, and the most pieces of a tensor that is not contiguous.
constexpr int64_t kMostDirectory = 64 << 20, kMostRuns = 1 << 16;

int64_t Field(std::string_view in, size_t at, size_t bytes) {
  const uint64_t value = FromLittleEndian({in.data() + at, bytes});
  return static_cast<int64_t>(std::min(value, uint64_t{1} << 60));  // small enough for sums
}

// ZIP64's extra field has those of uncompressed size, compressed size and offset that do not fit.
// Both sizes of a stored file are equal.
void TakeLargeFields(std::string_view extra, Archive::Entry* entry) {
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

// Refuses the bits that say that the values are other numbers than the bytes.
void RefuseBits(const Value* metadata, const std::string& path) {
  if (metadata == nullptr || metadata->kind != Value::Kind::kDict) return;
  for (const char* bit : {"conj", "neg"}) {
    const Value* const set = metadata->Find(bit);
    if (set == nullptr || set->number == 0) continue;
    Refuse(path,
           "a tensor is a view with the bit `{}`, whose values are not its bytes: save "
           "`tensor.resolve_{}()` of it",
           bit, bit);
  }
}

constexpr std::string_view kTensorV2 = "torch._utils._rebuild_tensor_v2",
                           kTensorV3 = "torch._utils._rebuild_tensor_v3",
                           kParameter = "torch._utils._rebuild_parameter",
                           kSubclass = "torch._tensor._rebuild_from_type_v2";

}  // namespace

void RefuseSaved(const std::string& path, std::string_view what) {
  throw Error(ExitCode::kRefused,
              fmt::format("cannot read `{}` as a file of PyTorch: {}", Escape(path), what));
}

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

Archive::Archive(std::string path, int64_t offset, int64_t length)
    : path_(std::move(path)), offset_(offset), length_(length), fd_(OpenToRead(path_)) {
  struct stat info;
  if (fstat(fd_.get(), &info) != 0 || offset > info.st_size || length > info.st_size - offset) {
    Refuse(path_, "an item lies beyond its end");
  }
  ReadDirectory();
}

const Archive::Entry* Archive::Find(std::string_view end) const {
  for (const auto& [name, entry] : entries_) {
    if (name.size() > end.size() && name.ends_with(end)) return &entry;
  }
  return nullptr;
}

int64_t Archive::DataOf(const Entry& entry) const {
  constexpr int64_t kFixed = 30;
  if (!entry.stored) {
    Refuse(path_, "its data are compressed: load it with PyTorch, and save it again");
  }
  const std::string header = Read(entry.header, kFixed);
  if (!header.starts_with("PK\3\4")) Refuse(path_, "an item's zip directory is damaged");
  const int64_t at = entry.header + kFixed + Field(header, 26, 2) + Field(header, 28, 2);
  if (at + entry.size > length_) Refuse(path_, "an item's data lie beyond its end");
  return offset_ + at;
}

std::string Archive::Text(const Entry& entry, int64_t most) const {
  if (entry.size > most) Refuse(path_, "an item's pickle is too long");
  return Read(DataOf(entry) - offset_, entry.size);
}

// Reads bytes; `at` counts from the beginning of the archive.
std::string Archive::Read(int64_t at, int64_t bytes) const {
  if (at < 0 || at + bytes > length_) Refuse(path_, "an item is not a zip archive");
  std::string text(static_cast<size_t>(bytes), '\0');
  ReadExactly(fd_.get(), path_, text.data(), text.size(), offset_ + at);
  return text;
}

// Follows PKWARE's APPNOTE.TXT, 4.3.12 to 4.3.16.
void Archive::ReadDirectory() {
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
  if (size > kMostDirectory) Refuse(path_, "an item has a directory that is too long");
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

bool IsTensor(const Value& value) {
  const std::string_view maker = value.Maker();
  return maker == kTensorV2 || maker == kTensorV3 || maker == kParameter || maker == kSubclass;
}

SavedTensor TensorOf(const Value& value, const std::string& path) {
  const std::string_view maker = value.Maker();
  const Value& arguments = Need(value.At(1), path, "arguments");
  if (maker == kParameter) return TensorOf(Need(arguments.At(0), path, "tensor"), path);
  if (maker == kSubclass) {
    const std::string type = Need(arguments.At(1), path, "type").text;
    if (type != "torch.Tensor" && type != "torch.nn.parameter.Parameter") {
      Refuse(path, "a tensor is of the class {}, which would have to run", Quote(type));
    }
    Value made{.kind = Value::Kind::kObject};
    if (arguments.items.size() < 3) Refuse(path, "it has no arguments");
    made.items = {arguments.items[0], arguments.items[2]};
    if (!IsTensor(made)) Refuse(path, "a tensor is made by {}", Quote(std::string(made.Maker())));
    return TensorOf(made, path);
  }
  const bool has_type = maker == kTensorV3;
  RefuseBits(arguments.At(has_type ? 7 : 6), path);
  const Value& id = Need(arguments.At(0), path, "storage");
  const Value& storage =
      Need(id.kind == Value::Kind::kPersistent ? id.At(0) : nullptr, path, "storage");
  std::string_view type = has_type ? Need(arguments.At(6), path, "type").text
                                   : Need(storage.At(1), path, "storage").text;
  if (type.starts_with("torch.")) type.remove_prefix(6);
  const DTypeInfo* const known =
      FindDType(has_type ? &ForeignNames::torch : &ForeignNames::storage, type);
  SavedTensor tensor;
  tensor.dtype = known != nullptr ? ForeignNamesOf(known->dtype).torch : type;
  tensor.first = NaturalOf(arguments.At(1), path, "offset");
  tensor.shape = ShapeOf(arguments.At(2), path, "shape");
  tensor.strides = ShapeOf(arguments.At(3), path, "strides");
  if (tensor.strides.size() != tensor.shape.size()) {
    Refuse(path, "its strides are not those of its shape");
  }
  tensor.storage = TextOf(storage.At(2), path, "storage");
  // An untyped storage counts bytes.
  const int64_t element = has_type || known == nullptr ? 1 : known->bytes;
  tensor.storage_bytes = NaturalOf(storage.At(4), path, "storage") * element;
  return tensor;
}

std::vector<FilePiece> PiecesOf(const SavedTensor& tensor, int element_bytes, const Box& box,
                                const std::string& path, int64_t offset) {
  const Shape& shape = tensor.shape;
  if (ElementCount(shape) == 0) return {};
  // All elements must be within the storage, and those of the last dimensions follow one another.
  int64_t last = tensor.first, run = 1, runs = 1;
  size_t outer = shape.size();
  for (size_t d = 0; d < shape.size(); ++d) {
    int64_t reach = 0;
    if (__builtin_mul_overflow(shape[d] - 1, tensor.strides[d], &reach) ||
        __builtin_add_overflow(last, reach, &last)) {
      Refuse(path, "its strides lead beyond its storage");
    }
  }
  if (last >= tensor.storage_bytes / element_bytes) {
    Refuse(path, "an item has fewer elements than its shape");
  }
  while (outer > 0 && (shape[outer - 1] == 1 || tensor.strides[outer - 1] == run)) {
    run *= shape[--outer];
  }
  for (size_t d = 0; d < outer; ++d) runs *= shape[d];
  if (runs > kMostRuns) {
    Refuse(path, "a tensor is not contiguous, but falls into {} runs: save `tensor.contiguous()`",
           runs);
  }
  std::vector<FilePiece> pieces;
  for (int64_t r = 0; r < runs; ++r) {
    FilePiece piece{box, path, 0};
    int64_t at = tensor.first, rest = r;
    for (size_t d = outer; d-- > 0;) {
      const int64_t index = rest % shape[d];
      rest /= shape[d];
      piece.box.offset[d] += index;
      piece.box.shape[d] = 1;
      at += index * tensor.strides[d];
    }
    piece.offset = offset + at * element_bytes;
    pieces.push_back(std::move(piece));
  }
  return pieces;
}

}  // namespace shardinit::dcp
