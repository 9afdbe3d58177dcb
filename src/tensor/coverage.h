// How much of a tensor its pieces hold.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "tensor/arrangement.h"

namespace shardinit {

// Returns how many different elements of their source the pieces have: elements in several pieces
// count once. All pieces have the same source. Returns nothing if they overlap in so many ways that
// the count would take minutes.
std::optional<int64_t> CountHeld(std::span<const Piece* const> pieces);

}  // namespace shardinit
