#include "generate/fill.h"

#include <algorithm>
#include <cstring>

#include "base/overloaded.h"
#include "base/parallel.h"
#include "generate/draw.h"
#include "generate/expression.h"
#include "generate/normalized.h"
#include "generate/orthogonal.h"
#include "generate/sparse.h"
#include "generate/view.h"
#include "tensor/encode.h"

namespace shardinit {
namespace {

// Bytes that a thread takes at a time: much more work than taking them is.
constexpr int64_t kBlock = 1 << 20, kLongBlock = 4 << 20;

std::unique_ptr<const Filler> FillerOf(const Tensor& tensor) {
  if (std::holds_alternative<Expression>(tensor.distribution)) {
    return std::make_unique<ExpressionFiller>(tensor);
  }
  if (std::holds_alternative<Orthogonal>(tensor.distribution)) {
    return std::make_unique<OrthogonalFiller>(tensor);
  }
  if (std::holds_alternative<Sparse>(tensor.distribution)) {
    return std::make_unique<SparseFiller>(tensor);
  }
  if (std::holds_alternative<Normalized>(tensor.distribution)) {
    return std::make_unique<NormalizedFiller>(tensor);
  }
  return nullptr;
}

std::optional<Sampler> SamplerOf(const Distribution& distribution) {
  return std::visit(
      Overloaded{
          [](const Uniform& u) -> std::optional<Sampler> { return MakeUniform(u.low, u.high); },
          [](const Normal& n) -> std::optional<Sampler> { return MakeNormal(n.mean, n.std); },
          [](const TruncatedNormal& t) -> std::optional<Sampler> {
            return MakeTruncatedNormal(t.mean, t.std, t.low, t.high);
          },
          [](const auto&) -> std::optional<Sampler> { return {}; },
      },
      distribution);
}

}  // namespace

std::vector<Preparation> PreparationsOf(const Tensor& tensor, const Box& box) {
  if (tensor.view) return PreparationsOfView(tensor, box);
  const auto* orthogonal = std::get_if<Orthogonal>(&tensor.distribution);
  if (orthogonal == nullptr) return {};
  return {{&tensor, static_cast<int64_t>(SizeOf(*orthogonal, tensor.shape).bytes)}};
}

DrawnFiller::DrawnFiller(const Tensor& tensor)
    : dtype_(tensor.dtype),
      key_(tensor.key),
      sampler_(SamplerOf(tensor.distribution)),
      filler_(FillerOf(tensor)) {
  if (const auto* constant = std::get_if<Constant>(&tensor.distribution)) {
    EncodeNumber(constant->value, dtype_, constant_);
  }
}

void DrawnFiller::Prepare() const {
  if (filler_) filler_->Prepare();
}

void DrawnFiller::Fill(const Runs& runs, int64_t first, int64_t count, void* out) const {
  if (filler_) {
    filler_->Fill(runs, first, count, out);
    return;
  }
  if (sampler_) {
    DrawRuns(runs, *sampler_, {.key = key_}, first, count, dtype_, out);
    return;
  }
  // Doubling copies: what is written so far is the source of the next.
  auto* at = static_cast<uint8_t*>(out);
  const int64_t size = InfoOf(dtype_).bytes, bytes = count * size;
  std::memcpy(at, constant_, static_cast<size_t>(std::min(size, bytes)));
  for (int64_t done = size; done < bytes; done *= 2) {
    std::memcpy(at + done, at, static_cast<size_t>(std::min(done, bytes - done)));
  }
}

BoxFiller::BoxFiller(const Tensor& tensor, const Box& box)
    : elements_(ElementCount(box.shape)),
      element_bytes_(InfoOf(tensor.dtype).bytes),
      runs_(tensor.shape, box) {
  if (tensor.view) {
    view_ = std::make_shared<ViewFiller>(tensor, box);
  } else {
    drawn_.emplace(tensor);
  }
}

void BoxFiller::Prepare() const { drawn_ ? drawn_->Prepare() : view_->Prepare(); }

void BoxFiller::Fill(int64_t first, int64_t count, void* out) const {
  drawn_ ? drawn_->Fill(runs_, first, count, out) : view_->Fill(first, count, out);
}

bool BoxFiller::wants_long_stretches() const { return view_ && view_->transposes(); }

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
