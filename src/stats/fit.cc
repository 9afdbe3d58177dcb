#include "stats/fit.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "base/error.h"
#include "base/overloaded.h"

namespace shardinit {
namespace {

double UpperTail(double z) { return std::erfc(z / std::numbers::sqrt2) / 2; }
double Density(double z) { return std::exp(-z * z / 2) / std::sqrt(2 * std::numbers::pi); }

// Returns the probability of the standard normal distribution between `low` and `high`, from the
// tails on the side where they are small.
double ProbabilityBetween(double low, double high) {
  if (low >= 0) return UpperTail(low) - UpperTail(high);
  if (high <= 0) return UpperTail(-high) - UpperTail(-low);
  return 1 - UpperTail(-low) - UpperTail(high);
}

// Computes the probability of a value of at most x.
struct Cumulative {
  double x;
  double operator()(const Constant& c) const { return x >= c.value; }
  double operator()(const Uniform& u) const {
    return std::clamp((x - u.low) / (u.high - u.low), 0.0, 1.0);
  }
  double operator()(const Normal& n) const { return UpperTail((n.mean - x) / n.std); }
  double operator()(const TruncatedNormal& t) const {
    const double z = std::clamp((x - t.mean) / t.std, t.low, t.high);
    return ProbabilityBetween(t.low, z) / ProbabilityBetween(t.low, t.high);
  }
  double operator()(const OneOf<Expression, Orthogonal, Sparse, Normalized, FromFile, FromSource,
                                RowsLike, Parts, Norm> auto&) const {
    throw Bug("a distribution with no closed form");
  }
};

// Returns the probability of a scaled distance above x, by Kolmogorov's distribution.
double ProbabilityAbove(double x) {
  if (x < 0.2) return 1;
  double sum = 0;
  if (x < 1.18) {  // Kolmogorov's other series converges faster here.
    for (int k = 1; k <= 9; k += 2) {
      sum += std::exp(-k * k * std::numbers::pi * std::numbers::pi / (8 * x * x));
    }
    return 1 - std::sqrt(2 * std::numbers::pi) / x * sum;
  }
  for (int k = 1; k <= 4; ++k) sum += (k % 2 == 1 ? 2 : -2) * std::exp(-2 * k * k * x * x);
  return sum;
}

}  // namespace

std::optional<DeclaredMoments> DeclaredMomentsOf(const Distribution& distribution) {
  using Result = std::optional<DeclaredMoments>;
  return std::visit(
      Overloaded{
          [](const Constant& c) -> Result {
            return {{c.value, 0}};
          },
          [](const Uniform& u) -> Result {
            return {{(u.low + u.high) / 2, (u.high - u.low) / std::sqrt(12.0)}};
          },
          [](const Normal& n) -> Result {
            return {{n.mean, n.std}};
          },
          [](const TruncatedNormal& t) -> Result {
            const double all = ProbabilityBetween(t.low, t.high);
            const double shift = (Density(t.low) - Density(t.high)) / all;
            const double spread = 1 + (t.low * Density(t.low) - t.high * Density(t.high)) / all;
            return {
                {t.mean + t.std * shift, t.std * std::sqrt(std::max(0.0, spread - shift * shift))}};
          },
          // These have no closed form.
          [](const OneOf<Expression, Orthogonal, Sparse, Normalized, FromFile, FromSource, RowsLike,
                         Parts, Norm> auto&) -> Result { return {}; },
      },
      distribution);
}

std::optional<Fit> FitOf(std::span<const Bin> bins, const Distribution& distribution) {
  const auto declared = DeclaredMomentsOf(distribution);
  if (!declared || declared->std == 0 || bins.empty()) return {};
  double total = 0;
  for (const Bin& bin : bins) total += static_cast<double>(bin.count);
  double before = 0, distance = 0;
  for (const Bin& bin : bins) {
    const double after = before + static_cast<double>(bin.count);
    distance = std::max({distance,
                         std::fabs(before / total - std::visit(Cumulative{bin.from}, distribution)),
                         std::fabs(after / total - std::visit(Cumulative{bin.to}, distribution))});
    before = after;
  }
  // Stephens 1970: this factor corrects the limit distribution for few elements.
  const double root = std::sqrt(total);
  return {{distance, ProbabilityAbove((root + 0.12 + 0.11 / root) * distance)}};
}

}  // namespace shardinit
