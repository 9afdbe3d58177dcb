// Reads `export --optimizer`: the optimizer whose initial state is exported with the model.
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
  // Patterns of paths. A tensor belongs to the first group with a matching pattern.
  std::vector<Located<std::string>> params;
  // All hyperparameters of PyTorch's AdamW, in its order, with its defaults. `lr` and `initial_lr`
  // are present only if given. Empty: the training run sets them.
  std::vector<std::pair<std::string_view, Hyperparameter>> hyperparameters = {};
  bool amsgrad = false;
};

struct OptimizerSpec {
  std::vector<ParamGroup> groups;  // of AdamW; all of them have hyperparameters, or none has
  bool has_schedule = false;       // the learning rate has an Optax schedule, with a count of steps
};

// Reads `adamw`, `{adamw: {params: …, lr: …, schedule: …}}`, `{adamw: [{…}, {…}]}` or the name of a
// file with one of these. Reports errors.
OptimizerSpec ReadOptimizer(const std::string& text, Diagnostics& diagnostics);

}  // namespace shardinit
