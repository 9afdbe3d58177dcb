#include "graph/torch_draws.h"

#include <fmt/format.h>

#include <cmath>
#include <optional>

#include "base/exact_math.h"
#include "base/overloaded.h"

namespace shardinit {
namespace {

torch_cpu::TruncatedNormal CutOff(const TruncatedNormal& t) {
  return {t.mean, t.std, t.mean + t.low * t.std, t.mean + t.high * t.std};
}

std::string RefusalOfType(const Tensor& tensor, bool only_uniform) {
  switch (tensor.dtype) {
    case DType::f32:
    case DType::bf16:
    case DType::f16:
      return {};
    case DType::f64:
      return only_uniform ? "" : "in f64 they depend on the C library that PyTorch runs with";
    default:
      return fmt::format("PyTorch draws no {} numbers", InfoOf(tensor.dtype).name);
  }
}

std::string RefusalOf(const TruncatedNormal& t, const Tensor& tensor) {
  if (t.low <= -0.5 && t.high >= 0.5) return RefusalOfType(tensor, false);  // 38 % at least.
  // trunc_normal_ then draws from a uniform distribution, and asks a logarithm which to take.
  const double kept = exact::NormalCdf(t.high) - exact::NormalCdf(t.low);
  if (!(kept > 0.3)) {
    return fmt::format(
        "PyTorch draws in another way where the cut-offs leave less than 30 % of the numbers, "
        "here {:.3g} %",
        100 * kept);
  }
  return RefusalOfType(tensor, false);
}

}  // namespace

std::string TorchRefusal(const Tensor& tensor) {
  return std::visit(
      Overloaded{
          [](const OneOf<Constant, FromFile> auto&) { return std::string(); },
          [&](const Uniform&) { return RefusalOfType(tensor, true); },
          [&](const Normal&) { return RefusalOfType(tensor, false); },
          [&](const TruncatedNormal& t) { return RefusalOf(t, tensor); },
          [](const Expression& e) -> std::string {
            return e.program->draws.empty() ? "" : "expressions draw from other engines alone";
          },
          [](const Orthogonal&) {
            return std::string("PyTorch's depend on the LAPACK that it runs with");
          },
          [](const Sparse&) {
            return std::string("sparse matrices come from other engines alone");
          },
          [](const Normalized&) { return std::string("PyTorch has no such initializer"); },
      },
      tensor.distribution);
}

torch_cpu::Drawn TorchDrawsOf(const Tensor& tensor) {
  const auto draw = std::visit(
      Overloaded{
          [](const Uniform& u) {
            return torch_cpu::Draw(torch_cpu::Uniform{u.low, u.high});
          },
          [](const Normal& n) {
            return torch_cpu::Draw(torch_cpu::Normal{n.mean, n.std});
          },
          [](const TruncatedNormal& t) { return torch_cpu::Draw(CutOff(t)); },
          [](const OneOf<Constant, Expression, Orthogonal, Sparse, Normalized, FromFile> auto&) {
            return torch_cpu::Draw(torch_cpu::Uniform{});
          },
      },
      tensor.distribution);
  return {draw, tensor.stream, static_cast<uint64_t>(tensor.elements()), tensor.dtype};
}

}  // namespace shardinit
