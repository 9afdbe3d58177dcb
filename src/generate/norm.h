// Computes Euclidean norms of another tensor's elements, `init: {norms: {of: …}}`. It makes that
// tensor along with them and keeps nothing of it.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "generate/filler.h"
#include "graph/graph.h"

namespace shardinit {

class NormFiller final : public Filler {
 public:
  explicit NormFiller(const Tensor& tensor);

  // Throws Error (kUsage) for a norm that the tensor's type does not hold.
  void Fill(const Runs& runs, int64_t first, int64_t count, void* out) const override;

 private:
  // Finds norms where `are_short_rows_`; the terms of all of them fit in a tile.
  void FindOfRows(int64_t index, int64_t count, double* norms) const;
  // Finds `count` norms side by side, from element `index` on, whose terms are side by side, too.
  void FindNorms(int64_t index, int64_t count, double* norms) const;

  const std::string path_;
  const DType dtype_;
  const std::shared_ptr<const Tensor> of_;
  const std::unique_ptr<const Filler> elements_;  // makes elements of `of_`
  // The dimensions of `of_` that norms are over, and the others; the last one varies fastest.
  // Neighbours in the same list are merged.
  std::vector<Runs::Dimension> over_, kept_;
  int64_t terms_ = 1;  // terms of a norm
  int64_t side_ = 1;   // norms whose terms lie side by side
  // The terms of each norm are few and lie side by side, followed by those of the next norm.
  bool are_short_rows_ = false;
};

}  // namespace shardinit
