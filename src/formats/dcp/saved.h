// Reads files of `torch.save` without running them. Such a file is a zip archive
// (formats/dcp/archive.h) of a pickle, which describes tensors, and a file of elements for each
// storage. Everything is checked before it is trusted.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <functional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "formats/dcp/unpickle.h"
#include "formats/format.h"
#include "formats/parts.h"
#include "formats/pieces.h"
#include "tensor/box.h"

namespace shardinit::dcp {

// Throws Error (kRefused).
[[noreturn]] void RefuseSaved(const std::string& path, std::string_view what);

template <typename... T>
[[noreturn]] void Refuse(const std::string& path, fmt::format_string<T...> what, T&&... of) {
  RefuseSaved(path, fmt::format(what, std::forward<T>(of)...));
}

// These throw Error (kRefused) if the value is null or of another kind.
const Value& Need(const Value* value, const std::string& path, std::string_view what);
const std::string& TextOf(const Value* value, const std::string& path, std::string_view what);
int64_t NaturalOf(const Value* value, const std::string& path, std::string_view what);
Shape ShapeOf(const Value* value, const std::string& path, std::string_view what);

// Calls `visit` with each name and value of a dictionary. Throws Error (kRefused) for other values.
template <typename F>
void ForEach(const Value* dict, const std::string& path, std::string_view what, F visit) {
  if (Need(dict, path, what).kind != Value::Kind::kDict) {
    Refuse(path, "its {} is not a dictionary", what);
  }
  for (size_t i = 0; i + 1 < dict->items.size(); i += 2) {
    visit(TextOf(dict->items[i], path, "name"), *dict->items[i + 1]);
  }
}

// A tensor as a pickle describes it.
struct SavedTensor {
  std::string dtype;  // the name in `torch`; for unknown types, the name in the pickle
  Shape shape, strides;
  int64_t first = 0;    // elements of the storage before the tensor's first
  std::string storage;  // the key of the storage
  int64_t storage_bytes = 0;
};

// Returns a member of a dictionary or of an object such as `argparse.Namespace`, or null.
const Value* MemberOf(const Value* of, const char* name);
// Throws Error (kRefused) if a file is from a run that split its matrices or layers.
void RefuseDivided(const Value& root, const std::string& path);
// Throws Error (kRefused) if a rank's copy of a tensor differs from the elements in `box` of the
// tensor that other ranks have. Does not compare copies in buckets or of over kMostInReplica bytes.
constexpr int64_t kMostInReplica = int64_t{16} << 20;
void RequireReplica(const std::string& name, const TensorInFolder& whole, const Box& box,
                    const TensorInFolder& copy);
// Also throws it if a state_dict seems to be one rank's part of a model.
void RefuseSlices(const Value& root, const std::string& path);

// Returns whether the value is a call that makes a tensor.
bool IsTensor(const Value& value);
// Describes a tensor. Throws Error (kRefused) if its elements are not the bytes of a storage.
SavedTensor TensorOf(const Value& value, const std::string& path);

// Returns where the elements of a tensor are; its storage begins at `offset` in the file. `box`, of
// the same shape, is the tensor's place in a larger one. Throws Error (kRefused), which names
// `place`, unless all elements are in the storage.
std::vector<FilePiece> PiecesOf(const SavedTensor& tensor, int element_bytes, const Box& box,
                                const std::string& path, int64_t offset, const std::string& place);

// Returns the first box of a tensor's elements from `first` on, of at most `count` elements that
// are contiguous in row-major order. They are in at most 2 * rank - 1 such boxes.
Box FirstBox(const Shape& shape, int64_t first, int64_t count);

// The place of a storage in the file.
struct Stored {
  int64_t offset, bytes;
};
// Finds a storage by its key. Throws Error (kRefused).
using FindStorage = std::function<Stored(const std::string& key)>;
using ReadObject = std::function<void(const Value& root, const FindStorage& find)>;

// Passes the object in a file of `torch.save` to `read`. Throws Error (kRefused).
void ReadTorchFile(const std::string& path, const ReadObject& read);
// Returns the model in such a file. ChooseModel() explains `part`.
Contents ReadModelFile(const std::string& path, const std::string& part);

// Describes a tensor of any kind: only tensors of the model must be of a kind that can be read.
PartEntry SavedEntry(std::vector<std::string> keys, const Value& value, const std::string& path);
// Counts the tensors in a value, which may contain itself, except in `counted` values.
void CountTensors(const Value& root, const std::string& path, std::set<const Value*> counted,
                  PartSize* size);
// Returns the place of a tensor. Throws Error (kRefused).
TensorInFolder LocateTensor(const Value& value, const std::string& name, const std::string& path,
                            const FindStorage& find);

}  // namespace shardinit::dcp
