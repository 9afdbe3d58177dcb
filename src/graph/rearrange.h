// Stored tensors of one layout out of those of another.
#pragma once

#include <memory>
#include <vector>

#include "graph/graph.h"
#include "graph/view.h"

namespace shardinit {

// Whether both have the same elements, wherever they are cut.
bool AreStoredAlike(const Tensor& a, const Tensor& b);

// Two graphs of the same model, which outlive this.
class Rearrangement {
 public:
  Rearrangement(const InitGraph& from, const InitGraph& to);

  // A stored tensor of `to` as a view of what `from` stores. Throws Error (kUsage) if that lacks
  // something of it.
  Tensor ViewOf(const Tensor& tensor);

 private:
  // A drawn tensor of `from` as an arrangement of what is stored. Throws.
  Viewed ArrangementOf(const std::string& path);
  Viewed Arrange(const ViewNode& node);

  const InitGraph &from_, &to_;
  const std::shared_ptr<const std::vector<Tensor>> stored_;  // Of `from`; not owned.
  std::vector<std::vector<Piece>> pieces_;  // Of each drawn tensor of `from`, in what is stored.
  PieceBudget budget_ = kMaxPieces;
};

}  // namespace shardinit
