// Makes a matrix with zeros at random places of each column: those whose words of draw 1 are the
// smallest of the column. A shard therefore needs all words of its columns.
#pragma once

#include <cstdint>
#include <vector>

#include "generate/filler.h"
#include "generate/shared_work.h"
#include "graph/graph.h"
#include "rng/sampler.h"

namespace shardinit {

class SparseFiller final : public Filler {
 public:
  SparseFiller(const Sparse& sparse, const Tensor& tensor);

  void Fill(const Runs& runs, int64_t first, int64_t count, void* out) const override;

 private:
  // The limit of each column of a piece: an element is 0 if its word, followed by its row, is below
  // it.
  using Limits = std::vector<uint64_t>;
  Limits FindLimits(int64_t piece) const;

  const DType dtype_;
  const Stream stream_;
  const int64_t rows_, columns_, zeros_;
  const int64_t group_;  // columns of a piece of work
  const Sampler normal_;
  mutable SharedWork<Limits> work_;
};

}  // namespace shardinit
