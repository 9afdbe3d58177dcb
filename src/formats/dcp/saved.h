// Reads what `torch.save` writes, without running any of it: a zip archive (formats/dcp/archive.h)
// with a pickle, which describes tensors, and a file for each storage that has their elements.
// Nothing is trusted before it is checked.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "formats/dcp/unpickle.h"
#include "formats/pieces.h"
#include "tensor/box.h"

namespace shardinit::dcp {

// Throws Error (kRefused).
[[noreturn]] void RefuseSaved(const std::string& path, std::string_view what);

template <typename... T>
[[noreturn]] void Refuse(const std::string& path, fmt::format_string<T...> what, T&&... of) {
  RefuseSaved(path, fmt::format(what, std::forward<T>(of)...));
}

// These refuse a pickle that lacks this value, or has it otherwise.
const Value& Need(const Value* value, const std::string& path, std::string_view what);
const std::string& TextOf(const Value* value, const std::string& path, std::string_view what);
int64_t NaturalOf(const Value* value, const std::string& path, std::string_view what);
Shape ShapeOf(const Value* value, const std::string& path, std::string_view what);

// A tensor as a pickle describes it.
struct SavedTensor {
  std::string dtype;  // the name in the module `torch`; that of a storage if no type has it
  Shape shape, strides;
  int64_t first = 0;    // elements of the storage before the tensor's first
  std::string storage;  // the key of the storage
  int64_t storage_bytes = 0;
};

// Throws Error (kRefused) if a state_dict has signs that it is one rank's part of a model.
void RefuseSlices(const Value& root, const std::string& path);

// Returns whether calling this would make a tensor.
bool IsTensor(const Value& value);
// Throws Error (kRefused) for tensors whose elements are not the bytes of a storage.
SavedTensor TensorOf(const Value& value, const std::string& path);

// Returns where the elements of a tensor are, whose storage begins at `offset` in the file. `box`
// is the place of the tensor in a larger one, with its shape. Throws Error (kRefused), which names
// `place`, if they are not all in the storage.
std::vector<FilePiece> PiecesOf(const SavedTensor& tensor, int element_bytes, const Box& box,
                                const std::string& path, int64_t offset, const std::string& place);

}  // namespace shardinit::dcp
