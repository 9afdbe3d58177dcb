// Plans the conversion of a folder: which tensors to write, in which layout, and with which types.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/folder.h"
#include "plan/plan.h"

namespace shardinit {

// The options of a conversion, as the user wrote them.
struct ConversionRequest {
  std::vector<std::string> drop;  // patterns of names
  std::optional<DType> dtype;     // a floating-point type; if not given, the types stay
  bool is_inexact = false;        // whether layouts may change values
  // The folder's layout and the layout to write, both from the model's spec. They may be equal.
  // `load` returns the plan in a layout, and reports the spec's warnings on demand. Without it,
  // tensors keep their names and shapes, and `shard` gives their plan a mesh.
  std::string from_layout, to_layout;
  std::function<Plan(const TensorFolder& folder, const std::string& layout, bool reports_warnings)>
      load = nullptr;
  std::function<Plan(const Plan& plan)> shard = nullptr;
  // Receives sentences for the user. `--quiet` suppresses minor ones.
  std::function<void(const std::string& sentence, bool is_minor)> say = nullptr;
};

struct Conversion {
  TensorFolder from;  // with a plan that relates its tensors to the model's
  Plan to;
};

// Plans a conversion. Throws Error (kUsage) if the options do not fit the folder, or if values
// would change without `is_inexact`.
Conversion PlanConversion(TensorFolder folder, const ConversionRequest& request);

}  // namespace shardinit
