#include "generate/fill.h"

#include <algorithm>
#include <cstring>

#include "kernels/kernels.h"
#include "tensor/encode.h"

namespace shardinit {
namespace {

template <class... F>
struct Overloaded : F... {
  using F::operator()...;
};
template <class... F>
Overloaded(F...) -> Overloaded<F...>;  // clang 14 needs it said.

std::optional<Sampler> SamplerOf(const Distribution& distribution) {
  return std::visit(Overloaded{
                        [](const Constant&) -> std::optional<Sampler> { return {}; },
                        [](const Uniform& u) -> std::optional<Sampler> {
                          return MakeUniform(u.low, u.high);
                        },
                        [](const Normal& n) -> std::optional<Sampler> {
                          return MakeNormal(n.mean, n.std);
                        },
                        [](const TruncatedNormal& t) -> std::optional<Sampler> {
                          return MakeTruncatedNormal(t.mean, t.std, t.low, t.high);
                        },
                    },
                    distribution);
}

}  // namespace

BoxFiller::BoxFiller(const Tensor& tensor, const Box& box)
    : dtype_(tensor.dtype),
      runs_(tensor.shape, box),
      key_(tensor.key),
      sampler_(SamplerOf(tensor.distribution)) {
  const auto* constant = std::get_if<Constant>(&tensor.distribution);
  if (constant == nullptr) return;
  // No random value: an f64 tensor holds the constant itself, not its f32.
  if (dtype_ == DType::f64) {
    std::memcpy(constant_, &constant->value, sizeof constant->value);
  } else {
    Encode(static_cast<float>(constant->value), dtype_, constant_);
  }
}

void BoxFiller::Fill(int64_t first, int64_t count, void* out) const {
  auto* at = static_cast<uint8_t*>(out);
  const int64_t size = element_bytes();
  if (!sampler_) {
    // Doubling copies: what is written so far is the source of the next.
    const int64_t bytes = count * size;
    std::memcpy(at, constant_, static_cast<size_t>(std::min(size, bytes)));
    for (int64_t done = size; done < bytes; done *= 2) {
      std::memcpy(at + done, at, static_cast<size_t>(std::min(done, bytes - done)));
    }
    return;
  }
  const Stream stream{.key = key_};
  while (count > 0) {
    const int64_t run = first / runs_.length(), column = first % runs_.length();
    const auto start = static_cast<uint64_t>(runs_.Start(run) + column);
    int64_t made;
    if (column != 0 || count < runs_.length()) {
      made = std::min(count, runs_.length() - column);
      kernels::Fill(*sampler_, stream, start, static_cast<size_t>(made), dtype_, at);
    } else {
      const int64_t rows = std::min(count / runs_.length(), runs_.EndOfStride(run) - run);
      made = rows * runs_.length();
      kernels::FillRows(*sampler_, stream, start, static_cast<uint64_t>(runs_.stride()),
                        static_cast<size_t>(rows), static_cast<size_t>(runs_.length()), dtype_, at);
    }
    first += made;
    count -= made;
    at += made * size;
  }
}

}  // namespace shardinit
