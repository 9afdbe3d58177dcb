// What the passes from a spec to its graph share. Each reports what is wrong, and goes on with a
// neutral value.
#pragma once

#include <optional>
#include <string_view>
#include <vector>

#include "base/diagnostics.h"
#include "graph/graph.h"
#include "graph/scope.h"
#include "spec/spec.h"

namespace shardinit {

// A repeat's, a model's.
inline constexpr int64_t kMaxTensors = 4'000'000;

struct Building {
  // Evaluates the spec's variables.
  Building(const ModelSpec& model, Diagnostics& reports)
      : spec(model),
        diagnostics(reports),
        names(model.vars, MayLack(model.vars, model.wrong.Has("vars")), reports) {}

  const ModelSpec& spec;
  Diagnostics& diagnostics;
  SpecScope names;

  size_t Reported() const { return diagnostics.all().size(); }
};

// What makes a tensor longer whose parts would not be equal.
struct Padding {
  double value;
  Span place;  // Of the word.
};

// Tensors, and where each of them was written.
struct WrittenTensors {
  std::vector<Tensor> tensors;
  std::vector<const Span*> places;           // Of its name.
  std::vector<const TensorSpec*> specs;      // Null: one that a layout keeps as it is, or stacks.
  std::vector<const TensorSpec*> shapeless;  // Not among these, as their shapes are wrong.
  bool all_visited = true;                   // Else mistakes in repeats or `when` hide some.
  // Once they are cut, of each: if it is to be padded where it is uneven, and is.
  std::vector<std::optional<Padding>> paddings;

  bool IsComplete() const { return all_visited && shapeless.empty(); }

  void Add(Tensor tensor, const Span& place, const TensorSpec* spec) {
    tensors.push_back(std::move(tensor));
    places.push_back(&place);
    specs.push_back(spec);
  }
};

// Reports a name that is none of the `known` ones; `kind` is what it should name.
void ReportUnknown(std::string_view kind, const Located<std::string>& name,
                   const std::vector<std::string>& known, Diagnostics& diagnostics);

}  // namespace shardinit
