// Finds the model among the parts of a file or folder, such as the state of a training run. One
// rule and one table of names serve all formats whose tensors have keys.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "tensor/box.h"
#include "tensor/dtype.h"

namespace shardinit {

// An entry of nested dictionaries.
struct PartEntry {
  enum class Kind {
    kTensor,
    kOpaque,  // holds tensors, but cannot be read
    kObject,  // holds no tensors
  };

  std::vector<std::string> keys;  // from the outermost dictionary to the entry
  Kind kind = Kind::kObject;
  int64_t rank = 0, elements = 0, bytes = 0;  // of a tensor
  bool is_float = false, is_byte = false;     // the type of its elements
};

// Returns the entry of a tensor. `dtype` is null if shardinit does not have its type.
PartEntry TensorEntry(std::vector<std::string> keys, const Shape& shape, const DTypeInfo* dtype);

// Where the keys of entries come from.
enum class KeyOrigin {
  kStored,     // The file stores them.
  kDots,       // They are names, split at dots.
  kPlainDots,  // They are such names, of files that hold nothing but tensors.
};

// The entries of a part.
struct PartSize {
  int64_t entries = 0, tensors = 0, elements = 0, bytes = 0;

  void Add(const PartEntry& entry);
  void Add(const PartSize& size);
};

struct ModelChoice {
  std::string part;  // the keys of the model, with dots; empty: it is the outermost dictionary
  std::vector<size_t> entries;             // the numbers of its entries, ascending
  std::map<std::string, PartSize> others;  // the other parts, by their keys with dots
};

// Chooses the part with the key `wanted`, a path with dots, or, if `wanted` is empty, the model.
// `path` is the file or folder. Throws Error: kUsage if there is no such part, and kRefused if no
// part or several parts may be the model.
ModelChoice ChooseModel(const std::vector<PartEntry>& entries, KeyOrigin origin,
                        const std::string& wanted, const std::string& path);

// Splits a name at its dots.
std::vector<std::string> SplitAtDots(const std::string& name);

// The option that chooses a part, for messages.
inline constexpr char kPartOption[] = "--part-of-file";

}  // namespace shardinit
