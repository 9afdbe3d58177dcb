// Generates elements of tensors under the engine torch_cpu.
#include "graph/engines/torch_cpu.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <mutex>
#include <vector>

#include "base/interrupt.h"
#include "generate/engines.h"
#include "generate/shared_work.h"
#include "kernels/torch_cpu.h"

namespace shardinit {
namespace {

class TorchFiller final : public Filler {
 public:
  explicit TorchFiller(const Tensor& tensor) : drawn_(TorchDrawsOf(tensor)) {}

  void Fill(const Runs& runs, int64_t first, int64_t count, void* out) const override {
    auto* at = static_cast<uint8_t*>(out);
    while (count > 0) {
      const auto [index, n] = NeighboursAt(runs, first, count);
      kernels::FillTorch(drawn_, static_cast<uint64_t>(index), static_cast<size_t>(n), at);
      first += n, count -= n, at += n * InfoOf(drawn_.dtype).bytes;
    }
  }

 private:
  const torch_cpu::Drawn drawn_;
};

// Implements torch.nn.init.sparse_: in each column, the rows that come first in a random
// permutation are zero.
class TorchSparseFiller final : public Filler {
 public:
  TorchSparseFiller(const Sparse& sparse, const Tensor& tensor)
      : drawn_(TorchDrawsOf(tensor)),
        rows_(tensor.shape()[0]),
        columns_(tensor.shape()[1]),
        zeros_(sparse.zeros),
        work_([this](int64_t column) { return FindZeros(column); }) {}

  void Fill(const Runs& runs, int64_t first, int64_t count, void* out) const override {
    auto* to = static_cast<uint8_t*>(out);
    const int64_t bytes = InfoOf(drawn_.dtype).bytes;
    SharedWork<Zeros>::Reader columns(work_);
    while (count > 0) {
      const auto [index, in_run] = NeighboursAt(runs, first, count);
      const int64_t row = index / columns_, column = index % columns_;
      const int64_t n = std::min(in_run, columns_ - column);
      work_.Finish(column, column + n);
      kernels::FillTorch(drawn_, static_cast<uint64_t>(index), static_cast<size_t>(n), to);
      for (int64_t i = 0; i < n; ++i, to += bytes) {
        if (columns[column + i][static_cast<size_t>(row)]) std::fill_n(to, bytes, uint8_t{0});
      }
      first += n, count -= n;
    }
  }

 private:
  using Zeros = std::vector<bool>;  // for each row of a column, whether it is zero

  Zeros FindZeros(int64_t column) const {
    Stream stream = torch_cpu::StreamAfter(drawn_);
    stream.position += static_cast<uint64_t>(column) * static_cast<uint64_t>(rows_ - 1);
    const std::vector<uint32_t> order =
        torch_cpu::Permutation(stream, static_cast<uint32_t>(rows_));
    Zeros zeros(order.size());
    for (int64_t i = 0; i < zeros_; ++i) zeros[order[static_cast<size_t>(i)]] = true;
    return zeros;
  }

