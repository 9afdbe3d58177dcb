// Checks that tensors of a folder agree where they hold the same elements of a model, such as a
// head that is tied to the token table, or a norm with two names.
#pragma once

#include "checkpoint/folder.h"

namespace shardinit {

// Throws Error (kUsage) if the folder, whose plan describes its tensors, has two values of an
// element. Conversions copy each element from one place, so the other value would be lost.
void RequireAlike(const TensorFolder& folder);

// Returns whether the folder's config.json ties a head to the embedding, but the two differ.
// Transformers keeps such a head, which silently unties them.
bool IsUntied(const TensorFolder& folder);

// Returns whether two tensors of the same shape and type are equal. Stops at the first difference.
bool AreEqual(const TensorFolder& folder, const Tensor& a, const Tensor& b);

}  // namespace shardinit
