// Generates rows that resemble the rows of a source, `init: {rows_like: …}`.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <memory>
#include <string>

#include "base/error.h"
#include "generate/evaluator.h"
#include "generate/filler.h"
#include "generate/moments.h"
#include "tensor/encode.h"

namespace shardinit {
namespace {

class RowsLikeFiller final : public Filler {
 public:
  RowsLikeFiller(const RowsLike& like, const Tensor& tensor)
      : like_(like),
        path_(tensor.path()),
        dtype_(tensor.dtype()),
        shape_(tensor.shape()),
        stream_(tensor.stream()) {
    for (size_t d = static_cast<size_t>(like.axis) + 1; d < shape_.size(); ++d) inner_ *= shape_[d];
    block_ = shape_[static_cast<size_t>(like.axis)] * inner_;
  }

  // Throws Error as the source does, and kUsage for an element that the tensor's type cannot hold.
  void Fill(const Runs& runs, int64_t first, int64_t count, void* out) const override {
    ::shardinit::Check(like_.data != nullptr,
                       "values of a plan that was read, and not made of a spec");
    const Moments moments = MomentsOfColumns(*like_.data, like_.axis, like_.rows);
    const double* const mean = moments->data();
    const double* const std = mean + moments->size() / 2;
    static const Sampler kNormal = MakeNormal(0, 1);
    std::array<float, kTile> drawn = {};
    auto* at = static_cast<uint8_t*>(out);
    for (int64_t made; count > 0; first += made, count -= made) {
      made = std::min(count, kTile);
      if (like_.std > 0) DrawRuns(runs, kNormal, stream_, first, made, DType::f32, drawn.data());
      for (int64_t i = 0; i < made; ++i, at += InfoOf(dtype_).bytes) {
        const int64_t linear = NeighboursAt(runs, first + i, 1).index;
        const int64_t column = linear / block_ * inner_ + linear % inner_;
        const double spread = like_.std * std[column];
        const double value = mean[column] + spread * static_cast<double>(drawn[i]);
        if (!Holds(dtype_, value)) Refuse(linear, value);
        EncodeNumber(value, dtype_, at);
      }
    }
  }

 private:
  [[noreturn]] void Refuse(int64_t linear, double value) const {
    throw Usage(fmt::format("element {} of `{}` is {}, which {} cannot hold",
                            IndexInText(shape_, linear), path_, value, InfoOf(dtype_).name),
                fmt::format("it is the mean of a column of {}", like_.data->text()));
  }

  const RowsLike like_;
  const std::string path_;
  const DType dtype_;
  const Shape shape_;
  const Stream stream_;
  int64_t inner_ = 1, block_;
};

}  // namespace

std::unique_ptr<const Filler> MakeFiller(const RowsLike& distribution, const Tensor& tensor) {
  return std::make_unique<RowsLikeFiller>(distribution, tensor);
}

}  // namespace shardinit
