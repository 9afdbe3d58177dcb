#include <algorithm>

#include "autoshard/step.h"

namespace shardinit {

std::optional<Missing> MissingForCost(const StepModel& model) {
  const bool knows = model.training.experts_per_token > 0;
  for (const StepWeight& weight : model.weights) {
    if (knows || weight.experts < 0) continue;
    return Missing{"the spec does not define how many experts process a token",
                   "write `training: {experts_per_token: 2}`"};
  }
  return {};
}

std::optional<Missing> MissingForChoice(const StepModel& model) {
  if (auto missing = MissingForCost(model)) return missing;
  const auto& axes = model.training.axes;
  if (std::ranges::none_of(axes, [](const StepAxis& axis) {
        return axis.use == AxisUse::kComputation && axis.size > 1;
      })) {
    return {};
  }
  bool splits = false;
  for (const StepBlock& block : model.blocks) {
    splits |= block.experts > 1;
    for (const size_t w : block.weights) splits |= model.weights[w].MaySplit();
    if (block.kind != "attention" || model.training.heads > 0) continue;
    return Missing{
        "the spec does not define the number of attention heads, and a head may not be split",
        "write `training: {heads: 32, kv_heads: 8}`"};
  }
  if (splits) return {};
  return Missing{
      "no tensor names a dimension that ranks with the same tokens can shard",
      "name dimensions in `axes`: heads, mlp, vocab, experts; or write `training: {batch: AXIS}`"};
}

}  // namespace shardinit
