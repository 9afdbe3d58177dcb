// Checks the assertions that a spec makes about its variables.
#pragma once

#include "graph/building.h"

namespace shardinit {

// Reports each failed assertion with the values of its variables.
void CheckAssertions(const Building& building);

}  // namespace shardinit
