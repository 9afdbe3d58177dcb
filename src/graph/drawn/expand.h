// The first pass: expands modules and repeats. It visits tensors without keeping them, because a
// few lines of a spec can make millions.
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
  // `fans` of the modules around; null: none; an empty word: it is wrong.
  const Located<std::string>* fans;
  const StageSpec* stage;  // the tensor's own, or that of the modules around; null: none
  size_t blocks_of_stage;  // the blocks around the place where it is written
};

// Calls `visit` while the scope has the numbers of the repeats around the tensor, and takes notes
// if the tensor is the one that is explained. `before` is the number of tensors that exist already.
// `expect`, if given, learns how many tensors are likely to be visited next. A repeat ends at the
// first iteration that reports anything, so that one mistake gives one message. Returns false if
// mistakes hide some of the tensors.
bool Expand(const ModuleSpec& root, int64_t before, Building& building,
            const std::function<void(const Leaf&)>& visit,
            const std::function<void(int64_t)>& expect = nullptr);

// Returns `a.b`; either part may be empty.
std::string JoinPaths(const std::string& path, const std::string& name);

}  // namespace shardinit
