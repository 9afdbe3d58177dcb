// A tensor's elements in a box, as a function of a program.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "graph/graph.h"
#include "program/function.h"
#include "tensor/box.h"

namespace shardinit::program {

// The data that a function gets about the drawn tensors it is made of. Each tensor of one
// kind has a row of 32-bit words: the low and high half of its key, and its sampler's parameters.
struct Table {
  int64_t columns = 0;
  std::vector<uint32_t> words;  // row by row

  int64_t rows() const { return columns == 0 ? 0 : std::ssize(words) / columns; }
};

// The parts of a tensor's function. Tensors of one kind differ only in their tables.
struct TensorParts {
  std::string kind;  // a text that tensors with the same function share
  std::vector<Table> tables;
};

// Throws Error (kUsage) if a program cannot make the tensor.
TensorParts PartsOf(Arithmetic arithmetic, const Tensor& tensor, const Box& box);

struct WrittenFunction {
  std::string text;  // `func.func private @<name>(%zero, tables) -> elements`
  bool needs_zero;
};
WrittenFunction WriteFunction(Arithmetic arithmetic, bool partitioned, const Tensor& tensor,
                              const Box& box, std::string_view name);

// Returns the type of a stored element in a program.
Element ElementOf(DType dtype);

}  // namespace shardinit::program
