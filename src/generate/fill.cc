#include "generate/fill.h"

#include <algorithm>
#include <cstring>

#include "base/overloaded.h"
#include "generate/draw.h"
#include "generate/expression.h"
#include "generate/orthogonal.h"
#include "tensor/encode.h"

namespace shardinit {
namespace {

std::unique_ptr<const Filler> FillerOf(const Tensor& tensor, const Box& box) {
  if (std::holds_alternative<Expression>(tensor.distribution)) {
    return std::make_unique<ExpressionFiller>(tensor, box);
  }
  if (std::holds_alternative<Orthogonal>(tensor.distribution)) {
    return std::make_unique<OrthogonalFiller>(tensor, box);
  }
  return nullptr;
}

std::optional<Sampler> SamplerOf(const Distribution& distribution) {
  return std::visit(Overloaded{
                        [](const Uniform& u) -> std::optional<Sampler> {
                          return MakeUniform(u.low, u.high);
                        },
                        [](const Normal& n) -> std::optional<Sampler> {
                          return MakeNormal(n.mean, n.std);
                        },
                        [](const TruncatedNormal& t) -> std::optional<Sampler> {
                          return MakeTruncatedNormal(t.mean, t.std, t.low, t.high);
                        },
                        [](const auto&) -> std::optional<Sampler> { return {}; },
                    },
                    distribution);
}

}  // namespace

int64_t PreparedBytes(const Tensor& tensor, const Box&) {
  const auto* orthogonal = std::get_if<Orthogonal>(&tensor.distribution);
  return orthogonal ? static_cast<int64_t>(SizeOf(*orthogonal, tensor.shape).bytes) : 0;
}

BoxFiller::BoxFiller(const Tensor& tensor, const Box& box)
    : dtype_(tensor.dtype),
      runs_(tensor.shape, box),
      key_(tensor.key),
      sampler_(SamplerOf(tensor.distribution)),
      filler_(FillerOf(tensor, box)) {
  const auto* constant = std::get_if<Constant>(&tensor.distribution);
  if (constant == nullptr) return;
  // No random value: an f64 tensor holds the constant itself, not its f32.
  if (dtype_ == DType::f64) {
    std::memcpy(constant_, &constant->value, sizeof constant->value);
  } else {
    Encode(static_cast<float>(constant->value), dtype_, constant_);
  }
}

void BoxFiller::Prepare() const {
  if (filler_) filler_->Prepare();
}

void BoxFiller::Fill(int64_t first, int64_t count, void* out) const {
  if (filler_) {
    filler_->Fill(first, count, out);
    return;
  }
  if (sampler_) {
    DrawBox(runs_, *sampler_, {.key = key_}, first, count, dtype_, out);
    return;
  }
  // Doubling copies: what is written so far is the source of the next.
  auto* at = static_cast<uint8_t*>(out);
  const int64_t size = element_bytes(), bytes = count * size;
  std::memcpy(at, constant_, static_cast<size_t>(std::min(size, bytes)));
  for (int64_t done = size; done < bytes; done *= 2) {
    std::memcpy(at + done, at, static_cast<size_t>(std::min(done, bytes - done)));
  }
}

}  // namespace shardinit
