// Defines the coefficients of the functions that produce PyTorch's normal numbers on x86
// processors, from Cephes' single-precision library (Moshier), as in avx_mathfun.h (Pommier,
// Garberoglio).
#pragma once

namespace shardinit::torch_coefficients {

// ln(1 + x) = x - x^2 / 2 + x^3 P(x) for 1 + x from sqrt(1/2) to sqrt(2), the highest power first.
inline constexpr float kLog[] = {7.0376836292e-2f,  -1.1514610310e-1f, 1.1676998740e-1f,
                                 -1.2420140846e-1f, 1.4249322787e-1f,  -1.6668057665e-1f,
                                 2.0000714765e-1f,  -2.4999993993e-1f, 3.3333331174e-1f};
inline constexpr float kSqrtHalf = 0x1.6a09e6p-1f;
inline constexpr float kLn2High = 0.693359375f, kLn2Low = -2.12194440e-4f;

// sin x = x + x^3 P(x^2) and cos x = 1 - x^2 / 2 + x^4 P(x^2) for |x| <= pi / 4.
inline constexpr float kSin[] = {-1.9515295891e-4f, 8.3321608736e-3f, -1.6666654611e-1f};
inline constexpr float kCos[] = {2.443315711809948e-5f, -1.388731625493765e-3f,
                                 4.166664568298827e-2f};
inline constexpr float kFourByPi = 0x1.45f306p+0f, kTwoPi = 0x1.921fb6p+2f;
inline constexpr float kMinusQuarterPi[] = {-0.78515625f, -2.4187564849853515625e-4f,
                                            -3.77489497744594108e-8f};

}  // namespace shardinit::torch_coefficients
