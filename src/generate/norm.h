// Euclidean norms of another tensor's elements, `init: {norms: {of: …}}`: that tensor is made along
// with them, and nothing of it kept.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "generate/filler.h"
#include "graph/graph.h"

namespace shardinit {

class NormFiller final : public Filler {
 public:
  NormFiller(const Norm& norm, const Tensor& tensor);

  // Throws Error (kUsage) for a norm that the tensor's type does not hold.
  void Fill(const Runs& runs, int64_t first, int64_t count, void* out) const override;

 private:
  // Where they are `are_short_rows_`, as many as a tile has the terms of.
  void FindOfRows(int64_t index, int64_t count, double* norms) const;
  // `count` norms side by side, from element `index` on, which are of elements side by side, too.
  void FindNorms(int64_t index, int64_t count, double* norms) const;

  const std::string path_;
  const DType dtype_;
  const std::shared_ptr<const Tensor> of_;
  const std::unique_ptr<const Filler> elements_;  // Of it.
  // How its dimensions that norms are over, and those that they are not, number its elements; last
  // fastest. Those at the end that are alike are one.
  std::vector<Runs::Dimension> over_, kept_;
  int64_t terms_ = 1;  // Of a norm.
  int64_t side_ = 1;   // Norms of which the terms lie side by side.
  // The terms of a norm lie side by side, those of the next behind them, and they are few.
  bool are_short_rows_ = false;
};

}  // namespace shardinit