  const torch_cpu::Drawn drawn_;
  const int64_t rows_, columns_, zeros_;
  mutable SharedWork<Zeros> work_;
};

std::unique_ptr<const Filler> TorchFillerOf(const Tensor& tensor) {
  if (const auto* const sparse = std::get_if<Sparse>(&tensor.distribution())) {
    return std::make_unique<TorchSparseFiller>(*sparse, tensor);
  }
  if (!HasPlace(tensor) || std::holds_alternative<Orthogonal>(tensor.distribution()))
    return nullptr;
  return std::make_unique<TorchFiller>(tensor);
}

// Adds up in eight sums, so that every compiler produces the same result.
double Dot(const double* a, const double* b, size_t n) {
  std::array<double, 8> sums = {};
  size_t i = 0;
  for (; i + sums.size() <= n; i += sums.size()) {
    for (size_t lane = 0; lane < sums.size(); ++lane) sums[lane] += a[i + lane] * b[i + lane];
  }
  double rest = 0;
  for (; i < n; ++i) rest += a[i] * b[i];
  for (const double sum : sums) rest += sum;
  return rest;
}

// Implements torch.nn.init.orthogonal_: the result is the factor Q of a matrix of normal numbers,
// with the signs for which R has a positive diagonal. Orthonormalizing the columns one after
// another gives the same result. Here this is done in f64 and twice, which is accurate enough.
void MakeTorchMatrix(const Stream& stream, double gain, const OrthogonalSize& size, float* values) {
  const auto longer = static_cast<size_t>(std::max(size.rows, size.columns)),
             shorter = static_cast<size_t>(std::min(size.rows, size.columns));
  const torch_cpu::Drawn drawn = {torch_cpu::Normal{0, 1}, stream, longer * shorter, DType::f32};
  kernels::FillTorch(drawn, 0, longer * shorter, values);
  const bool transposed = size.rows < size.columns;
  const size_t row_stride = transposed ? 1 : shorter, column_stride = transposed ? longer : 1;
  const auto vectors = AllocateNumbers<double>(size.rows * size.columns, size);
  for (size_t j = 0; j < shorter; ++j) {
    ThrowIfInterrupted();
    double* const at = &vectors[j * longer];
    for (size_t i = 0; i < longer; ++i) at[i] = values[i * row_stride + j * column_stride];
    for (size_t k = 0; k < 2 * j; ++k) {
      const double* const other = &vectors[k % j * longer];
      const double along = Dot(at, other, longer);
      for (size_t i = 0; i < longer; ++i) at[i] -= along * other[i];
    }
    const double length = std::sqrt(Dot(at, at, longer));
    for (size_t i = 0; i < longer; ++i) {
      at[i] /= length;
      values[i * row_stride + j * column_stride] =
          static_cast<float>(at[i]) * static_cast<float>(gain);
    }
  }
}

// Numbers that are all generated when the first one is requested.
template <typename T>
struct AllNumbers {
  std::once_flag once;
  std::vector<T> values;
};

template <typename T, typename F>
void MakeAtOnce(uint64_t elements, F make_all, CalledNumbers* called) {
  called->elements = elements;
  called->make = [make_all, all = std::make_shared<AllNumbers<T>>()](uint64_t first,
                                                                     std::span<double> numbers) {
    std::call_once(all->once, [&] { all->values = make_all(); });
    std::copy_n(all->values.begin() + static_cast<std::ptrdiff_t>(first), numbers.size(),
                numbers.begin());
  };
}

// Returns sums of powers of a draw's elements.
std::vector<double> SumsOf(const torch_cpu::Drawn& drawn, const TorchRows& rows) {
  std::vector<double> sums(drawn.elements / rows.length);
  std::array<double, 4096> numbers;
  for (uint64_t first = 0; first < drawn.elements; first += numbers.size()) {
    ThrowIfInterrupted();
    const size_t count = std::min<uint64_t>(numbers.size(), drawn.elements - first);
    kernels::FillTorch(drawn, first, count, numbers.data());
    DecodeInPlace(drawn.dtype, std::span(numbers).first(count));
    for (size_t i = 0; i < count; ++i) {
      const uint64_t at =
          (first + i) / rows.stride / rows.length * rows.stride + (first + i) % rows.stride;
      sums[at] += rows.power == 2 ? numbers[i] * numbers[i] : numbers[i];
    }
  }
  return sums;
}

// Returns the elements of an f32 draw with each row sorted.
std::vector<float> SortedOf(const torch_cpu::Drawn& drawn, const TorchRows& rows) {
  std::vector<float> numbers(drawn.elements);
  kernels::FillTorch(drawn, 0, numbers.size(), numbers.data());
  for (auto row = numbers.begin(); row != numbers.end();) {
    const auto end = row + static_cast<std::ptrdiff_t>(rows.length);
    std::sort(row, end);
    row = end;
  }
  return numbers;
}

CalledNumbers TorchNumbersOf(const Program::PlacedCall& call, const Stream& of_tensor) {
  CalledNumbers called = {
      .elements = uint64_t{1} << 53, .longest_window = 1 << 22, .make = nullptr};
  Stream stream = of_tensor;
  if (!call.numbers.empty()) stream.position = static_cast<uint64_t>(call.numbers[0]);
  switch (static_cast<TorchKind>(call.function->kind)) {
    case kTorchWord:
      called.make = [stream](uint64_t first, std::span<double> numbers) {
        for (double& number : numbers) {
          number = torch_cpu::WordAt(stream, stream.position + first++);
        }
      };
      break;
    case kTorchInteger:
      called.make = [stream, range = static_cast<uint64_t>(call.numbers[1])](
                        uint64_t first, std::span<double> numbers) {
        for (double& number : numbers) {
          number = static_cast<double>(torch_cpu::IntegerAt(stream, first++, range));
        }
      };
      break;
    case kTorchPermutation:
      MakeAtOnce<uint32_t>(
          static_cast<uint64_t>(call.numbers[1]),
          [stream, n = static_cast<uint32_t>(call.numbers[1])] {
            return torch_cpu::Permutation(stream, n);
          },
          &called);
      break;
    case kTorchOrthogonal:
      stream.spare = TorchDrawsOf(call, stream).stream.spare;
      MakeAtOnce<float>(
          static_cast<uint64_t>(call.numbers[2]) * static_cast<uint64_t>(call.numbers[3]),
          [stream, gain = call.numbers[4], size = TorchMatrixOf(call)] {
            std::vector<float> values(static_cast<size_t>(size.rows * size.columns));
            MakeTorchMatrix(stream, gain, size, values.data());
            return values;
          },
          &called);
      break;
    case kTorchNormalSums:
    case kTorchUniformSums: {
      const torch_cpu::Drawn drawn = TorchDrawsOf(call, stream);
      const TorchRows rows = TorchRowsOf(call);
      MakeAtOnce<double>(
          drawn.elements / rows.length, [drawn, rows] { return SumsOf(drawn, rows); }, &called);
      break;
    }
    case kTorchNormalSorted:
    case kTorchUniformSorted: {
      const torch_cpu::Drawn drawn = TorchDrawsOf(call, stream);
      const TorchRows rows = TorchRowsOf(call);
      MakeAtOnce<float>(
          drawn.elements, [drawn, rows] { return SortedOf(drawn, rows); }, &called);
      break;
    }
    case kTorchUniform:
    case kTorchNormal:
    case kTorchPairs:
    case kTorchTruncatedNormal: {
      const torch_cpu::Drawn drawn = TorchDrawsOf(call, stream);
      called.elements = drawn.elements;
      called.make = [drawn](uint64_t first, std::span<double> numbers) {
        kernels::FillTorch(drawn, first, numbers.size(), numbers.data());
        DecodeInPlace(drawn.dtype, numbers);
      };
      break;
    }
  }
  return called;
}

}  // namespace

extern constinit const FillEngine kFillTorchCpu = {
    .engine = &kTorchCpu,
    .filler = TorchFillerOf,
    .matrix = MakeTorchMatrix,
    .numbers = TorchNumbersOf,
};

}  // namespace shardinit
