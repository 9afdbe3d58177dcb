#include "graph/engines/torch_draws.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <optional>

#include "base/exact_math.h"
#include "base/overloaded.h"
#include "graph/engines/jax_draws.h"
#include "graph/stored/view.h"
#include "rng/engines.h"

namespace shardinit {
namespace {

torch_cpu::TruncatedNormal CutOff(const TruncatedNormal& t) {
  return {t.mean, t.std, t.mean + t.low * t.std, t.mean + t.high * t.std};
}

std::string RefusalOfType(const Tensor& tensor) {
  switch (tensor.dtype) {
    case DType::f32:
    case DType::bf16:
    case DType::f16:
    case DType::f64:
      return {};
    default:
      return fmt::format("PyTorch draws no {} numbers", InfoOf(tensor.dtype).name);
  }
}

// Takes cut-offs in standard deviations from the mean.
std::string RefusalOf(double low, double high) {
  if (low <= -0.5 && high >= 0.5) return {};  // at least 38 % are kept
  // Below 30 %, trunc_normal_ draws from a uniform distribution, and keeps numbers by a logarithm.
  const double kept = exact::NormalCdf(high) - exact::NormalCdf(low);
  if (kept > 0.3) return {};
  return fmt::format(
      "PyTorch draws in another way where the cut-offs leave less than 30 % of the numbers, "
      "here {:.3g} %",
      100 * kept);
}

constexpr double kLargestPermutation = 1 << 28;

std::string RefusalOf(const Program::PlacedCall& call) {
  const std::vector<double>& n = call.numbers;
  switch (call.function.kind) {
    case Program::PlacedKind::kUniform:
      return n[1] <= n[2] ? "" : fmt::format("`low` {} is above `high` {}", n[1], n[2]);
    case Program::PlacedKind::kTruncatedNormal:
      if (!(n[4] > 0)) return fmt::format("`std` is {}, but must be above 0", n[4]);
      if (!(n[5] < n[6])) return fmt::format("`a` {} is not below `b` {}", n[5], n[6]);
      return RefusalOf((n[5] - n[3]) / n[4], (n[6] - n[3]) / n[4]);
    case Program::PlacedKind::kPermutation:
      if (n[1] < kLargestPermutation) return {};
      return fmt::format("a permutation of {} is too large; it may have less than {}", n[1],
                         kLargestPermutation);
    case Program::PlacedKind::kNormal:
    case Program::PlacedKind::kPairs:
      return n.back() >= 0 ? "" : fmt::format("`std` is {}, but must be at least 0", n.back());
    default:
      return {};
  }
  return {};
}

std::string RefusalOf(const Program& program) {
  if (!program.draws.empty()) {
    return "PyTorch has no such draws; write `torch_normal(…)` or another of its functions";
  }
  for (const Program::PlacedCall& call : program.placed) {
    if (std::string why = RefusalOf(call); !why.empty()) return why;
  }
  return {};
}

}  // namespace

bool HasPlace(const Tensor& tensor) {
  return tensor.view == nullptr && IsRandom(tensor.distribution) &&
         !std::holds_alternative<Expression>(tensor.distribution);
}

bool IsInexact(const Tensor& tensor) {
  if (tensor.view != nullptr) {
    return std::any_of(tensor.view->pieces.begin(), tensor.view->pieces.end(),
                       [&](const Piece& piece) {
                         return piece.source != Piece::kPadding &&
                                IsInexact((*tensor.view->drawn)[static_cast<size_t>(piece.source)]);
                       });
  }
  if (const auto* n = std::get_if<Norm>(&tensor.distribution)) {
    return n->tensor->stream.engine == &kTorchCpu;  // only a drawn tensor has a stream
  }
  if (tensor.stream.engine != &kTorchCpu) return false;
  if (const auto* e = std::get_if<Expression>(&tensor.distribution)) return e->program->inexact;
  return std::holds_alternative<Orthogonal>(tensor.distribution) ||
         (tensor.dtype == DType::f64 && !std::holds_alternative<Uniform>(tensor.distribution));
}

std::string TorchRefusal(const Tensor& tensor) {
  if (HasPlace(tensor) && tensor.stream.position > kLastPlace) {
    return fmt::format("it begins after {} words, but places end at {}", tensor.stream.position,
                       kLastPlace);
  }
  return std::visit(
      Overloaded{
          [](const OneOf<Constant, FromFile, Norm> auto&) { return std::string(); },
          [&](const OneOf<Uniform, Normal> auto&) { return RefusalOfType(tensor); },
          [&](const TruncatedNormal& t) {
            const std::string why = RefusalOf(t.low, t.high);
            return why.empty() ? RefusalOfType(tensor) : why;
          },
          [](const Expression& e) { return RefusalOf(*e.program); },
          [&](const Orthogonal& o) -> std::string {
            if (tensor.dtype != DType::f32) {
              return fmt::format("of {}, but PyTorch makes them in f32", InfoOf(tensor.dtype).name);
            }
            if (o.rows == 1 && std::popcount(o.columns) + 1 == std::ssize(tensor.shape)) return {};
            return "PyTorch has the first dimension for the rows, and all others for the columns";
          },
          [&](const Sparse&) -> std::string {
            if (tensor.shape[0] < kLargestPermutation) return RefusalOfType(tensor);
            return fmt::format("it has {} rows, but may have less than {}", tensor.shape[0],
                               kLargestPermutation);
          },
          [](const Normalized&) { return std::string("PyTorch has no such initializer"); },
      },
      tensor.distribution);
}

torch_cpu::Drawn TorchDrawsOf(const Tensor& tensor) {
  const auto draw =
      std::visit(Overloaded{
                     [](const Uniform& u) {
                       return torch_cpu::Draw(torch_cpu::Uniform{u.low, u.high});
                     },
                     [](const Normal& n) {
                       return torch_cpu::Draw(torch_cpu::Normal{n.mean, n.std});
                     },
                     [](const TruncatedNormal& t) { return torch_cpu::Draw(CutOff(t)); },
                     [](const Orthogonal&) {
                       return torch_cpu::Draw(torch_cpu::Normal{0, 1});
                     },
                     [](const Sparse& s) {
                       return torch_cpu::Draw(torch_cpu::Normal{0, s.std});
                     },
                     [](const OneOf<Constant, Expression, Normalized, FromFile, Norm> auto&) {
                       return torch_cpu::Draw(torch_cpu::Uniform{});
                     },
                 },
                 tensor.distribution);
  return {draw, tensor.stream, static_cast<uint64_t>(tensor.elements()), tensor.dtype};
}

torch_cpu::Drawn TorchDrawsOf(const Program::PlacedCall& call, const Stream& stream) {
  const std::vector<double>& n = call.numbers;
  const auto whole = [&](size_t i) { return static_cast<uint64_t>(n[i]); };
  torch_cpu::Drawn drawn = {torch_cpu::Uniform{}, stream, uint64_t{1} << 53, call.function.dtype};
  if (!n.empty()) drawn.stream.position = whole(0);
  const auto take_spare = [&] {
    if (n[1] >= 0) drawn.stream.spare = whole(1);
  };
  switch (call.function.kind) {
    case Program::PlacedKind::kUniform:
      drawn.draw = torch_cpu::Uniform{n[1], n[2]};
      break;
    case Program::PlacedKind::kNormal:
      take_spare();
      drawn.elements = whole(2);
      drawn.draw = torch_cpu::Normal{n[3], n[4]};
      break;
    case Program::PlacedKind::kPairs:
      take_spare();
      drawn.in_pairs = true;
      drawn.draw = torch_cpu::Normal{n[2], n[3]};
      break;
    case Program::PlacedKind::kTruncatedNormal:
      take_spare();
      drawn.elements = whole(2);
      drawn.draw = torch_cpu::TruncatedNormal{n[3], n[4], n[5], n[6]};
      break;
    case Program::PlacedKind::kInteger:
    case Program::PlacedKind::kWord:
      break;
    case Program::PlacedKind::kJaxBits:
    case Program::PlacedKind::kJaxUniform:
    case Program::PlacedKind::kJaxNormal:
    case Program::PlacedKind::kJaxTruncatedNormal:
      drawn.stream = JaxStreamOf(call);
      break;
    case Program::PlacedKind::kPermutation:
      drawn.elements = whole(1);
      break;
  }
  return drawn;
}

}  // namespace shardinit
