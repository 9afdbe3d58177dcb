// Defines the coefficients of the samplers' polynomials. They are part of the contract of values,
// so they never change. Except for JAX's, whose source is given below, they are minimax fits
// (linear programming on Chebyshev nodes). Each fit rounds one coefficient to f32, then fits the
// rest again. The relative errors given include that rounding.
#pragma once

#include <cstdint>

namespace shardinit::coefficients {

// -log2(1 + f) ≈ f * (c0 + c1 f + …) for f in [-1/3, 1/3]; error 2^-22.4.
inline constexpr float kLog[] = {-0x1.715472p+0f, 0x1.715472p-1f, -0x1.ec8306p-2f, 0x1.71614ep-2f,
                                 -0x1.2466d0p-2f, 0x1.e73310p-3f, -0x1.f9b01ap-3f, 0x1.bc8b92p-3f};
// Mantissas start here: the bits of 2/3.
inline constexpr uint32_t kTwoThirds = 0x3F2AAAAB;

// sin(pi/4 x) ≈ x * (c0 + c1 y + …), y = x * x, for x in [-1, 1]; error 2^-25.1.
inline constexpr float kSin[] = {0x1.921fb6p-1f, -0x1.4abc24p-4f, 0x1.4680a4p-9f, -0x1.33198ep-15f};
// cos(pi/4 x) ≈ c0 + c1 y + …; error 2^-24.6.
inline constexpr float kCos[] = {0x1p+0f, -0x1.3bd39cp-2f, 0x1.03b058p-6f, -0x1.4e78bep-12f};

// The normal quantile. q < 1/2 is the probability of a tail, x = 1 - 2q, v = q(1 - q), s = sqrt(v).
// The quantile is -x * ratio(v). ratio is even in x, so it is smooth around q = 1/2. For v >=
// kCentralEnd (|z| <= 3.04), ratio is a quotient of polynomials in s, which fit better than
// polynomials in v:
//
//   (n0 + n1 s + n2 s^2 + …) / (d0 + d1 s + d2 s^2 + d3 s^3 + s^4); error 2^-22.5.
inline constexpr float kCentralEnd = 0x1.3p-10f;
inline constexpr float kNumerator[] = {0x1.05a43ep-11f, 0x1.98335cp-5f, 0x1.4bd16cp-1f,
                                       0x1.41c8fcp+0f, 0x1.b267cap-5f};
inline constexpr float kDenominator[] = {0x1.ca20b0p-14f, 0x1.e5bd48p-7f, 0x1.1d17c4p-2f,
                                         0x1.1a7e5ep+0f};
// For smaller v, down to 2^-124, ratio is kSqrt2Ln2 t + (c0 + c1 r + …), t = sqrt(-log2 v), r = 1 /
// t - kTailCentre; error 2^-22.4.
inline constexpr float kTail[] = {-0x1.ca36eap-2f, -0x1.976660p+0f, 0x1.f9ed6ep+0f,
                                  -0x1.019a30p+2f, 0x1.3d7b70p+3f,  0x1.0dba06p+5f,
                                  0x1.32cdecp+10f, 0x1.5a77fap+9f,  -0x1.9baff2p+14f};
inline constexpr float kTailCentre = 0.1875f;
inline constexpr float kSqrt2Ln2 = 0x1.2d6abep+0f;

// The inverse error function of JAX and XLA: Giles, "Approximating the erfinv function" (GPU
// Computing Gems, 2011), table 5. erf_inv(u) ≈ u * (c0 + c1 t + …) with w = -ln(1 - u^2);
// t = w - 2.5 for w below kErfInvCentralEnd, else t = sqrt(w) - 3.
inline constexpr float kErfInvCentralEnd = 5.0f;
inline constexpr float kErfInvCentral[] = {0x1.805c5ep+0f,   0x1.f91ec6p-3f,  -0x1.11c9dep-8f,
                                           -0x1.48a810p-10f, 0x1.ca65b6p-13f, -0x1.26b582p-18f,
                                           -0x1.d8e6aep-19f, 0x1.70966cp-22f, 0x1.e2cb10p-26f};
inline constexpr float kErfInvTail[] = {0x1.6a9efcp+1f,  0x1.006db6p+0f,  0x1.354afcp-7f,
                                        -0x1.f38baep-8f, 0x1.7824f6p-8f,  -0x1.e17bcep-9f,
                                        0x1.61b8e4p-10f, 0x1.a76ad6p-14f, -0x1.a3e136p-13f};
// The result for |u| = 1, instead of infinity: the other engine's normal numbers also reach 6.72.
inline constexpr float kErfInvOne = 4.75f;
inline constexpr float kLn2 = 0x1.62e430p-1f, kSqrt2 = 0x1.6a09e6p+0f;

}  // namespace shardinit::coefficients
