// torch.nn.init.sparse_ under the engine torch_cpu: in each column the rows that come first in a
// random permutation are zero.
#pragma once

#include <cstdint>
#include <vector>

#include "generate/filler.h"
#include "generate/shared_work.h"
#include "graph/graph.h"
#include "rng/torch_cpu.h"

namespace shardinit {

class TorchSparseFiller final : public Filler {
 public:
  TorchSparseFiller(const Sparse& sparse, const Tensor& tensor);

  void Fill(const Runs& runs, int64_t first, int64_t count, void* out) const override;

 private:
  // Says for each row of a column whether it is zero.
  using Zeros = std::vector<bool>;
  Zeros FindZeros(int64_t column) const;

  const torch_cpu::Drawn drawn_;
  const int64_t rows_, columns_, zeros_;
  mutable SharedWork<Zeros> work_;
};

}  // namespace shardinit
