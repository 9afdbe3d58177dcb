// Computes Euclidean norms of another tensor's elements, `init: {norms: {of: …}}`. Generates that
// tensor's elements for this and keeps none of them.
#include "graph/drawn/norm.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "base/error.h"
#include "generate/evaluator.h"
#include "generate/fill.h"
#include "generate/filler.h"
#include "tensor/encode.h"

namespace shardinit {
namespace {

constexpr int64_t kParts = 8;  // The number of sums for each norm: term k goes to sum k mod 8.

// Returns the root of the sum of all parts.
template <typename F>
double RootOf(F s) {
  return std::sqrt(((s(0) + s(1)) + (s(2) + s(3))) + ((s(4) + s(5)) + (s(6) + s(7))));
}

class NormFiller final : public Filler {
 public:
  explicit NormFiller(const Tensor& tensor)
      : path_(tensor.path()),
        shape_(tensor.shape()),
        dtype_(tensor.dtype()),
        of_(tensor.measured()),
        elements_(FillerOf(*of_)) {
    const Shape shape = WholeShapeOfNorms(tensor.shape(), of_->shape());
    int64_t stride = 1;
    for (size_t d = of_->shape().size(); d-- > 0;) {
      const int64_t extent = of_->shape()[d];
      // A norm is the same whether or not it is over a dimension of size 1.
      const bool is_over = shape[d] != extent;
      std::vector<Runs::Dimension>& of = is_over ? over_ : kept_;
      if (is_over) terms_ *= extent;
      if (!of.empty() && of.back().stride * of.back().extent == stride) {
        of.back().extent *= extent;
      } else if (extent > 1) {
        of.push_back({extent, stride});
      }
      stride *= extent;
    }
    if (!kept_.empty() && kept_.front().stride == 1) side_ = kept_.front().extent;
    are_short_rows_ = 1 < terms_ && terms_ <= kTile / 2 && over_.size() == 1 &&
                      over_[0].stride == 1 && kept_.size() == 1;
    std::reverse(over_.begin(), over_.end());
    std::reverse(kept_.begin(), kept_.end());
  }

  // Throws Error (kUsage) for a norm that the tensor's type cannot hold.
  void Fill(const Runs& runs, int64_t first, int64_t count, void* out) const override {
    auto* at = static_cast<uint8_t*>(out);
    std::array<double, kTile> norms;
    for (int64_t n; count > 0; first += n, count -= n) {
      const auto [index, in_run] = NeighboursAt(runs, first, std::min(count, kTile));
      if (are_short_rows_) {
        n = std::min(in_run, kTile / terms_);
        FindOfRows(index, n, norms.data());
      } else {
        n = std::min(in_run, side_ - index % side_);
        FindNorms(index, n, norms.data());
      }
      for (int64_t i = 0; i < n; ++i, at += InfoOf(dtype_).bytes) {
        if (!Holds(dtype_, norms[i])) {
          throw Usage(
              fmt::format("element {} of `{}` is {}, which {} cannot hold",
                          IndexInText(shape_, index + i), path_, norms[i], InfoOf(dtype_).name),
              fmt::format("it is the norm of elements of `{}`", of_->path()));
        }
        EncodeNumber(norms[i], dtype_, at);
      }
    }
  }

 private:
  // Computes norms if `are_short_rows_`. The terms of all of them fit in a tile.
  void FindOfRows(int64_t index, int64_t count, double* norms) const {
    const Runs runs(index * terms_, {}, count * terms_);
    const int64_t size = InfoOf(of_->dtype()).bytes;
    std::array<uint8_t, kTile * 8> made;
    elements_->Fill(runs, 0, count * terms_, made.data());
    const uint8_t* at = made.data();
    for (int64_t i = 0; i < count; ++i) {
      std::array<double, kParts> sums = {};
      for (int64_t k = 0; k < terms_; ++k, at += size) {
        const double x = Decode(at, of_->dtype());
        sums[static_cast<size_t>(k % kParts)] += x * x;
      }
      norms[i] = RootOf([&](size_t m) { return sums[m]; });
    }
  }

  // Computes `count` adjacent norms from element `index` on. Their terms are also adjacent.
  void FindNorms(int64_t index, int64_t count, double* norms) const {
    int64_t start = 0;
    for (size_t d = kept_.size(); d-- > 0; index /= kept_[d].extent) {
      start += index % kept_[d].extent * kept_[d].stride;
    }
    std::vector<Runs::Dimension> dimensions = over_;
    int64_t length = count;
    if (side_ == 1 && !dimensions.empty() && dimensions.back().stride == 1) {
      length = dimensions.back().extent;
      dimensions.pop_back();
    }
    const Runs runs(start, dimensions, length);
    const int64_t size = InfoOf(of_->dtype()).bytes;
    const int64_t terms = std::max<int64_t>(1, kTile / count);  // terms generated at a time
    std::array<uint8_t, kTile * 8> made;
    std::array<double, kParts* kTile> sums = {};
    for (int64_t k = 0; k < terms_; k += terms) {
      const int64_t n = std::min(terms, terms_ - k);
      elements_->Fill(runs, k * count, n * count, made.data());
      for (int64_t j = 0; j < n; ++j) {
        double* const sum = &sums[static_cast<size_t>((k + j) % kParts * kTile)];
        for (int64_t i = 0; i < count; ++i) {
          const double x = Decode(&made[static_cast<size_t>((j * count + i) * size)], of_->dtype());
          sum[i] += x * x;
        }
      }
    }
    for (int64_t i = 0; i < count; ++i) {
      norms[i] = RootOf([&](size_t m) { return sums[m * kTile + static_cast<size_t>(i)]; });
    }
  }

  const std::string path_;
  const Shape shape_;
  const DType dtype_;
  const std::shared_ptr<const Tensor> of_;
  const std::unique_ptr<const Filler> elements_;  // generates elements of `of_`
  // The dimensions of `of_` that norms are over, and the others; the last one varies fastest.
  // Adjacent dimensions in the same list are merged.
  std::vector<Runs::Dimension> over_, kept_;
  int64_t terms_ = 1;  // terms of a norm
  int64_t side_ = 1;   // norms whose terms are adjacent
  // The terms of each norm are few and contiguous, followed by the terms of the next norm.
  bool are_short_rows_ = false;
};

}  // namespace

std::unique_ptr<const Filler> MakeFiller(const Norm&, const Tensor& tensor) {
  return std::make_unique<NormFiller>(tensor);
}

}  // namespace shardinit
