// The elements of drawn tensors, as operations of a program.
#pragma once

#include <string>
#include <vector>

#include "graph/graph.h"
#include "program/number.h"
#include "program/tensor.h"

namespace shardinit::program {

// Returns what drawn tensors have in common that differ only in their tables.
std::string KindOf(const Tensor& tensor);
// Returns a table with a row for each tensor; all are of one kind. Throws Error (kUsage) for a
// tensor that no program makes.
Table TableOf(const std::vector<const Tensor*>& tensors);

// Returns the element at index `at` of tensor number `row`, as it is stored: floats as their bits.
// All tensors are of one kind. Their table becomes an argument of the function.
Value WriteDrawnTensors(const std::vector<const Tensor*>& tensors, const Word64& row,
                        const std::vector<Word64>& at, Function* out);

// Returns a number that is not drawn, in the same form.
Value ConstantOf(const Function& out, double value, DType dtype);

}  // namespace shardinit::program
