// Checks what a spec asserts of its variables.
#pragma once

#include "graph/building.h"

namespace shardinit {

// Reports each assertion that does not hold, with the values of its variables.
void CheckAssertions(const Building& building);

}  // namespace shardinit
