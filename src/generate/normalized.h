// Makes vectors of one length along a dimension: normal vectors, divided by their lengths. A shard
// that cuts these vectors draws them whole.
#pragma once

#include <cstdint>
#include <vector>

#include "generate/filler.h"
#include "generate/shared_work.h"
#include "graph/graph.h"

namespace shardinit {

class NormalizedFiller final : public Filler {
 public:
  NormalizedFiller(const Normalized& normalized, const Tensor& tensor);

  void Fill(const Runs& runs, int64_t first, int64_t count, void* out) const override;

 private:
  int64_t PieceOf(int64_t index) const;  // The piece that has this element's vector.
  // For each vector of a piece, length / its norm.
  using Factors = std::vector<double>;
  Factors FindFactors(int64_t piece) const;

  const DType dtype_;
  const Stream stream_;
  const double length_;
  const int64_t extent_;  // the dimension's extent
  const int64_t inner_;   // Vectors side by side: the number of elements behind the dimension.
  const int64_t vectors_;
  const int64_t each_;   // Vectors of a piece of work, if vectors follow one another.
  const int64_t tiles_;  // Pieces of the vectors that lie side by side, otherwise.
  mutable SharedWork<Factors> work_;
};

}  // namespace shardinit
