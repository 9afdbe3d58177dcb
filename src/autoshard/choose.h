// Chooses the cheapest of the shardings that trainers run: an exact choice from a short table, the
// same on every machine.
#pragma once

#include <optional>
#include <vector>

#include "autoshard/cost.h"

namespace shardinit {

// The ways to shard the weights of one block, each way once. Each mesh axis leaves them whole or,
// if its ranks have different tokens, shards them to be gathered (for vectors the choice may differ
// from that for matrices). An axis for computation may also split the block, and one for experts
// may route. A weight with an entry in `fixed` is sharded as the entry says. Returns nothing if
// there are too many ways.
using BlockPlacements = std::vector<AxisPlacements>;  // for each of the block's weights
using FixedPlacements = std::vector<std::optional<AxisPlacements>>;  // for each weight of the model
std::vector<BlockPlacements> Strategies(const StepModel& model, const StepBlock& block,
                                        const FixedPlacements& fixed);

struct Choice {
  enum Status {
    kFound,
    kTooLittleMemory,  // `cost.memory` is the least memory possible.
    kTooMany,          // There are too many ways: the search gave up and knows nothing.
  };
  Status status = kFound;
  std::vector<AxisPlacements> placements;  // for each weight
  StepCost cost;
};

Choice Choose(const StepModel& model, const FixedPlacements& fixed);

}  // namespace shardinit
