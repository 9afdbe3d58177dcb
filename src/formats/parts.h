// Finds the model among the parts of a file or folder, such as a training run's state. All formats
// whose tensors have keys share one rule and one table of names.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "tensor/box.h"
#include "tensor/dtype.h"

namespace shardinit {

// An entry in nested dictionaries.
struct PartEntry {
  enum class Kind {
    kTensor,
    kOpaque,  // holds tensors, but cannot be read
    kObject,  // holds no tensors
  };

  std::vector<std::string> keys;  // from the outermost dictionary to the entry
  Kind kind = Kind::kObject;
  int64_t rank = 0, elements = 0, bytes = 0;  // for tensors
  bool is_float = false, is_byte = false;     // element type, for tensors
};

// Returns the entry of a tensor. `dtype` is null if shardinit does not support the type.
PartEntry TensorEntry(std::vector<std::string> keys, const Shape& shape, const DTypeInfo* dtype);

// Where the keys of entries come from.
enum class KeyOrigin {
  kStored,     // the file stores them
  kDots,       // names, split at dots
  kPlainDots,  // names, split at dots, in files that contain only tensors
};

// The totals of a part's entries.
struct PartSize {
  int64_t entries = 0, tensors = 0, elements = 0, bytes = 0;

  void Add(const PartEntry& entry);
  void Add(const PartSize& size);
};

struct ModelChoice {
  std::string part;             // the model's dotted key; empty: the outermost dictionary
  std::vector<size_t> entries;  // the indices of its entries, ascending
  std::map<std::string, PartSize> others;  // the other parts, by dotted key
};

// Chooses the part with the dotted key `wanted` or, if that is empty, the model. `path` is the file
// or folder. Throws Error: kUsage if the part does not exist, kRefused if no part or several parts
// may be the model.
ModelChoice ChooseModel(const std::vector<PartEntry>& entries, KeyOrigin origin,
                        const std::string& wanted, const std::string& path);

// Returns whether a file with this name and origin kPlainDots may hold more than a model. If no
// name of its tensors does, ChooseModel() returns all of them, but needs much memory for that.
bool MayHoldState(std::string_view name, const Shape& shape, const DTypeInfo* dtype);

// Splits a name at its dots.
std::vector<std::string> SplitAtDots(const std::string& name);

// The option that chooses a part, for messages.
inline constexpr char kPartOption[] = "--part-of-file";

}  // namespace shardinit
