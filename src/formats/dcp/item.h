// A tensor of a DCP file is what `torch.save` writes for it: a zip archive of uncompressed files,
// one of which has the elements.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tensor/box.h"
#include "tensor/dtype.h"

namespace shardinit::dcp {

struct Item {
  std::string head;  // bytes before the elements
  std::string tail;  // bytes behind the elements
  // The offset of the elements' CRC-32 in each.
  int64_t crc_in_head, crc_in_tail;
};

// Makes the item of a contiguous tensor of less than 2 GiB that begins at `start` in its file. Its
// elements begin at a multiple of 64, as torch.save has them, and large ones on a page, for
// O_DIRECT.
Item MakeItem(DType dtype, const Shape& shape, int64_t start);

// Makes a tensor of zeros, of whatever size, in less than 1 KiB: one element stands for all.
std::string MakeZeros(DType dtype, const Shape& shape);

// Makes an archive of a pickle that has no tensors.
std::string MakeArchive(std::string pickle);

}  // namespace shardinit::dcp
