// The folder of torch.distributed.checkpoint, for formats that have more in it.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "formats/format.h"

namespace shardinit::dcp {

// Where a value stands in nested dictionaries and lists. Joined by dots they are its name.
using Keys = std::vector<std::variant<std::string, int64_t>>;

// What a folder has besides the tensors of a plan.
struct Extras {
  struct Entry {
    Keys keys;
    size_t item;
    std::optional<std::pair<DType, Shape>> tensor = {};  // None: it is an object.
  };
  std::vector<std::string> items = {};  // Archives. Several entries may have one.
  std::vector<Entry> entries = {};
};

// `.metadata` is the last file. `prefix` is before the path of each tensor of the plan.
std::vector<FileLayout> LayOutCheckpoint(const LayoutRequest& request, const Keys& prefix,
                                         const Extras& extras);

// The state of the optimizer under `optim`, as `get_optimizer_state_dict` names it: of tensors of
// floating point. Parameter groups list of those with the same elements the first.
Extras StateOf(const LayoutRequest& request);

}  // namespace shardinit::dcp
