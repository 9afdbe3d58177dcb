// Reads parts of quantized tensors in longer runs than they are asked for.
#pragma once

#include <array>

#include "quantized/widening.h"

namespace shardinit {

// Returns functions that read the same elements. Each keeps some of the next elements for its
// thread: boxes of a few columns need a few bytes of each row, which are read together with the
// rows between them. Thread-safe.
std::array<BoxElements, Widening::kParts> ReadingAhead(
    const Widening& widening, std::array<BoxElements, Widening::kParts> stored);

}  // namespace shardinit
