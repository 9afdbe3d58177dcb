// The folder of torch.distributed.checkpoint, for formats that have more in it.
#pragma once

#include <string>
#include <vector>

#include "formats/format.h"

namespace shardinit::dcp {

// What is no tensor: names that all have the same value.
struct Objects {
  std::vector<std::string> names = {};
  std::string pickle = {};
};

// `.metadata` is the last file.
std::vector<FileLayout> LayOutCheckpoint(const LayoutRequest& request, const Objects& objects);

}  // namespace shardinit::dcp
