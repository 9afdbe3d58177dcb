#include "generate/fill.h"

#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "base/overloaded.h"
#include "base/parallel.h"
#include "generate/engines.h"
#include "generate/filler.h"
#include "generate/view.h"
#include "init/sampled.h"
#include "tensor/encode.h"

namespace shardinit {
namespace {

// The bytes that a thread takes at a time. Generating them is much more work than taking them.
constexpr int64_t kBlock = 1 << 20, kLongBlock = 4 << 20;

class ConstantFiller final : public Filler {
 public:
  ConstantFiller(double value, DType dtype) : size_(InfoOf(dtype).bytes) {
    EncodeNumber(value, dtype, element_);
  }

  // Copies by doubling: the bytes written so far are the source of the next.
  void Fill(const Runs&, int64_t, int64_t count, void* out) const override {
    auto* at = static_cast<uint8_t*>(out);
    const int64_t bytes = count * size_;
    std::memcpy(at, element_, static_cast<size_t>(std::min(size_, bytes)));
    for (int64_t done = size_; done < bytes; done *= 2) {
      std::memcpy(at + done, at, static_cast<size_t>(std::min(done, bytes - done)));
    }
  }

 private:
  const int64_t size_;
  uint8_t element_[8] = {};  // the element as stored
};

// Generates elements of one draw each.
class SampleFiller final : public Filler {
 public:
  SampleFiller(const Sampler& sampler, const Tensor& tensor)
      : sampler_(sampler), stream_(tensor.stream()), dtype_(tensor.dtype()) {}

  void Fill(const Runs& runs, int64_t first, int64_t count, void* out) const override {
    DrawRuns(runs, sampler_, stream_, first, count, dtype_, out);
  }

 private:
  const Sampler sampler_;
  const Stream stream_;
  const DType dtype_;
};

}  // namespace

std::unique_ptr<const Filler> FillerOf(const Tensor& tensor) {
  using Result = std::unique_ptr<const Filler>;
  Check(!tensor.stream().is_least, "values without their place in the stream");
  if (const auto own = FillEngineOf(*tensor.stream().engine).filler) {
    if (Result filler = own(tensor)) return filler;
  }
  return std::visit(
      Overloaded{
          [&](const Constant& c) -> Result {
            return std::make_unique<ConstantFiller>(c.value, tensor.dtype());
          },
          [&](const Sampled auto& d) -> Result {
            return std::make_unique<SampleFiller>(SamplerOf(d), tensor);
          },
          [&](const OneOf<Expression, Orthogonal, Sparse, Normalized, FromFile, FromSource,
                          RowsLike, Parts, Norm> auto& other) { return MakeFiller(other, tensor); },
      },
      tensor.distribution());
}

std::vector<Preparation> PreparationsOf(const Tensor& tensor, const Box& box) {
  if (tensor.view()) return PreparationsOfView(tensor, box);
  using Result = std::vector<Preparation>;
  return std::visit(
      Overloaded{
          [&](const Orthogonal& o) -> Result {
            return {{&tensor, static_cast<int64_t>(SizeOf(o, tensor.shape()).bytes)}};
          },
          [](const OneOf<Constant, Uniform, Normal, TruncatedNormal, Expression, Sparse, Normalized,
                         FromFile, FromSource, RowsLike, Parts, Norm> auto&) { return Result(); },
      },
      tensor.distribution());
}

BoxFiller::BoxFiller(const Tensor& tensor, const Box& box)
    : elements_(ElementCount(box.shape)),
      element_bytes_(InfoOf(tensor.dtype()).bytes),
      runs_(tensor.shape(), box) {
  if (tensor.view()) {
    view_ = std::make_unique<ViewFiller>(tensor, box);
  } else {
    drawn_ = FillerOf(tensor);
  }
}

BoxFiller::~BoxFiller() = default;

void BoxFiller::Prepare() const { drawn_ ? drawn_->Prepare() : view_->Prepare(); }

void BoxFiller::Fill(int64_t first, int64_t count, void* out) const {
  drawn_ ? drawn_->Fill(runs_, first, count, out) : view_->Fill(first, count, out);
}

bool BoxFiller::wants_long_stretches() const {
  return drawn_ ? drawn_->wants_long_stretches() : view_->transposes();
}

void FillBox(const Tensor& tensor, const Box& box, int jobs, void* out) {
  const int64_t elements = ElementCount(box.shape);
  if (elements == 0) return;
  const BoxFiller filler(tensor, box);
  if (!PreparationsOf(tensor, box).empty()) {
    ParallelFor(jobs, jobs, [&](int64_t) { filler.Prepare(); });
  }
  const int64_t block =
      (filler.wants_long_stretches() ? kLongBlock : kBlock) / filler.element_bytes();
  ParallelFor((elements + block - 1) / block, jobs, [&](int64_t i) {
    const int64_t first = i * block;
    filler.Fill(first, std::min(block, elements - first),
                static_cast<uint8_t*>(out) + first * filler.element_bytes());
  });
}

}  // namespace shardinit
