// Tensors of a folder that hold the same elements of a model, as a head that is tied to the table
// of tokens, or a norm with two names.
#pragma once

#include "checkpoint/folder.h"

namespace shardinit {

// Each element of a model is copied from one place. Throws Error (kUsage) if the folder, whose plan
// says what its tensors hold, has another value of it in a second place, which would be lost.
void RequireAlike(const TensorFolder& folder);

// Compares two tensors of one shape and type until an element differs.
bool AreEqual(const TensorFolder& folder, const Tensor& a, const Tensor& b);

}  // namespace shardinit
