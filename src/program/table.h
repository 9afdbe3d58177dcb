// The data that a function gets about the drawn tensors it is made of.
#pragma once

#include <array>
#include <bit>
#include <cstdint>
#include <string>
#include <vector>

#include "graph/graph.h"

namespace shardinit::program {

// Each tensor of one kind has a row of 32-bit words: the low and high half of its key, and its
// sampler's parameters; or its elements.
struct Table {
  int64_t columns = 0;
  std::vector<uint32_t> words;  // row by row

  int64_t rows() const { return columns == 0 ? 0 : std::ssize(words) / columns; }
};

// Returns what drawn tensors have in common that differ only in their tables.
std::string KindOf(const Tensor& tensor);
// Returns a table with a row for each tensor; all are of one kind. Throws Error (kUsage) for a
// tensor that no program makes.
Table TableOf(const std::vector<const Tensor*>& tensors);

// Returns the number of words that an element of a file takes in a table.
inline int64_t WordsOf(DType dtype) { return InfoOf(dtype).bytes == 8 ? 2 : 1; }

// Returns the words of a sampler, whose members have 32 bits each, in their order.
template <typename Sampler>
std::array<uint32_t, sizeof(Sampler) / 4> SamplerWords(const Sampler& sampler) {
  return std::bit_cast<std::array<uint32_t, sizeof(Sampler) / 4>>(sampler);
}

}  // namespace shardinit::program
