// Builds the tables of data that a function needs about its drawn tensors.
#pragma once

#include <array>
#include <bit>
#include <cstdint>
#include <string>
#include <vector>

#include "graph/graph.h"

namespace shardinit::program {

// A row of 32-bit words for each tensor of one kind: the low and high half of its key and its
// sampler's parameters, or its elements.
struct Table {
  int64_t columns = 0;
  std::vector<uint32_t> words;  // row by row

  int64_t rows() const { return columns == 0 ? 0 : std::ssize(words) / columns; }
};

// Returns the common description of drawn tensors that differ only in their tables.
std::string KindOf(const Tensor& tensor);
// Returns a table with a row for each tensor. All must be of one kind. Throws Error (kUsage) for a
// tensor that programs cannot generate.
Table TableOf(const std::vector<const Tensor*>& tensors);

// Returns the number of words for an element of a file in a table.
inline int64_t WordsOf(DType dtype) { return InfoOf(dtype).bytes == 8 ? 2 : 1; }

// Returns the words of a sampler in the order of its members, which have 32 bits each.
template <typename Sampler>
std::array<uint32_t, sizeof(Sampler) / 4> SamplerWords(const Sampler& sampler) {
  return std::bit_cast<std::array<uint32_t, sizeof(Sampler) / 4>>(sampler);
}

}  // namespace shardinit::program
