#include "formats/dcp/saved.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <utility>

#include "base/error.h"
#include "base/text.h"
#include "formats/foreign_names.h"

namespace shardinit::dcp {
namespace {

// Refuses bits that make the values differ from the bytes.
void RefuseBits(const Value* metadata, const std::string& path) {
  if (metadata == nullptr || metadata->kind != Value::Kind::kDict) return;
  for (const char* bit : {"conj", "neg"}) {
    const Value* const set = metadata->Find(bit);
    if (set == nullptr || set->number == 0) continue;
    Refuse(path,
           "a tensor is a view with the bit `{}`, whose bytes are not its values: save its "
           "`tensor.resolve_{}()`",
           bit, bit);
  }
}

// How a tensor is made: from a storage, with or without a type; from another tensor; or by a
// function, as its own class.
enum class Making { kStorage, kStorageAndType, kWrapped, kTyped };

// Older versions of PyTorch use other names for some functions.
constexpr std::pair<std::string_view, Making> kMakers[] = {
    {"torch._utils._rebuild_tensor", Making::kStorage},
    {"torch._utils._rebuild_tensor_v2", Making::kStorage},
    {"torch._utils._rebuild_tensor_v3", Making::kStorageAndType},
    {"torch._utils._rebuild_parameter", Making::kWrapped},
    {"torch._utils._rebuild_parameter_with_state", Making::kWrapped},
    {"torch._tensor._rebuild_from_type", Making::kTyped},
    {"torch._tensor._rebuild_from_type_v2", Making::kTyped},
    {"torch.tensor._rebuild_from_type", Making::kTyped},
};

std::optional<Making> MakingOf(const Value& value) {
  const std::string_view maker = value.Maker();
  for (const auto& [function, making] : kMakers) {
    if (function == maker) return making;
  }
  return std::nullopt;
}

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
    Refuse(path, "its {} must be a whole number from 0 to 2^48{}", what,
           value->kind == Value::Kind::kInt ? fmt::format(", not {}", value->number) : "");
  }
  return value->number;
}

namespace {

// Reads a tuple of integers, or a `torch.Size` of one.
Shape SizesOf(const Value* value, const std::string& path, std::string_view what) {
  if (value != nullptr && value->Maker() == "torch.Size") {
    const Value* const arguments = value->At(1);
    value = arguments != nullptr ? arguments->At(0) : nullptr;
  }
  if (Need(value, path, what).kind != Value::Kind::kTuple || value->items.size() > kMaxRank) {
    Refuse(path, "its {} must be a tuple of at most {} sizes", what, kMaxRank);
  }
  Shape sizes;
  for (const Value* size : value->items) sizes.push_back(NaturalOf(size, path, what));
  return sizes;
}

}  // namespace

// Also refuses sizes whose product does not fit.
Shape ShapeOf(const Value* value, const std::string& path, std::string_view what) {
  Shape shape = SizesOf(value, path, what);
  int64_t count = 1;
  for (const int64_t extent : shape) {
    if (__builtin_mul_overflow(count, std::max<int64_t>(1, extent), &count) || count >> 59 != 0) {
      Refuse(path, "its {} must be a tuple of at most {} sizes, below 2^59 together", what,
             kMaxRank);
    }
  }
  return shape;
}

bool IsTensor(const Value& value) { return MakingOf(value).has_value(); }

SavedTensor TensorOf(const Value& value, const std::string& path) {
  const std::optional<Making> making = MakingOf(value);
  const Value& arguments = Need(value.At(1), path, "arguments");
  if (making == Making::kWrapped) return TensorOf(Need(arguments.At(0), path, "tensor"), path);
  if (making == Making::kTyped) {
    const std::string type = Need(arguments.At(1), path, "type").text;
    if (type != "torch.Tensor" && type != "torch.nn.parameter.Parameter") {
      for (const std::string_view sharded : {".DTensor", ".ShardedTensor"}) {
        if (!type.ends_with(sharded)) continue;
        Refuse(path,
               "it contains one rank's part of a tensor of the class {}: save it with "
               "`torch.distributed.checkpoint`, or as `tensor.full_tensor()`",
               Quote(type));
      }
      Refuse(path, "a tensor is of the class {}, which would have to run", Quote(type));
    }
    Value made{.kind = Value::Kind::kObject};
    if (arguments.items.size() < 3) Refuse(path, "it has no arguments");
    made.items = {arguments.items[0], arguments.items[2]};
    if (!IsTensor(made)) Refuse(path, "a tensor is made by {}", Quote(std::string(made.Maker())));
    return TensorOf(made, path);
  }
  const bool has_type = making == Making::kStorageAndType;
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
  tensor.strides = SizesOf(arguments.At(3), path, "strides");
  if (tensor.strides.size() != tensor.shape.size()) {
    Refuse(path, "its strides do not match its shape");
  }
  tensor.storage = TextOf(storage.At(2), path, "storage");
  // Untyped storages are counted in bytes.
  const int64_t element = has_type || known == nullptr ? 1 : known->bytes;
  tensor.storage_bytes = NaturalOf(storage.At(4), path, "storage") * element;
  return tensor;
}

std::vector<FilePiece> PiecesOf(const SavedTensor& tensor, int element_bytes, const Box& box,
                                const std::string& path, int64_t offset, const std::string& place) {
  const Shape& shape = tensor.shape;
  if (ElementCount(shape) == 0) return {};
  int64_t last = tensor.first;
  for (size_t d = 0; d < shape.size(); ++d) {
    int64_t reach = 0;
    if (__builtin_mul_overflow(shape[d] - 1, tensor.strides[d], &reach) ||
        __builtin_add_overflow(last, reach, &last)) {
      Refuse(place, "its strides lead beyond its storage");
    }
  }
  if (const int64_t there = tensor.storage_bytes / element_bytes; last >= there) {
    Refuse(place,
           "its storage has fewer elements than its shape, offset and strides need: {}, not {}",
           there, last + 1);
  }
  FilePiece piece{box, path, offset + tensor.first * element_bytes};
  Shape bytes = shape, strides = tensor.strides;
  for (int64_t& stride : strides) stride *= element_bytes;
  bytes.push_back(element_bytes);
  strides.push_back(1);
  std::vector<Piece::Loop> loops = StridedTensor(bytes, strides).loops;
  if (loops.size() > 1 || (!loops.empty() && loops[0].from != 1)) piece.loops = std::move(loops);
  return {std::move(piece)};
}

Box FirstBox(const Shape& shape, int64_t first, int64_t count) {
  Box box = WholeOf(shape);
  int64_t place = ElementCount(shape);
  for (size_t d = 0; d < shape.size(); ++d) {
    place /= shape[d];
    box.offset[d] = first / place;
    box.shape[d] = 1;
    first %= place;
    if (first > 0 || place > count) continue;
    box.shape[d] = std::min(shape[d] - box.offset[d], count / place);
    break;
  }
  return box;
}

}  // namespace shardinit::dcp
