// Generates the values of an orthogonal matrix. The whole matrix is generated once for all its
// boxes at work, which are copied from it.

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <tuple>
#include <vector>

#include "generate/engines.h"
#include "generate/filler.h"
#include "generate/shared_work.h"
#include "kernels/kernels.h"
#include "tensor/encode.h"

namespace shardinit {
namespace {

// The matrix has rows x columns elements. Its columns are orthonormal, or its rows if there are
// fewer rows.
class WholeMatrix {
 public:
  WholeMatrix(const Stream& stream, double gain, OrthogonalSize size)
      : stream_(stream),
        gain_(gain),
        size_(size),
        transposed_(size.rows < size.columns),
        longer_(std::max(size.rows, size.columns)),
        shorter_(std::min(size.rows, size.columns)),
        blocks_(static_cast<size_t>(ReflectionBlocks(shorter_))),
        reflections_([this](int64_t b) { return MakeBlock(b); }),
        panels_([this](int64_t p) { return MakePanel(p); }) {}

  // Returns the elements, row-major. Generates them first; threads that arrive meanwhile take part.
  const float* Values() {
    if (const MatrixMaker make = FillEngineOf(*stream_.engine).matrix) {
      std::call_once(allocated_, [&] {
        values_ = AllocateNumbers<float>(longer_ * shorter_, size_);
        make(stream_, gain_, size_, values_.get());
      });
      return values_.get();
    }
    std::call_once(allocated_, [this] { Allocate(); });
    reflections_.Finish(0, std::ssize(blocks_));
    panels_.Finish(0, Panels());
    std::call_once(released_, [this] { vectors_.reset(); });
    return values_.get();
  }

 private:
  struct Made {};  // The pieces are stored in the members below.

  void Allocate() {
    vectors_ = AllocateNumbers<float>(VectorsBefore(longer_, std::ssize(blocks_)), size_);
    values_ = AllocateNumbers<float>(longer_ * shorter_, size_);
  }

  Made MakeBlock(int64_t b) {
    static const Sampler kNormal = MakeNormal(0, 1);
    const int64_t first = b * kReflections;
    float* const at = vectors_.get() + VectorsBefore(longer_, b);
    std::fill_n(at, (longer_ - first) * kReflections, 0.0f);
    std::vector<float> x(static_cast<size_t>(longer_ - first));
    for (int64_t j = first; j < std::min(first + kReflections, shorter_); ++j) {
      kernels::Fill(kNormal, stream_, ReflectionElement(longer_, j, j),
                    static_cast<size_t>(longer_ - j), DType::f32, x.data());
      for (int64_t row = j; row < longer_; ++row) {
        at[(row - first) * kReflections + (j - first)] = x[static_cast<size_t>(row - j)];
      }
    }
    blocks_[static_cast<size_t>(b)] = MakeReflections(longer_, shorter_, b, at);
    return {};
  }

  int64_t Panels() const {
    return (shorter_ + kernels::kPanelColumns - 1) / kernels::kPanelColumns;
  }

  Made MakePanel(int64_t p) {
    // Later columns take longer, so they go first.
    const int64_t first = (Panels() - 1 - p) * kernels::kPanelColumns;
    const int64_t row_stride = transposed_ ? 1 : shorter_,
                  column_stride = transposed_ ? longer_ : 1;
    kernels::MakePanel({.blocks = blocks_,
                        .rows = longer_,
                        .first = first,
                        .count = std::min(kernels::kPanelColumns, shorter_ - first),
                        .gain = gain_,
                        .out = values_.get() + first * column_stride,
                        .row_stride = row_stride,
                        .column_stride = column_stride});
    return {};
  }

  const Stream stream_;
  const double gain_;
  const OrthogonalSize size_;
  const bool transposed_;
  const int64_t longer_, shorter_;
  std::once_flag allocated_, released_;
  std::unique_ptr<float[]> vectors_, values_;
  std::vector<ReflectionBlock> blocks_;
  SharedWork<Made> reflections_, panels_;
};

// Returns the matrix that boxes at work already have, or a new one.
std::shared_ptr<WholeMatrix> FindMatrix(const Stream& stream, double gain, OrthogonalSize size) {
  static std::mutex mutex;
  static std::map<std::tuple<Stream, double, int64_t, int64_t>, std::weak_ptr<WholeMatrix>>
      matrices;
  const std::lock_guard lock(mutex);
  std::erase_if(matrices, [](const auto& matrix) { return matrix.second.expired(); });
  std::weak_ptr<WholeMatrix>& found = matrices[{stream, gain, size.rows, size.columns}];
  std::shared_ptr<WholeMatrix> matrix = found.lock();
  if (!matrix) found = matrix = std::make_shared<WholeMatrix>(stream, gain, size);
  return matrix;
}

class OrthogonalFiller final : public Filler {
 public:
  OrthogonalFiller(const Orthogonal& orthogonal, const Tensor& tensor)
      : dtype_(tensor.dtype()),
        shape_(tensor.shape()),
        stride_(tensor.shape().size()),
        centre_(tensor.shape().size(), -1) {
    const OrthogonalSize size = SizeOf(orthogonal, tensor.shape());
    int64_t row = size.columns, column = 1;
    for (size_t d = tensor.shape().size(); d-- > 0;) {
      if (orthogonal.columns >> d & 1) {
        stride_[d] = column;
        column *= tensor.shape()[d];
      } else if (orthogonal.rows >> d & 1) {
        stride_[d] = row;
        row *= tensor.shape()[d];
      } else {
        centre_[d] = (tensor.shape()[d] - 1) / 2;
      }
    }
    matrix_ = FindMatrix(tensor.stream(), orthogonal.gain, size);
  }

  void Prepare() const override { matrix_->Values(); }

  void Fill(const Runs& runs, int64_t first, int64_t count, void* out) const override {
    const float* const values = matrix_->Values();
    auto* to = static_cast<uint8_t*>(out);
    const int64_t bytes = InfoOf(dtype_).bytes;
    const size_t last = shape_.size() - 1;
    Shape at(shape_.size());  // indices in the tensor
    while (count > 0) {
      const auto [index, in_run] = NeighboursAt(runs, first, count);
      int64_t rest = index, base = 0;
      bool zero = false;
      for (size_t d = shape_.size(); d-- > 0;) {
        at[d] = rest % shape_[d];
        rest /= shape_[d];
        base += at[d] * stride_[d];
        zero |= d != last && centre_[d] >= 0 && at[d] != centre_[d];
      }
      // A stretch is along the last dimension.
      const int64_t n = std::min(in_run, shape_[last] - at[last]);
      for (int64_t i = 0; i < n; ++i, to += bytes) {
        const bool off = zero || (centre_[last] >= 0 && at[last] + i != centre_[last]);
        Encode(off ? 0.0f : values[base + i * stride_[last]], dtype_, to);
      }
      first += n, count -= n;
    }
  }

 private:
  DType dtype_;
  Shape shape_;
  // For each dimension: how far apart its neighbours are in the matrix, and the only index along it
  // that contains the matrix, or -1.
  Shape stride_, centre_;
  std::shared_ptr<WholeMatrix> matrix_;
};

}  // namespace

std::unique_ptr<const Filler> MakeFiller(const Orthogonal& distribution, const Tensor& tensor) {
  return std::make_unique<OrthogonalFiller>(distribution, tensor);
}

}  // namespace shardinit
