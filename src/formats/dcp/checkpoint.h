// Lays out the folder of torch.distributed.checkpoint, for formats that have more in it.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "formats/format.h"

namespace shardinit::dcp {

// The place of a value in nested dictionaries and lists. Joined by dots, the keys are its name.
using Keys = std::vector<std::variant<std::string, int64_t>>;

// What a folder has besides the tensors of a plan.
struct Extras {
  struct Entry {
    Keys keys;
    size_t item;
    std::optional<std::pair<DType, Shape>> tensor = {};  // None: it is an object.
  };
  std::vector<std::string> items = {};  // Archives; several entries may have the same one.
  std::vector<Entry> entries = {};
};

// `.metadata` is the last file. `prefix` precedes the path of each tensor of the plan.
std::vector<FileLayout> LayOutCheckpoint(const LayoutRequest& request, const Keys& prefix,
                                         const Extras& extras);

// Returns the state of the optimizer under `optim`, as `get_optimizer_state_dict` names it, for
// floating-point tensors. Of tensors with the same elements, parameter groups list the first.
Extras StateOf(const LayoutRequest& request);

}  // namespace shardinit::dcp
