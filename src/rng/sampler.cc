#include "rng/sampler.h"

#include <cmath>
#include <limits>

#include "base/error.h"
#include "base/exact_math.h"
#include "rng/coefficients.h"

namespace shardinit {
namespace {

// Turns -0 into 0, so that `x + mean` has one sign of zero.
float ToF32(double value) { return static_cast<float>(value) + 0.0f; }

// Returns the probability between the cut-offs, computed from the tails on the side where they are
// small: 1 - Phi(5) would lose half of its digits.
double ProbabilityBetween(double z_low, double z_high) {
  if (z_low >= 0) return exact::NormalCdf(-z_low) - exact::NormalCdf(-z_high);
  if (z_high <= 0) return exact::NormalCdf(z_high) - exact::NormalCdf(z_low);
  return 1 - exact::NormalCdf(z_low) - exact::NormalCdf(-z_high);
}

// Returns erf, or 0 if it is so small that a value computed from it could be subnormal.
float ErfOfCutoff(float z) {
  const float erf = ToF32(exact::Erf(static_cast<double>(z / coefficients::kSqrt2)));
  return std::fabs(erf) < 0x1p-40f ? 0 : erf;
}

// Returns the next f32 towards `direction`. Returns 0 for 0, whose next f32 is subnormal.
float NextInside(float cutoff, float direction) {
  const float inside = std::nextafter(cutoff, direction);
  return std::fabs(inside) < std::numeric_limits<float>::min() ? 0 : inside;
}

}  // namespace

bool IsValidScale(double value) {
  const double magnitude = std::fabs(value);
  return magnitude == 0 || (magnitude >= kMinScale && magnitude <= kMaxScale);
}

bool AreValidCutoffs(double z_low, double z_high) {
  if (!(z_low < z_high) || std::isinf(z_low) || std::isinf(z_high)) return false;
  if (z_low > kMaxNearCutoff || z_high < -kMaxNearCutoff) return false;
  return ToF32(z_low) < ToF32(z_high) && ProbabilityBetween(z_low, z_high) >= kMinCutoffProbability;
}

UniformSampler MakeUniform(double low, double high) {
  const float low32 = ToF32(low), high32 = ToF32(high);
  Check(low32 < high32 && IsValidScale(low) && IsValidScale(high), "uniform bounds");
  const double span = static_cast<double>(high32) - static_cast<double>(low32);
  Check(IsValidScale(span), "uniform span");
  // For `high` = 0 this is not -2^-149, which processors that flush subnormals treat as 0.
  const float last = high32 == 0 ? -std::numeric_limits<float>::min()
                                 : std::nextafter(high32, -std::numeric_limits<float>::infinity());
  return {low32, ToF32(span), last};
}

NormalSampler MakeNormal(double mean, double std) {
  Check(IsValidScale(mean) && IsValidScale(std) && std >= 0, "normal parameters");
  constexpr double kSqrt2Ln2 = 0x1.2d6abe44afc43p+0;  // sqrt(2 ln 2)
  return {ToF32(mean), ToF32(std * kSqrt2Ln2), ToF32(std)};
}

TruncatedNormalSampler MakeTruncatedNormal(double mean, double std, double z_low, double z_high) {
  Check(IsValidScale(mean) && IsValidScale(std) && std >= 0, "truncated normal parameters");
  Check(AreValidCutoffs(z_low, z_high), "cut-offs");
  TruncatedNormalSampler s{};
  s.mean = ToF32(mean);
  s.std = ToF32(std);
  s.z_low = ToF32(z_low);
  s.z_high = ToF32(z_high);

  // Each half has 2^31 places, each at the middle of its step.
  const double between = ProbabilityBetween(z_low, z_high);
  const float step = static_cast<float>(between) * 0x1p-32f;
  const double middle = between * 0x1p-33;
  if (z_low < 0 && z_high > 0) {
    // There are two tails, each measured from its own end. The top bit is the sign.
    s.tail[0] = ToF32(exact::NormalCdf(-z_high) + middle);
    s.tail[1] = ToF32(exact::NormalCdf(z_low) + middle);
    s.step[0] = s.step[1] = step;
    s.sign_mask = 0x80000000;
  } else {
    // There is one tail, measured up from its far end and down from its near end.
    const bool upper = z_low >= 0;
    s.tail[0] = ToF32(exact::NormalCdf(upper ? -z_high : z_low) + middle);
    s.tail[1] = ToF32(exact::NormalCdf(upper ? -z_low : z_high) - middle);
    s.step[0] = step;
    s.step[1] = -step;
    s.sign_flip = upper ? 0 : 0x80000000;
  }

  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  s.erf_low = ErfOfCutoff(s.z_low);
  s.erf_span = ErfOfCutoff(s.z_high) - s.erf_low;
  s.inside_low = NextInside(s.z_low, kInfinity);
  s.inside_high = NextInside(s.z_high, -kInfinity);
  return s;
}

}  // namespace shardinit
