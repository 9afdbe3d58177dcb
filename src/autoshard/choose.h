// Chooses the cheapest sharding that trainers can run. The choice is exact, from a short table, and
// the same on every machine.
#pragma once

#include <optional>
#include <vector>

#include "autoshard/cost.h"

namespace shardinit {

// Returns the ways to shard the weights of one block, each way once, or nothing if there are too
// many.
//
// Each mesh axis leaves the weights whole or, if its ranks have different tokens, shards them to be
// gathered. Vectors may differ from matrices in this. An axis for computation may also split the
// block, and an axis for experts may route. A weight with an entry in `fixed` is sharded as the
// entry specifies.
using BlockPlacements = std::vector<AxisPlacements>;  // for each of the block's weights
using FixedPlacements = std::vector<std::optional<AxisPlacements>>;  // for each weight of the model
std::vector<BlockPlacements> Strategies(const StepModel& model, const StepBlock& block,
                                        const FixedPlacements& fixed);

struct Choice {
  enum Status {
    kFound,
    kTooLittleMemory,  // `cost.memory` is the least possible memory
    kTooMany,          // too many ways: the search gave up without a result
  };
  Status status = kFound;
  std::vector<AxisPlacements> placements;  // for each weight
  StepCost cost;
};

Choice Choose(const StepModel& model, const FixedPlacements& fixed);

}  // namespace shardinit
