// What `export --optimizer` says: the optimizer whose state before the first step is written, too.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "base/diagnostics.h"

namespace shardinit {

using Hyperparameter = std::variant<std::nullptr_t, bool, double, std::pair<double, double>>;

// Tensors that are trained with the same hyperparameters.
struct ParamGroup {
  // Patterns over paths. A tensor is in the first group that has one which matches.
  std::vector<Located<std::string>> params;
  // All of PyTorch's AdamW, in its order, with its own defaults; none: they are the run's affair.
  std::vector<std::pair<std::string_view, Hyperparameter>> hyperparameters = {};
  bool amsgrad = false;
};

struct OptimizerSpec {
  std::vector<ParamGroup> groups;  // Of AdamW. All have hyperparameters, or none.
  bool has_schedule = false;       // Of the learning rate, as Optax has one: with a count of steps.
};

// Reads `adamw`, `{adamw: {params: …, lr: …, schedule: …}}`, `{adamw: [{…}, {…}]}` or the name of a
// file with one of these. Reports what is wrong.
OptimizerSpec ReadOptimizer(const std::string& text, Diagnostics& diagnostics);

}  // namespace shardinit
