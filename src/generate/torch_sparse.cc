#include "generate/torch_sparse.h"

#include <algorithm>

#include "graph/engines/torch_draws.h"
#include "kernels/torch_cpu.h"
#include "tensor/dtype.h"

namespace shardinit {

TorchSparseFiller::TorchSparseFiller(const Sparse& sparse, const Tensor& tensor)
    : drawn_(TorchDrawsOf(tensor)),
      rows_(tensor.shape[0]),
      columns_(tensor.shape[1]),
      zeros_(sparse.zeros),
      work_([this](int64_t column) { return FindZeros(column); }) {}

TorchSparseFiller::Zeros TorchSparseFiller::FindZeros(int64_t column) const {
  Stream stream = torch_cpu::After(drawn_);
  stream.position += static_cast<uint64_t>(column) * static_cast<uint64_t>(rows_ - 1);
  const std::vector<uint32_t> order = torch_cpu::Permutation(stream, static_cast<uint32_t>(rows_));
  Zeros zeros(order.size());
  for (int64_t i = 0; i < zeros_; ++i) zeros[order[static_cast<size_t>(i)]] = true;
  return zeros;
}

void TorchSparseFiller::Fill(const Runs& runs, int64_t first, int64_t count, void* out) const {
  auto* to = static_cast<uint8_t*>(out);
  const int64_t bytes = InfoOf(drawn_.dtype).bytes;
  SharedWork<Zeros>::Reader columns(work_);
  while (count > 0) {
    const int64_t in_run = first % runs.length();
    const int64_t index = runs.Start(first / runs.length()) + in_run;
    const int64_t row = index / columns_, column = index % columns_;
    const int64_t n = std::min({count, runs.length() - in_run, columns_ - column});
    work_.Finish(column, column + n);
    kernels::FillTorch(drawn_, static_cast<uint64_t>(index), static_cast<size_t>(n), to);
    for (int64_t i = 0; i < n; ++i, to += bytes) {
      if (columns[column + i][static_cast<size_t>(row)]) std::fill_n(to, bytes, uint8_t{0});
    }
    first += n;
    count -= n;
  }
}

}  // namespace shardinit
