// Returns the bytes of a box of a tensor.
#pragma once

#include <cstdint>
#include <vector>

#include "generate/fill.h"
#include "graph/graph.h"
#include "tensor/box.h"
#include "tensor/dtype.h"

namespace shardinit {

inline std::vector<uint8_t> Filled(const Tensor& tensor, const Box& box) {
  const int64_t count = ElementCount(box.shape);
  std::vector<uint8_t> bytes(static_cast<size_t>(count * InfoOf(tensor.dtype()).bytes));
  BoxFiller(tensor, box).Fill(0, count, bytes.data());
  return bytes;
}

}  // namespace shardinit
