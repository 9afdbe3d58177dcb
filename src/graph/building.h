// State that the passes from a spec to its graph share. Each pass reports mistakes and goes on with
// a neutral value.
#pragma once

#include <fmt/format.h>

#include <map>
#include <optional>
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

// The most tensors that a repeat or a model may have.
inline constexpr int64_t kMaxTensors = 4'000'000;

struct Building {
  // Evaluates the spec's variables. `explanation` gets notes on one tensor, unless it is null.
  Building(const ModelSpec& model, Diagnostics& reports, Explanation* explanation)
      : spec(model),
        diagnostics(reports),
        names(model.vars, MayLack(model.vars, model.wrong.Has("vars")), model.modules, reports),
        why(explanation, names) {}
  // Knows the variables of `other`, whose mistakes were reported; everything else is apart from it.
  Building(const Building& other, Diagnostics& reports, Explanation* explanation)
      : spec(other.spec), diagnostics(reports), names(other.names), why(explanation, names) {
    names.Trace(nullptr);
  }

  const ModelSpec& spec;
  Diagnostics& diagnostics;
  SpecScope names;
  Recorder why;
  const Training* training = nullptr;  // null until it is bound, and for layouts
  SourceTable* sources = nullptr;      // null for layouts

  size_t Reported() const { return diagnostics.errors(); }
};

// `uneven: pad` of one tensor: the value that fills it up until its shards are equal.
struct Padding {
  double value;
  Span place;  // of the `uneven` that asks for it
};

using Paddings = std::map<size_t, Padding>;  // of the tensors that are padded, by their numbers

// Tensors, and where each of them was written.
struct WrittenTensors {
  std::vector<Tensor> tensors;
  std::vector<const Span*> places;           // of the tensors' names
  std::vector<const TensorSpec*> specs;      // null if a layout keeps or stacks the tensor
  std::vector<const TensorSpec*> shapeless;  // not in `tensors`, as their shapes are wrong
  bool all_visited = true;  // false: mistakes in repeats or `when` hide some tensors
  Paddings paddings;        // found when the tensors are sharded
  // If a sharding is chosen or its cost is asked for: the fans of all drawn tensors of a spec.
  std::unordered_map<const TensorSpec*, FanSource> fans;

  bool IsComplete() const { return all_visited && shapeless.empty(); }

  void Add(Tensor tensor, const Span& place, const TensorSpec* spec) {
    tensors.push_back(std::move(tensor));
    places.push_back(&place);
    specs.push_back(spec);
  }
};

// Reports a name that is not among `known`; `kind` says what it should name.
inline void ReportUnknown(std::string_view kind, const Located<std::string>& name,
                          const std::vector<std::string>& known, Diagnostics& diagnostics) {
  diagnostics.Error(
      name.span, fmt::format("unknown {} `{}`", kind, name.value),
      known.empty() ? fmt::format("the spec declares no {}", kind) : DidYouMean(name.value, known));
}

}  // namespace shardinit
