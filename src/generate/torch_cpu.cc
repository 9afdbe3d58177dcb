#include "generate/torch_cpu.h"

#include <algorithm>

#include "graph/engines/torch_draws.h"
#include "kernels/torch_cpu.h"

namespace shardinit {

TorchFiller::TorchFiller(const Tensor& tensor) : drawn_(TorchDrawsOf(tensor)) {}

void TorchFiller::Fill(const Runs& runs, int64_t first, int64_t count, void* out) const {
  auto* at = static_cast<uint8_t*>(out);
  while (count > 0) {
    const int64_t column = first % runs.length();
    const int64_t made = std::min(count, runs.length() - column);
    kernels::FillTorch(drawn_, static_cast<uint64_t>(runs.Start(first / runs.length()) + column),
                       static_cast<size_t>(made), at);
    first += made;
    count -= made;
    at += made * InfoOf(drawn_.dtype).bytes;
  }
}

}  // namespace shardinit
