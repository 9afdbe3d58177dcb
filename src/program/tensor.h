// A tensor's elements in a box, as a function of a program.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "graph/graph.h"
#include "program/function.h"
#include "tensor/box.h"

namespace shardinit::program {

// What a function is told of the drawn tensors that it is made of: a row for each of those that are
// alike, of 32-bit words: low and high half of the key, and the parameters of its sampler.
struct Table {
  int64_t columns = 0;
  std::vector<uint32_t> words;  // Row by row.

  int64_t rows() const { return columns == 0 ? 0 : std::ssize(words) / columns; }
};

// Tensors of one kind differ in their tables alone.
struct TensorParts {
  std::string kind;  // A text that tensors have in common whose function is the same.
  std::vector<Table> tables;
};

// Throws Error (kUsage) if a program cannot make the tensor.
TensorParts PartsOf(Arithmetic arithmetic, const Tensor& tensor, const Box& box);

struct WrittenFunction {
  std::string text;  // `func.func private @<name>(%zero, tables) -> elements`.
  bool needs_zero;
};
WrittenFunction WriteFunction(Arithmetic arithmetic, bool partitioned, const Tensor& tensor,
                              const Box& box, std::string_view name);

// As a stored element is in a program.
Element ElementOf(DType dtype);

}  // namespace shardinit::program
