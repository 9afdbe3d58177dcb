// Generates a matrix with zeros at random places of each column: the places with the smallest words
// of draw 1 in the column. A shard therefore needs all words of its columns.
#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <vector>

#include "generate/filler.h"
#include "generate/shared_work.h"
#include "kernels/kernels.h"
#include "rng/sampler.h"
#include "tensor/encode.h"

namespace shardinit {
namespace {

constexpr int64_t kWords = 256 << 10;  // words drawn at a time to find the smallest

const Sampler& Bits() {
  static const Sampler kBits = BitsSampler{};
  return kBits;
}

uint64_t RankOf(float word, int64_t row) {
  return uint64_t{std::bit_cast<uint32_t>(word)} << 32 | static_cast<uint64_t>(row);
}

class SparseFiller final : public Filler {
 public:
  SparseFiller(const Sparse& sparse, const Tensor& tensor)
      : dtype_(tensor.dtype()),
        stream_(tensor.stream()),
        rows_(tensor.shape()[0]),
        columns_(tensor.shape()[1]),
        zeros_(sparse.zeros),
        group_(std::clamp<int64_t>(kWords / rows_, 1, 64)),
        normal_(MakeNormal(0, sparse.std)),
        work_([this](int64_t piece) { return FindLimits(piece); }) {}

  void Fill(const Runs& runs, int64_t first, int64_t count, void* out) const override {
    FinishColumns(runs, first, count);
    auto* to = static_cast<uint8_t*>(out);
    const int64_t bytes = InfoOf(dtype_).bytes;
    std::array<float, kTile> values, words;
    std::array<uint64_t, kTile> limits;
    SharedWork<Limits>::Reader pieces(work_);
    while (count > 0) {
      const auto [index, in_run] = NeighboursAt(runs, first, std::min(count, kTile));
      const int64_t row = index / columns_, column = index % columns_;
      const int64_t n = std::min(in_run, columns_ - column);
      for (int64_t i = 0, some; i < n; i += some) {
        const int64_t in_piece = (column + i) % group_;
        some = std::min(n - i, group_ - in_piece);
        std::copy_n(&pieces[(column + i) / group_][static_cast<size_t>(in_piece)], some,
                    &limits[i]);
      }
      DrawRuns(runs, normal_, stream_, first, n, DType::f32, values.data());
      DrawRuns(runs, Bits(), DrawOf(stream_, 1), first, n, DType::f32, words.data());
      for (int64_t i = 0; i < n; ++i, to += bytes) {
        Encode(RankOf(words[i], row) < limits[i] ? 0.0f : values[i], dtype_, to);
      }
      first += n, count -= n;
    }
  }

 private:
  // Finishes the columns of a stretch at once, so that threads share them. Skips columns between
  // two parts that are far apart, such as the end of a long row and the beginning of the next one.
  void FinishColumns(const Runs& runs, int64_t first, int64_t count) const {
    int64_t low = columns_, high = -1;
    const auto finish = [&] {
      if (high >= 0) work_.Finish(low / group_, high / group_ + 1);
    };
    for (int64_t done = 0; done < count && high - low + 1 < columns_;) {
      const auto [index, in_run] = NeighboursAt(runs, first + done, count - done);
      const int64_t begin = index % columns_, n = std::min(in_run, columns_ - begin);
      const int64_t end = begin + n - 1;
      if (std::max(high, end) - std::min(low, begin) >= 2 * count) {
        finish();
        low = columns_, high = -1;
      }
      low = std::min(low, begin);
      high = std::max(high, end);
      done += n;
    }
    finish();
  }

  // The limit for each column of a piece: an element is 0 if its word, followed by its row, is
  // below the limit.
  using Limits = std::vector<uint64_t>;
  Limits FindLimits(int64_t piece) const {
    const int64_t first = piece * group_, columns = std::min(group_, columns_ - first);
    Limits limits(static_cast<size_t>(columns));
    if (zeros_ == 0) return limits;
    std::vector<float> words(static_cast<size_t>(rows_ * columns));
    kernels::FillRows(Bits(), DrawOf(stream_, 1), static_cast<uint64_t>(first),
                      static_cast<uint64_t>(columns_), static_cast<size_t>(rows_),
                      static_cast<size_t>(columns), DType::f32, words.data());
    std::vector<uint64_t> ranks(static_cast<size_t>(rows_));
    for (int64_t c = 0; c < columns; ++c) {
      for (int64_t row = 0; row < rows_; ++row) ranks[row] = RankOf(words[row * columns + c], row);
      std::nth_element(ranks.begin(), ranks.begin() + (zeros_ - 1), ranks.end());
      limits[c] = ranks[zeros_ - 1] + 1;
    }
    return limits;
  }

  const DType dtype_;
  const Stream stream_;
  const int64_t rows_, columns_, zeros_;
  const int64_t group_;  // columns in a piece of work
  const Sampler normal_;
  mutable SharedWork<Limits> work_;
};

}  // namespace

std::unique_ptr<const Filler> MakeFiller(const Sparse& distribution, const Tensor& tensor) {
  return std::make_unique<SparseFiller>(distribution, tensor);
}

}  // namespace shardinit
