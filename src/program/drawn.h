// The elements of drawn tensors, as operations of a program.
#pragma once

#include <string>
#include <vector>

#include "graph/graph.h"
#include "program/number.h"
#include "program/tensor.h"

namespace shardinit::program {

// What drawn tensors have in common that differ in their tables alone.
std::string KindOf(const Tensor& tensor);
// A row for each of them, which are of one kind. Throws Error (kUsage) for a tensor that no program
// makes.
Table TableOf(const std::vector<const Tensor*>& tensors);

// Of these tensors, which are of one kind, the element at an index in that of number `row`, as it
// is stored: floats as their bits. Their table becomes an argument of the function.
Value WriteDrawnTensors(const std::vector<const Tensor*>& tensors, const Word64& row,
                        const std::vector<Word64>& at, Function* out);

// A number that is not drawn, in the same form.
Value ConstantOf(const Function& out, double value, DType dtype);

}  // namespace shardinit::program
