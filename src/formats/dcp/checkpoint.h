// Lays out folders of torch.distributed.checkpoint (DCP), for formats that may add entries.
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

// A tensor in a DCP file, as `torch.save` writes it: a zip archive of uncompressed files, one of
// which has the elements.
struct Item {
  std::string head;  // bytes before the elements
  std::string tail;  // bytes after the elements
  // The offset of the elements' CRC-32 in each.
  int64_t crc_in_head, crc_in_tail;
  int64_t padding;  // bytes of the head that only align the elements
};

// Returns the item of a contiguous tensor of less than 2 GiB; the item begins at `start` in its
// file. The elements begin at a multiple of 64, as in torch.save. Large ones begin on a page, for
// O_DIRECT.
Item MakeItem(DType dtype, const Shape& shape, int64_t start);

// Computes the sizes of such items without making each: few have a shape of their own.
class ItemSizes {
 public:
  // These return the bytes before the elements of an item that begins at `start`, and after them.
  int64_t HeadOf(DType dtype, const Shape& shape, int64_t start);
  int64_t tail() const { return tail_; }

 private:
  std::map<std::pair<DType, Shape>, int64_t> unpadded_;  // without padding, by type and shape
  int64_t tail_ = 0;                                     // the same for all; set by HeadOf()
};

// Returns a tensor of zeros of any size in less than 1 KiB: it stores a single element.
std::string MakeZeros(DType dtype, const Shape& shape);

// Returns an archive of a pickle without tensors.
std::string MakeArchive(std::string pickle);

// The place of a value in nested dictionaries and lists. The keys, joined by dots, are its name.
using Keys = std::vector<Variant<std::string, int64_t>>;

// The contents of a folder other than a plan's tensors.
struct Extras {
  struct Entry {
    Keys keys;
    size_t item;
    std::optional<std::pair<DType, Shape>> tensor = {};  // nullopt for an object
  };
  std::vector<std::string> items = {};  // archives; several entries may share one
  std::vector<Entry> entries = {};
};

// Lays out the folder; `.metadata` is the last file. `prefix` precedes the path of each tensor of
// the plan.
std::vector<FileLayout> LayOutCheckpoint(const LayoutRequest& request, const Keys& prefix,
                                         const Extras& extras);

// Returns the optimizer state of floating-point tensors under `optim`, with the names of
// `get_optimizer_state_dict`. If several tensors have the same elements, parameter groups list the
// first.
Extras StateOf(const LayoutRequest& request);

}  // namespace shardinit::dcp
