#include <algorithm>

#include "generate/filler.h"
#include "kernels/kernels.h"

namespace shardinit {

void DrawRuns(const Runs& runs, const Sampler& sampler, Stream stream, int64_t first, int64_t count,
              DType dtype, void* out) {
  auto* at = static_cast<uint8_t*>(out);
  const int64_t size = InfoOf(dtype).bytes;
  while (count > 0) {
    const int64_t run = first / runs.length(), column = first % runs.length();
    const auto start = static_cast<uint64_t>(runs.Start(run) + column);
    int64_t made;
    if (column != 0 || count < runs.length()) {
      made = std::min(count, runs.length() - column);
      kernels::Fill(sampler, stream, start, static_cast<size_t>(made), dtype, at);
    } else {
      const int64_t rows = std::min(count / runs.length(), runs.EndOfStride(run) - run);
      made = rows * runs.length();
      kernels::FillRows(sampler, stream, start, static_cast<uint64_t>(runs.stride()),
                        static_cast<size_t>(rows), static_cast<size_t>(runs.length()), dtype, at);
    }
    first += made;
    count -= made;
    at += made * size;
  }
}

}  // namespace shardinit
