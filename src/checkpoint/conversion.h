// Decides what a conversion of a folder writes: which tensors, in which layout, and of which types.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "checkpoint/folder.h"
#include "plan/plan.h"

namespace shardinit {

// Options have the texts that the user gave.
struct ConversionRequest {
  std::vector<std::string> drop;  // patterns of names
  std::string dtype;              // empty: types stay
  bool is_inexact = false;        // whether layouts may change values
  // The layouts of the model's spec that the folder has and that is to be written. Both may be
  // equal. `load` returns the plan in a layout, and reports the spec's warnings on demand. Without
  // it the tensors keep their names and shapes, and `shard` gives their plan a mesh.
  std::string from_layout, to_layout;
  std::function<Plan(const TensorFolder& folder, const std::string& layout, bool reports_warnings)>
      load = nullptr;
  std::function<Plan(Plan plan)> shard = nullptr;
  // Receives sentences for the user. With `--quiet`, minor ones are left out.
  std::function<void(const std::string& sentence, bool is_minor)> say;
};

struct Conversion {
  TensorFolder from;  // with a plan that relates its tensors to the model's
  Plan to;
};

// Throws Error (kUsage) if the options do not fit the folder, or if values would change that may
// not.
Conversion PlanConversion(TensorFolder folder, const ConversionRequest& request);

}  // namespace shardinit
