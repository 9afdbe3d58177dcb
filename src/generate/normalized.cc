// Generates vectors of one length along a dimension: normal vectors, divided by their lengths. If a
// box contains only parts of these vectors, it draws them whole.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <vector>

#include "generate/filler.h"
#include "generate/shared_work.h"
#include "kernels/kernels.h"
#include "rng/orthogonal.h"
#include "rng/sampler.h"
#include "tensor/encode.h"

namespace shardinit {
namespace {

constexpr int64_t kPiece = 64 << 10;  // The approximate number of elements in a piece of work.
constexpr int64_t kSums = 8;  // The number of sums for each vector: element k goes to sum k mod 8.

const Sampler& StandardNormal() {
  static const Sampler kNormal = MakeNormal(0, 1);
  return kNormal;
}

int64_t CountBehind(const Shape& shape, int64_t axis) {
  return ElementCount(Shape(shape.begin() + axis + 1, shape.end()));
}

// `sums` are `stride` apart.
double Factor(const double* sums, int64_t stride, double length) {
  const auto s = [&](int i) { return sums[i * stride]; };
  const double square = ((s(0) + s(1)) + (s(2) + s(3))) + ((s(4) + s(5)) + (s(6) + s(7)));
  return square > 0 ? length / std::sqrt(square) : 0;
}

class NormalizedFiller final : public Filler {
 public:
  NormalizedFiller(const Normalized& normalized, const Tensor& tensor)
      : dtype_(tensor.dtype()),
        stream_(tensor.stream()),
        length_(normalized.length),
        extent_(tensor.shape()[normalized.axis]),
        inner_(CountBehind(tensor.shape(), normalized.axis)),
        vectors_(tensor.elements() / extent_),
        each_(std::max<int64_t>(1, kPiece / extent_)),
        tiles_((inner_ + kTile - 1) / kTile),
        work_([this](int64_t piece) { return FindFactors(piece); }) {}

  void Fill(const Runs& runs, int64_t first, int64_t count, void* out) const override {
    auto* to = static_cast<uint8_t*>(out);
    const int64_t bytes = InfoOf(dtype_).bytes;
    SharedWork<Factors>::Reader pieces(work_);
    std::array<float, kTile> x;
    while (count > 0) {
      const auto [index, in_run] = NeighboursAt(runs, first, count);
      // A stretch consists of neighbours along a vector, or across vectors.
      const int64_t stretch = inner_ == 1 ? extent_ - index % extent_ : inner_ - index % inner_;
      int64_t left = std::min(in_run, stretch);
      // Finishes all pieces of the stretch at once, so that threads share them.
      if (inner_ > 1) work_.Finish(PieceOf(index), PieceOf(index + left - 1) + 1);
      count -= left;
      for (int64_t n, done = 0; left > 0; done += n, first += n, left -= n) {
        const int64_t at = inner_ == 1 ? index / extent_ % each_ : (index + done) % inner_ % kTile;
        n = std::min(left, inner_ == 1 ? kTile : kTile - at);
        const double* const factors = &pieces[PieceOf(index + done)][static_cast<size_t>(at)];
        DrawRuns(runs, StandardNormal(), stream_, first, n, DType::f32, x.data());
        for (int64_t i = 0; i < n; ++i, to += bytes) {
          Encode(RoundProduct(x[i], factors[inner_ == 1 ? 0 : i]), dtype_, to);
        }
      }
    }
  }

 private:
  // Returns the piece that contains this element's vector.
  int64_t PieceOf(int64_t index) const {
    if (inner_ == 1) return index / extent_ / each_;
    return index / (extent_ * inner_) * tiles_ + index % inner_ / kTile;
  }

  // For each vector of a piece, length divided by its norm.
  using Factors = std::vector<double>;
  Factors FindFactors(int64_t piece) const {
    std::array<float, kTile> x;
    const auto draw = [&](int64_t first, int64_t count) {
      kernels::Fill(StandardNormal(), stream_, static_cast<uint64_t>(first),
                    static_cast<size_t>(count), DType::f32, x.data());
    };
    if (inner_ == 1) {
      const int64_t begin = piece * each_, end = begin + std::min(each_, vectors_ - begin);
      Factors factors;
      factors.reserve(static_cast<size_t>(end - begin));
      for (int64_t v = begin; v < end; ++v) {
        double sums[kSums] = {};
        for (int64_t k = 0; k < extent_; k += kTile) {
          const int64_t n = std::min(kTile, extent_ - k);
          draw(v * extent_ + k, n);
          for (int64_t i = 0; i < n; ++i) {
            sums[i % kSums] += static_cast<double>(x[i]) * static_cast<double>(x[i]);
          }
        }
        factors.push_back(Factor(sums, 1, length_));
      }
      return factors;
    }
    const int64_t outer = piece / tiles_, from = piece % tiles_ * kTile;
    const int64_t n = std::min(kTile, inner_ - from);
    std::array<double, kSums* kTile> sums = {};
    for (int64_t k = 0; k < extent_; ++k) {
      draw((outer * extent_ + k) * inner_ + from, n);
      double* const sum = &sums[k % kSums * kTile];
      for (int64_t i = 0; i < n; ++i)
        sum[i] += static_cast<double>(x[i]) * static_cast<double>(x[i]);
    }
    Factors factors(static_cast<size_t>(n));
    for (int64_t i = 0; i < n; ++i) factors[i] = Factor(&sums[i], kTile, length_);
    return factors;
  }

  const DType dtype_;
  const Stream stream_;
  const double length_;
  const int64_t extent_;  // the dimension's extent
  const int64_t inner_;   // Adjacent vectors: the number of elements after the dimension.
  const int64_t vectors_;
  const int64_t each_;   // Vectors in a piece of work, if vectors follow one another.
  const int64_t tiles_;  // Otherwise, the pieces of the adjacent vectors.
  mutable SharedWork<Factors> work_;
};

}  // namespace

std::unique_ptr<const Filler> MakeFiller(const Normalized& distribution, const Tensor& tensor) {
  return std::make_unique<NormalizedFiller>(distribution, tensor);
}

}  // namespace shardinit
