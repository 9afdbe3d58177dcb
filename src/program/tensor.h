// Writes a function that computes a tensor's elements in a box.
#pragma once

#include <string>
#include <vector>

#include "program/function.h"
#include "program/table.h"
#include "tensor/box.h"

namespace shardinit::program {

// The parts of a tensor's function. Tensors of one kind differ only in their tables.
struct TensorParts {
  std::string kind;  // a text that tensors with the same function share
  std::vector<Table> tables;
};

// Throws Error (kUsage) if a program cannot generate the tensor.
TensorParts PartsOf(Arithmetic arithmetic, const Tensor& tensor, const Box& box);

struct WrittenFunction {
  std::string text;  // `func.func private @<name>(%zero, tables) -> elements`
  bool needs_zero;
};
WrittenFunction WriteFunction(Arithmetic arithmetic, bool partitioned, const Tensor& tensor,
                              const Box& box, std::string_view name);

}  // namespace shardinit::program
