// The first pass: expands modules and repeats. It visits tensors without storing them, because a
// few lines of a spec can produce millions.
#pragma once

#include <functional>
#include <string>

#include "graph/building.h"

namespace shardinit {

// One expanded tensor. Only `spec` and `place` outlive the visit.
struct Leaf {
  const std::string& path;
  const TensorSpec& spec;
  const Span& place;  // of the tensor's name
  // `fans` of the enclosing modules; null: none; an empty word: wrong.
  const Located<std::string>* fans;
  const StageSpec* stage;  // of the tensor or its enclosing modules; null: none
  size_t blocks_of_stage;  // number of blocks around `stage` in the spec
};

// Calls `visit` for each tensor, with the numbers of the enclosing repeats in scope, and takes
// notes if the tensor is being explained. `before` is the number of tensors that already exist.
// Calls `expect`, if given, with the estimated number of further visits. A repeat stops at the
// first iteration that reports anything, so that one error produces one message. Returns false if
// errors hide some of the tensors.
bool Expand(const ModuleSpec& root, int64_t before, Building& building,
            const std::function<void(const Leaf&)>& visit,
            const std::function<void(int64_t)>& expect = nullptr);

// Returns `a.b`; either part may be empty.
std::string JoinPaths(const std::string& path, const std::string& name);

}  // namespace shardinit
