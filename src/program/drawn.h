// Writes the elements of drawn tensors as operations of a program.
#pragma once

#include <vector>

#include "graph/graph.h"
#include "program/number.h"

namespace shardinit::program {

// Returns the element at index `at` of tensor number `row`, in its stored form: floats as their
// bits. All tensors must be of one kind. Their table becomes an argument of the function.
Value WriteDrawnTensors(const std::vector<const Tensor*>& tensors, const Word64& row,
                        const std::vector<Word64>& at, Function* out);

}  // namespace shardinit::program
