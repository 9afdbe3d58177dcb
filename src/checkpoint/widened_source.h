// Gives a source the tensors that quantized ones represent.
#pragma once

#include <map>
#include <memory>
#include <string>

#include "plan/plan.h"
#include "tensor/source.h"

namespace shardinit {

// Returns `stored` with each quantized tensor and its scales replaced by the tensor that they
// represent, in f32. `plan` has the tensors of `stored` and the model's config.json.
//
// Throws Error (kUsage) if a tensor is quantized in a way that is not read.
std::shared_ptr<const SourceFolder> WidenedSource(const SourceRequest& request,
                                                  const std::shared_ptr<const SourceFolder>& stored,
                                                  const Plan& plan);

// Which elements of `stored` are not numbers of the model.
struct ScaledTensors {
  std::map<std::string, std::string> by;  // the path of their scales, by the path of numbers
  // Why not all of them are known; empty: they are.
  std::string problem;
};
ScaledTensors FindScaled(const SourceFolder& stored, const Plan& plan);

}  // namespace shardinit
