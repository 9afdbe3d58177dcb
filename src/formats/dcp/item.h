// A tensor of a DCP file: what `torch.save` writes for it, a zip archive of files that are not
// compressed, one of which is the elements.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tensor/box.h"
#include "tensor/dtype.h"

namespace shardinit::dcp {

std::string_view NameOf(DType dtype);  // As the module `torch` calls it: `bfloat16`.

// The class of storages with a type, as `torch` calls it (`FloatStorage`), which those have that
// are older than `UntypedStorage`; empty: it has none.
std::string_view StorageOf(DType dtype);

struct Item {
  std::string head;  // Before the elements.
  std::string tail;  // Behind them.
  // Where the CRC-32 of the elements stands in each.
  int64_t crc_in_head, crc_in_tail;
};

// Of a contiguous tensor, less than 2 GiB, that begins at `start` in its file: so that its elements
// begin at a multiple of 64, as torch.save has them, and large ones on a page, for O_DIRECT.
Item MakeItem(DType dtype, const Shape& shape, int64_t start);

// All of a tensor of zeros, of whatever size, in less than 1 KiB: one element, which stands for
// all.
std::string MakeZeros(DType dtype, const Shape& shape);

// The same of what has no tensors.
std::string MakeArchive(std::string pickle);

}  // namespace shardinit::dcp
