// The first pass: modules and repeats counted out. Tensors are visited, not kept: a spec has
// millions in a few lines.
#pragma once

#include <optional>
#include <span>
#include <string>

#include "graph/building.h"

namespace shardinit {

// A tensor that is there. All of it ends with the visit, but for its spec and its place.
struct Leaf {
  const std::string& path;
  const TensorSpec& spec;
  const Span& place;                                // Of its name.
  const std::optional<Located<std::string>>& fans;  // Of the modules around; an empty word: wrong.
  const StageSpec* stage;                           // Its own or of the modules around; null: none.
  std::span<const Expr* const> conditions;          // Each `when` that let it in, outermost first.
};

class LeafVisitor {
 public:
  virtual ~LeafVisitor() = default;
  // While the scope has the numbers of the repeats around.
  virtual void Visit(const Leaf& leaf) = 0;
  // So many are likely to be visited next.
  virtual void Expect(int64_t) {}
  // What a `when` of 0 leaves out.
  virtual void LeaveOut(const std::string& /*path*/, const TensorSpec&) {}
  virtual void LeaveOut(const std::string& /*path*/, const ModuleSpec&) {}
};

// `before`: how many tensors there are already. A repeat ends at the first turn in which anything
// is reported, so that one mistake gives one message. False: mistakes hide some of the tensors.
bool Expand(const ModuleSpec& root, int64_t before, Building& building, LeafVisitor& visitor);

// `a.b`, whichever is empty.
std::string JoinPaths(const std::string& path, const std::string& name);

}  // namespace shardinit
