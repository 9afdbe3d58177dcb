// Assembles the stored tensors of one layout from another layout's.
#pragma once

#include <memory>
#include <vector>

#include "graph/graph.h"
#include "graph/stored/view.h"

namespace shardinit {

// Returns whether both have the same elements, regardless of sharding.
bool AreStoredAlike(const Tensor& a, const Tensor& b);

// Rearranges the tensors of one graph for another graph of the same model. Both must outlive it.
class Rearrangement {
 public:
  Rearrangement(const InitGraph& from, const InitGraph& to);

  // Returns a stored tensor of `to` as a view of the tensors that `from` stores. Throws Error
  // (kUsage) if `from` lacks some of its elements.
  Tensor ViewOf(const Tensor& tensor);

 private:
  // Returns a drawn tensor as an arrangement of the tensors that `from` stores, or throws.
  Viewed ArrangementOf(std::string_view path);
  Viewed Arrange(const ViewNode& node);

  const InitGraph &from_, &to_;
  const std::shared_ptr<const std::vector<Tensor>> stored_;  // tensors of `from`; not owned
  // For each drawn tensor of `from`, its pieces in the stored tensors.
  std::vector<std::vector<Piece>> pieces_;
  PieceBudget budget_ = kMaxPieces;
};

}  // namespace shardinit
