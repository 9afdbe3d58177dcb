// Makes elements of tensors under the engine torch_cpu.
#pragma once

#include "generate/filler.h"
#include "graph/graph.h"
#include "rng/torch_cpu.h"

namespace shardinit {

class TorchFiller final : public Filler {
 public:
  explicit TorchFiller(const Tensor& tensor);

  void Fill(const Runs& runs, int64_t first, int64_t count, void* out) const override;

 private:
  const torch_cpu::Drawn drawn_;
};

}  // namespace shardinit
