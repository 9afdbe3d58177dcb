// The sharding of least cost: an exact search, the same on every machine.
//
// Of each weight the search chooses among its candidates; of each logical axis and each
// computation axis, whether activations are cut. Once the latter are settled, weights no longer
// depend on one another but for memory. So it branches on these alone, and of what is not settled
// yet each weight has what suits it best, which no completion can be below.
#pragma once

#include <optional>
#include <vector>

#include "sharding/cost.h"

namespace shardinit {

// The ways in which a weight may be cut. All batch axes together cut one dimension, or none; each
// computation axis cuts one, or none; axes of other uses none. Vectors may be cut in all these
// ways. Other weights are cut by as many axes as can be without padding: by each that still divides
// a dimension. Where that leaves one out, they may instead be cut by all, with padding.
// Preferred ones first.
std::vector<AxisCuts> Candidates(const StepModel& model, const StepWeight& weight);

struct SearchResult {
  enum Status {
    kFound,
    kTooLittleMemory,  // `cost.rank_bytes` is the least there is.
    kTooMany,          // Possibilities: it gave up, and knows nothing.
  };
  Status status = kFound;
  std::vector<AxisCuts> cuts;  // Of each weight.
  StepCost cost;
};

// `fixed` has, of each weight, how it is cut whatever the search finds; or nothing. The weights on
// one rank have at most `memory` bytes.
SearchResult FindSharding(const StepModel& model, const std::vector<std::optional<AxisCuts>>& fixed,
                          std::optional<double> memory);

}  // namespace shardinit
