// State shared by the passes that turn a spec into its graph. Each pass reports errors and
// continues with a neutral value.
#pragma once

#include <fmt/format.h>

#include <map>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/diagnostics.h"
#include "base/suggest.h"
#include "graph/explanation.h"
#include "graph/graph.h"
#include "graph/scope.h"
#include "spec/spec.h"

namespace shardinit {

class SourceTable;  // graph/sources.h
struct Training;    // autoshard/cost.h

// The maximum number of tensors in a repeat or a model.
inline constexpr int64_t kMaxTensors = 4'000'000;

struct Building {
  // Evaluates the spec's variables. `explanation` receives notes on one tensor; it may be null.
  Building(const ModelSpec& model, Diagnostics& reports, Explanation* explanation)
      : spec(model),
        diagnostics(reports),
        names(model.vars, MayLack(model.vars, model.wrong.Has("vars")), model.modules, reports),
        why(explanation, names) {}
  // Copies the variables of `other`, whose errors were already reported; other state is separate.
  Building(const Building& other, Diagnostics& reports, Explanation* explanation)
      : spec(other.spec), diagnostics(reports), names(other.names), why(explanation, names) {
    names.Trace(nullptr);
  }

  const ModelSpec& spec;
  Diagnostics& diagnostics;
  SpecScope names;
  Recorder why;
  const Training* training = nullptr;  // null until it is bound, and in layouts
  SourceTable* sources = nullptr;      // null in layouts

  size_t Reported() const { return diagnostics.errors(); }
};

// `uneven: pad` of one tensor: the value that pads it until its shards are equal.
struct Padding {
  double value;
  Span place;  // of the `uneven` that requests padding
};

using Paddings = std::map<size_t, Padding>;  // key: index of the padded tensor

// Tensors and their places in the spec.
struct WrittenTensors {
  std::vector<Tensor> tensors;
  std::vector<const Span*> places;           // of the tensors' names
  std::vector<const TensorSpec*> specs;      // null if a layout keeps or stacks the tensor
  std::vector<const TensorSpec*> shapeless;  // not in `tensors` because their shapes are wrong
  bool all_visited = true;                   // false: errors in repeats or `when` hide some tensors
  Paddings paddings;                         // set when the tensors are sharded
  // The fans of all drawn tensors. Filled only if a sharding is chosen or its cost is requested.
  std::unordered_map<const TensorSpec*, FanSource> fans;

  bool IsComplete() const { return all_visited && shapeless.empty(); }

  void Add(Tensor tensor, const Span& place, const TensorSpec* spec) {
    tensors.push_back(std::move(tensor));
    places.push_back(&place);
    specs.push_back(spec);
  }
};

// Reports a name that is not among `known`; `kind` is what kind of name it is, such as `mesh axis`.
inline void ReportUnknown(std::string_view kind, const Located<std::string>& name,
                          const std::vector<std::string>& known, Diagnostics& diagnostics) {
  diagnostics.Error(
      name.span, fmt::format("unknown {} `{}`", kind, name.value),
      known.empty() ? fmt::format("the spec declares no {}", kind) : DidYouMean(name.value, known));
}

}  // namespace shardinit
