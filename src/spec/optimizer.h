// Reads `export --optimizer`: the optimizer whose state before the first step is written, too.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "base/diagnostics.h"

namespace shardinit {

using Hyperparameter = std::variant<std::nullptr_t, bool, double, std::pair<double, double>>;

// A group of tensors that are trained with the same hyperparameters.
struct ParamGroup {
  // These patterns match paths. A tensor is in the first group that has a matching one.
  std::vector<Located<std::string>> params;
  // These are all of PyTorch's AdamW, in its order, with its own defaults, but `lr` and
  // `initial_lr` only as given. Empty: the run sets them.
  std::vector<std::pair<std::string_view, Hyperparameter>> hyperparameters = {};
  bool amsgrad = false;
};

struct OptimizerSpec {
  std::vector<ParamGroup> groups;  // groups of AdamW; all have hyperparameters, or none
  bool has_schedule = false;       // the learning rate has an Optax schedule, with a count of steps
};

// Reads `adamw`, `{adamw: {params: …, lr: …, schedule: …}}`, `{adamw: [{…}, {…}]}` or the name of a
// file with one of these. Reports what is wrong.
OptimizerSpec ReadOptimizer(const std::string& text, Diagnostics& diagnostics);

}  // namespace shardinit
