// Lays out the folder of torch.distributed.checkpoint, for formats that have more in it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/variant.h"
#include "formats/format.h"
#include "tensor/box.h"
#include "tensor/dtype.h"

namespace shardinit::dcp {

// A tensor of a DCP file is what `torch.save` writes for it: a zip archive of uncompressed files,
// one of which has the elements.
struct Item {
  std::string head;  // bytes before the elements
  std::string tail;  // bytes behind the elements
  // The offset of the elements' CRC-32 in each.
  int64_t crc_in_head, crc_in_tail;
  int64_t padding;  // bytes of the head that only align the elements
};

// Makes the item of a contiguous tensor of less than 2 GiB that begins at `start` in its file. Its
// elements begin at a multiple of 64, as torch.save has them, and large ones on a page, for
// O_DIRECT.
Item MakeItem(DType dtype, const Shape& shape, int64_t start);

// Tells the sizes of such items without making each: few have a shape of their own.
class ItemSizes {
 public:
  // These return the bytes before the elements of an item that begins at `start`, and behind them.
  int64_t HeadOf(DType dtype, const Shape& shape, int64_t start);
  int64_t tail() const { return tail_; }

 private:
  std::map<std::pair<DType, Shape>, int64_t> unpadded_;  // by type and shape: without padding
  int64_t tail_ = 0;  // the same for all; known with the first head
};

// Makes a tensor of zeros, of whatever size, in less than 1 KiB: one element stands for all.
std::string MakeZeros(DType dtype, const Shape& shape);

// Makes an archive of a pickle that has no tensors.
std::string MakeArchive(std::string pickle);

// The place of a value in nested dictionaries and lists. Joined by dots, the keys are its name.
using Keys = std::vector<Variant<std::string, int64_t>>;

// Things that a folder has besides the tensors of a plan.
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
