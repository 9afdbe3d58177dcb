#include "kernels/torch_cpu.h"

#include <algorithm>
#include <atomic>
#include <numeric>
#include <vector>

#include "base/interrupt.h"
#include "base/parallel.h"
#include "kernels/backend.h"
#include "tensor/encode.h"

namespace shardinit::kernels {
namespace {

using torch_cpu::Drawn;

bool HasKernel(const Drawn& drawn) {
  return drawn.dtype != DType::f64 &&
         (std::holds_alternative<torch_cpu::Uniform>(drawn.draw) || torch_cpu::IsInGroups(drawn));
}

// Returns how many rounds are drawn until all of these elements are between the cut-offs.
int RoundsOf(const Drawn& drawn, uint64_t first, size_t count) {
  const auto& t = std::get<torch_cpu::TruncatedNormal>(drawn.draw);
  const double low = torch_cpu::Rounded(t.low, drawn.dtype);
  const double high = torch_cpu::Rounded(t.high, drawn.dtype);
  Drawn round = drawn;
  round.draw = torch_cpu::Normal{t.mean, t.std};
  std::vector<uint64_t> outside(count);
  std::iota(outside.begin(), outside.end(), first);
  for (int rounds = 1;; ++rounds, round.stream = torch_cpu::StreamAfter(round)) {
    std::erase_if(outside, [&](uint64_t i) {
      const double value = torch_cpu::ElementOf(round, i);
      return value >= low && value <= high;
    });
    if (outside.empty()) return rounds;
  }
}

}  // namespace

int RunTorchReference(const TorchJob& job) {
  const int bytes = InfoOf(job.drawn.dtype).bytes;
  for (size_t i = 0; i < job.count; ++i) {
    const double value = torch_cpu::ElementOf(job.drawn, job.first + i);
    EncodeNumber(value, job.drawn.dtype, job.out + i * static_cast<size_t>(bytes));
  }
  return std::holds_alternative<torch_cpu::TruncatedNormal>(job.drawn.draw)
             ? RoundsOf(job.drawn, job.first, job.count)
             : 1;
}

int FillTorch(const Drawn& drawn, uint64_t first, size_t count, void* out) {
  const TorchJob job{drawn, first, count, static_cast<uint8_t*>(out)};
  return HasKernel(drawn) ? ActiveBackend().run_torch(job) : RunTorchReference(job);
}

Stream AfterTorch(const Drawn& drawn, int jobs) {
  if (torch_cpu::IsOneRound(drawn)) return torch_cpu::StreamAfter(drawn);
  constexpr uint64_t kBlock = 1 << 18;
  std::atomic<int> rounds = 0;
  ParallelFor(static_cast<int64_t>((drawn.elements + kBlock - 1) / kBlock), jobs, [&](int64_t i) {
    ThrowIfInterrupted();
    const uint64_t first = static_cast<uint64_t>(i) * kBlock;
    std::vector<double> values(std::min(kBlock, drawn.elements - first));
    const int needed = FillTorch(drawn, first, values.size(), values.data());
    for (int most = rounds; needed > most && !rounds.compare_exchange_weak(most, needed);) {
    }
  });
  return torch_cpu::StreamAfter(drawn, rounds);
}

}  // namespace shardinit::kernels
