// How much of a tensor its pieces hold.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "tensor/arrangement.h"

namespace shardinit {

// How many different elements of their source the pieces have: those of several pieces count
// once. The pieces are of one source. None: they overlap in so many ways that it would take
// minutes to tell.
std::optional<int64_t> CountHeld(std::span<const Piece* const> pieces);

}  // namespace shardinit
