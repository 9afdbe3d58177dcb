#include "graph/engines/jax_draws.h"

#include <fmt/format.h>

#include "rng/engines.h"

namespace shardinit {
namespace {

bool IsOfJax(const Program::PlacedCall& call) {
  return call.function.kind >= Program::PlacedKind::kJaxBits;
}

const Program* ProgramOf(const Distribution& distribution) {
  const auto* expression = std::get_if<Expression>(&distribution);
  return expression == nullptr ? nullptr : expression->program.get();
}

std::string RefusalOfCall(const Program::PlacedCall& call) {
  const std::vector<double>& n = call.numbers;
  for (const double word : {n[0], n[1]}) {
    if (word > 0xFFFFFFFFu)
      return fmt::format("{} is not a word of a key, which has 32 bits", word);
  }
  if (n.size() == 2) return {};
  const double low = n[2], high = n[3];
  const auto narrow = [](double x) { return static_cast<float>(x); };
  if (call.function.kind == Program::PlacedKind::kJaxUniform) {
    if (!IsValidScale(low) || !IsValidScale(high)) {
      return fmt::format("`low` {} and `high` {} must be 0 or of a magnitude from {} to {}", low,
                         high, kMinScale, kMaxScale);
    }
    const bool has_span =
        narrow(low) < narrow(high) && IsValidScale(double{narrow(high)} - double{narrow(low)});
    return has_span ? "" : fmt::format("`low` {} is not below `high` {}", low, high);
  }
  if (!AreValidCutoffs(low, high)) {
    return fmt::format("between the cut-offs {} and {} there are no or too few numbers", low, high);
  }
  return std::string(kJaxThreefry.refusal(*JaxSamplerOf(call)));
}

}  // namespace

const Engine* OtherEngine(const Distribution& distribution, const Engine& engine) {
  const Program* program = ProgramOf(distribution);
  if (program == nullptr) return nullptr;
  for (const Program::PlacedCall& call : program->placed) {
    const Engine* of = IsOfJax(call) ? &kJaxThreefry : &kTorchCpu;
    if (of != &engine) return of;
  }
  return nullptr;
}

std::string JaxRefusal(const Distribution& distribution) {
  const Program* program = ProgramOf(distribution);
  if (program == nullptr) return {};
  for (const Program::PlacedCall& call : program->placed) {
    if (!IsOfJax(call)) continue;
    if (std::string why = RefusalOfCall(call); !why.empty()) return why;
  }
  return {};
}

std::optional<Sampler> JaxSamplerOf(const Program::PlacedCall& call) {
  const std::vector<double>& n = call.numbers;
  switch (call.function.kind) {
    case Program::PlacedKind::kJaxBits:
      return BitsSampler{};
    case Program::PlacedKind::kJaxNormal:
      return MakeNormal(0, 1);
    case Program::PlacedKind::kJaxUniform:
      return MakeUniform(n[2], n[3]);
    case Program::PlacedKind::kJaxTruncatedNormal:
      return MakeTruncatedNormal(0, 1, n[2], n[3]);
    default:
      return {};
  }
}

Stream JaxStreamOf(const Program::PlacedCall& call) {
  const auto word = [&](size_t i) { return static_cast<uint64_t>(call.numbers[i]); };
  return {.key = word(1) << 32 | word(0), .engine = &kJaxThreefry};
}

}  // namespace shardinit
