// Counts how much of a tensor is in its pieces.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "tensor/arrangement.h"

namespace shardinit {

// Returns how many different elements of their source the pieces have. All pieces must have the
// same source. Returns nothing if the overlaps are so numerous that counting would take minutes.
std::optional<int64_t> CountHeld(std::span<const Piece* const> pieces);

}  // namespace shardinit
