// The sharding that costs least, of those that trainers run: an exact choice from a short table,
// the same on every machine.
#pragma once

#include <optional>
#include <vector>

#include "autoshard/cost.h"

namespace shardinit {

// How the weights of one block may be cut, each way once. Each axis leaves them whole, or, if its
// ranks have different tokens, cuts them to be gathered, which may be another choice for vectors
// than for matrices; or, where that is its use, it splits the block or has its experts. A weight
// with an entry in `fixed` is cut as that says. None: there are too many.
using BlockCuts = std::vector<AxisCuts>;                 // Of each of its weights.
using FixedCuts = std::vector<std::optional<AxisCuts>>;  // Of each weight of the model.
std::vector<BlockCuts> Strategies(const StepModel& model, const StepBlock& block,
                                  const FixedCuts& fixed);

struct Choice {
  enum Status {
    kFound,
    kTooLittleMemory,  // `cost` is that of least memory.
    kTooMany,          // Ways: it gave up, and knows nothing.
  };
  Status status = kFound;
  std::vector<AxisCuts> cuts;  // Of each weight.
  StepCost cost;
};

Choice Choose(const StepModel& model, const FixedCuts& fixed);

}  // namespace shardinit
