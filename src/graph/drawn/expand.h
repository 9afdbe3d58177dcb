// The first pass: expands modules and repeats. It visits tensors without keeping them, because a
// few lines of a spec can make millions.
#pragma once

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
};

class LeafVisitor {
 public:
  virtual ~LeafVisitor() = default;
  // Called while the scope has the numbers of the repeats around the tensor.
  virtual void Visit(const Leaf& leaf) = 0;
  // Announces how many tensors are likely to be visited next.
  virtual void Expect(int64_t) {}
};

// Takes notes while it visits the tensor that is explained. `before` is the number of tensors that
// exist already. A repeat ends at the first iteration that
// reports anything, so that one mistake gives one message. Returns false if mistakes hide some of
// the tensors.
bool Expand(const ModuleSpec& root, int64_t before, Building& building, LeafVisitor& visitor);

// Returns `a.b`; either part may be empty.
std::string JoinPaths(const std::string& path, const std::string& name);

}  // namespace shardinit
