// Computes the operations of expressions over elements. shardinit-values(7) lists them. They are
// templates over the number type F: `double`, or a type that writes the same operations into a
// program. The file is long because each operation is a formula and all share the sums below.
//
// Where one number is not exact enough, functions compute with sums of two numbers, hi + lo, and
// round such a sum once at the end. This needs no table and no fused multiply-add. Of libm it needs
// only square root, absolute value, floor and sign, which are exact or correctly rounded.
// Polynomials use Horner's scheme, from the highest coefficient. Constants are hexadecimal and part
// of the contract of values. No branch depends on data, except the choice of a row in ErfInv.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <type_traits>
#include <utility>

#include "base/number.h"
#include "expr/elementary.h"

namespace shardinit::elementary {

inline constexpr double kInfinity = std::numeric_limits<double>::infinity();
inline constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

// The type of the bits of an F.
template <typename F>
using BitsIn = decltype(BitsOf(std::declval<F>()));

template <typename F>
struct HiLo {
  F hi, lo;
};

// Returns a + b exactly (Knuth).
template <typename F>
HiLo<F> TwoSum(std::type_identity_t<F> a, F b) {
  const F sum = a + b;
  const F b_part = sum - a;
  const F a_part = sum - b_part;
  return {sum, (a - a_part) + (b - b_part)};
}

// Returns a + b exactly if |a| >= |b| or a == 0 (Dekker).
template <typename F>
HiLo<F> FastTwoSum(std::type_identity_t<F> a, F b) {
  const F sum = a + b;
  return {sum, b - (sum - a)};
}

// Returns the upper 26 bits of x and the rest (Veltkamp).
template <typename F>
HiLo<F> Split(F x) {
  const F scaled = x * 0x1.0000002p+27;
  const F hi = scaled - (scaled - x);
  return {hi, x - hi};
}

// Returns a * b exactly (Dekker) if nothing overflows or underflows.
template <typename F>
HiLo<F> TwoProduct(F a, F b) {
  const F product = a * b;
  const HiLo<F> x = Split(a), y = Split(b);
  const F error = (((x.hi * y.hi - product) + x.hi * y.lo) + x.lo * y.hi) + x.lo * y.lo;
  return {product, error};
}

template <typename F>
HiLo<F> Times(HiLo<F> a, HiLo<F> b) {
  const HiLo<F> p = TwoProduct(a.hi, b.hi);
  return FastTwoSum(p.hi, p.lo + (a.hi * b.lo + a.lo * b.hi));
}

template <size_t n, typename F>
F Polynomial(const double (&c)[n], F x) {
  F sum = c[n - 1];
  for (size_t i = n - 1; i-- > 0;) sum = c[i] + x * sum;
  return sum;
}

// Returns the nearest integer to a number below 2^51 in magnitude, ties to even. Adding 1.5 * 2^52
// leaves no bits for a fraction.
inline constexpr double kShift = 0x1.8p+52;
template <typename F>
struct Integer {
  F value;
  BitsIn<F> bits;  // two's complement
};
template <typename F>
Integer<F> Nearest(F x) {
  const F shifted = x + kShift;
  return {shifted - kShift, BitsOf(shifted) - std::bit_cast<uint64_t>(kShift)};
}

// ln 2 in parts of 42, 42 and 53 bits. Products of k and the first two parts are exact.
inline constexpr double kLn2[] = {0x1.62e42fefa38p-1, 0x1.ef35793c76p-45, 0x1.cc01f97b57a08p-87};

// The coefficients of (exp(r) - 1 - r - r^2 / 2) / r^3: 1 / 3!, 1 / 4!, … 1 / 15!.
inline constexpr double kExp[] = {
    0x1.5555555555555p-3,  0x1.5555555555555p-5,  0x1.1111111111111p-7,  0x1.6c16c16c16c17p-10,
    0x1.a01a01a01a01ap-13, 0x1.a01a01a01a01ap-16, 0x1.71de3a556c734p-19, 0x1.27e4fb7789f5cp-22,
    0x1.ae64567f544e4p-26, 0x1.1eed8eff8d898p-29, 0x1.6124613a86d09p-33, 0x1.93974a8c07c9dp-37,
    0x1.ae7f3e733b81fp-41};

// Represents exp(x) = 2^k * (1 + rest), |ln(1 + rest)| <= ln(2) / 2.
template <typename F>
struct Scaled {
  BitsIn<F> k;
  HiLo<F> rest;
};
template <typename F>
Scaled<F> Exponential(HiLo<F> x) {
  const Integer<F> k = Nearest(x.hi * 0x1.71547652b82fep+0);  // 1 / ln 2
  const HiLo<F> sum = TwoSum(x.hi - k.value * kLn2[0], -(k.value * kLn2[1]));
  const HiLo<F> r = FastTwoSum(sum.hi, (sum.lo - k.value * kLn2[2]) + x.lo);
  const HiLo<F> square = TwoProduct(r.hi, r.hi);
  const F half = 0.5 * square.hi;
  const F half_rest = 0.5 * square.lo + r.hi * r.lo;
  const F cubic = (r.hi * square.hi) * Polynomial(kExp, r.hi);
  const HiLo<F> low = FastTwoSum(r.hi, half);
  return {k.bits, FastTwoSum(low.hi, ((low.lo + r.lo) + half_rest) + cubic)};
}

template <typename F>
F PowerOfTwo(BitsIn<F> k) {
  return FromBits((k + 1023) << 52);
}

// Scales in two steps, because 2^k may be too large or too small. Only a result below 2^-1022 is
// rounded a second time.
template <typename F>
F Scale(F x, BitsIn<F> k) {
  const auto half = ((k + 2048) >> 1) - 1024;
  return (x * PowerOfTwo<F>(half)) * PowerOfTwo<F>(k - half);
}

template <typename F>
F Clamp(F x, std::type_identity_t<F> low, std::type_identity_t<F> high) {
  const F above = Select<F>(x < low, low, x);
  return Select<F>(above > high, high, above);
}

template <typename F>
F ExpOf(HiLo<F> x) {
  const Scaled<F> power = Exponential(x);
  const HiLo<F> one = FastTwoSum(1.0, power.rest.hi);
  return Scale(one.hi + (one.lo + power.rest.lo), power.k);
}

template <typename F>
F Exp(F x) {
  return ExpOf(HiLo<F>{Clamp(x, -1100, 1100), 0});
}

// Returns exp(x) - 1 for |x| <= 60.
template <typename F>
HiLo<F> Expm1Of(F x) {
  const Scaled<F> power = Exponential(HiLo<F>{x, 0});
  const F scale = PowerOfTwo<F>(power.k);
  const HiLo<F> minus_one = TwoSum(scale, F(-1.0));
  const HiLo<F> sum = TwoSum(minus_one.hi, scale * power.rest.hi);
  return FastTwoSum(sum.hi, sum.lo + (minus_one.lo + scale * power.rest.lo));
}

template <typename F>
F Expm1(F x) {
  const HiLo<F> small = Expm1Of(Clamp(x, -40, 40));
  return Select<F>(x > 40, Exp(x), small.hi + small.lo);
}

// The coefficients of 2 atanh(s) = 2 s + s^3 (2/3 + 2/5 s^2 + …). 2/3 and 2/5 are sums of two
// numbers; 2/7, 2/9, … 2/27 are single numbers.
inline constexpr HiLo<double> kAtanh3 = {0x1.5555555555555p-1, 0x1.5555555555555p-55};
inline constexpr HiLo<double> kAtanh5 = {0x1.999999999999ap-2, -0x1.999999999999ap-56};
inline constexpr double kAtanh[] = {
    0x1.2492492492492p-2, 0x1.c71c71c71c71cp-3, 0x1.745d1745d1746p-3, 0x1.3b13b13b13b14p-3,
    0x1.1111111111111p-3, 0x1.e1e1e1e1e1e1ep-4, 0x1.af286bca1af28p-4, 0x1.8618618618618p-4,
    0x1.642c8590b2164p-4, 0x1.47ae147ae147bp-4, 0x1.2f684bda12f68p-4};

// Returns ln(x) for finite x > 0, with a relative error of about 2^-68. x = m * 2^e with m from
// sqrt(1/2) to sqrt(2), and ln m = 2 atanh((m - 1) / (m + 1)).
template <typename F>
HiLo<F> LogOf(F x) {
  constexpr auto kSqrtHalf = 0x3FE6A09E667F3BCD;
  const auto tiny = x < 0x1p-1022;
  const F normal = Select<F>(tiny, x * 0x1p54, x);
  const auto shifted = BitsOf(normal) - kSqrtHalf;
  // e + 1024 is a small positive integer, which becomes an F as the low bits of 2^52.
  const auto biased = (shifted + (uint64_t{1024} << 52)) >> 52;
  const F e =
      (FromBits(biased | std::bit_cast<uint64_t>(0x1p52)) - 0x1p52) - Select<F>(tiny, 1078, 1024);
  const F m = FromBits((shifted & 0xFFFFFFFFFFFFF) + kSqrtHalf);

  const F f = m - 1.0;
  const HiLo<F> d = TwoSum(m, F(1.0));
  const F quotient = f / d.hi;
  const HiLo<F> product = TwoProduct(quotient, d.hi);
  const HiLo<F> s = {quotient, (((f - product.hi) - product.lo) - quotient * d.lo) / d.hi};
  const HiLo<F> u = Times(s, s);
  const HiLo<F> fifth = FastTwoSum(kAtanh5.hi, u.hi * Polynomial(kAtanh, u.hi));
  const HiLo<F> product5 = Times(u, HiLo<F>{fifth.hi, fifth.lo + kAtanh5.lo});
  const HiLo<F> third = FastTwoSum(kAtanh3.hi, product5.hi);
  const HiLo<F> cubic =
      Times(Times(s, u), HiLo<F>{third.hi, third.lo + (product5.lo + kAtanh3.lo)});
  const HiLo<F> series = FastTwoSum(2 * s.hi, cubic.hi);
  const HiLo<F> log_m = FastTwoSum(series.hi, series.lo + (2 * s.lo + cubic.lo));

  const HiLo<F> whole = TwoSum(e * kLn2[0], e * kLn2[1]);
  const HiLo<F> sum = TwoSum(whole.hi, log_m.hi);
  return FastTwoSum(sum.hi, sum.lo + (whole.lo + (log_m.lo + e * kLn2[2])));
}

template <typename F>
F LogEnds(F x, F log) {
  const F positive = Select<F>(x == kInfinity, kInfinity, log);
  const F zero = Select<F>(x == 0, -kInfinity, kNaN);
  return Select<F>(x > 0, positive, zero);
}

template <typename F>
F Log(F x) {
  const HiLo<F> log = LogOf(x);
  return LogEnds<F>(x, log.hi + log.lo);
}

template <typename F>
F Log1p(F x) {
  const HiLo<F> sum = TwoSum(1.0, x);
  const HiLo<F> log = LogOf(sum.hi);
  const HiLo<F> more = TwoSum(log.hi, sum.lo / sum.hi);
  return LogEnds<F>(sum.hi, more.hi + (more.lo + log.lo));
}

// Computes exp(y ln |x|). The result is exact if y is an integer and x^y is a double, because the
// error before the last rounding is far below half a unit.
template <typename F>
F Pow(F x, F y) {
  const F base = Abs(x);
  const HiLo<F> log = LogOf(base);
  const F bounded = Clamp(y, -0x1p64, 0x1p64);
  const HiLo<F> product = TwoProduct(bounded, log.hi);
  const F exponent = Clamp(product.hi, -1100, 1100);
  const F rest = Select<F>(exponent == product.hi, product.lo + bounded * log.lo, 0);
  const F power = ExpOf(HiLo<F>{exponent, rest});

  const auto whole = Floor(y) == y;
  const auto odd = whole & (Floor(y * 0.5) * 2 != y);
  const F of_negative = Select<F>(whole, Select<F>(odd, -power, power), kNaN);
  const F of_zero = Select<F>(y > 0, 0, kInfinity);
  const F of_infinity = Select<F>(y > 0, kInfinity, 0);
  F result = Select<F>(x < 0, of_negative, power);
  result = Select<F>(base == 0, of_zero, result);
  result = Select<F>(base == kInfinity, Select<F>(x < 0, kNaN, of_infinity), result);
  // NOLINTNEXTLINE(misc-redundant-expression): a NaN alone differs from itself.
  result = Select<F>((x != x) | (y != y), kNaN, result);
  return Select<F>(y == 0, 1, result);
}

// pi / 2 in parts of 27, 27, 27, 27 and 53 bits.
inline constexpr double kHalfPi[] = {0x1.921fb54p+0, 0x1.10b461p-30, 0x1.a62633p-58, 0x1.45c06ep-86,
                                     0x1.cd129024e088ap-115};

template <typename F>
struct Angle {
  BitsIn<F> quarter;
  HiLo<F> r;  // within pi / 4
};
template <typename F>
Angle<F> Reduce(F x) {
  const Integer<F> k = Nearest(x * 0x1.45f306dc9c883p-1);  // 2 / pi
  const F first = x - k.value * kHalfPi[0];
  const HiLo<F> second = TwoSum(first, -(k.value * kHalfPi[1]));
  const HiLo<F> third = TwoSum(second.hi, -(k.value * kHalfPi[2]));
  const HiLo<F> rest = TwoSum(second.lo, third.lo);
  const HiLo<F> fourth = TwoSum(rest.hi, -(k.value * kHalfPi[3]));
  const HiLo<F> sum = TwoSum(third.hi, fourth.hi);
  return {k.bits, FastTwoSum(sum.hi, sum.lo + ((rest.lo + fourth.lo) - k.value * kHalfPi[4]))};
}

// The coefficients of (sin(r) - r) / r^3 in r^2: -1 / 3!, 1 / 5!, … -1 / 19!.
inline constexpr double kSin[] = {
    -0x1.5555555555555p-3,  0x1.1111111111111p-7,   -0x1.a01a01a01a01ap-13,
    0x1.71de3a556c734p-19,  -0x1.ae64567f544e4p-26, 0x1.6124613a86d09p-33,
    -0x1.ae7f3e733b81fp-41, 0x1.952c77030ad4ap-49,  -0x1.2f49b46814157p-57};
// The coefficients of (cos(r) - 1 + r^2 / 2) / r^4 in r^2: 1 / 4!, -1 / 6!, … 1 / 20!.
inline constexpr double kCos[] = {
    0x1.5555555555555p-5,   -0x1.6c16c16c16c17p-10, 0x1.a01a01a01a01ap-16,
    -0x1.27e4fb7789f5cp-22, 0x1.1eed8eff8d898p-29,  -0x1.93974a8c07c9dp-37,
    0x1.ae7f3e733b81fp-45,  -0x1.6827863b97d97p-53, 0x1.e542ba4020225p-62};

// Returns the sine of x plus a number of quarter turns.
template <typename F>
F Sine(F x, uint64_t turns) {
  const F bounded = Clamp(x, -kLargestAngle, kLargestAngle);
  const Angle<F> angle = Reduce(bounded);
  const HiLo<F> r = angle.r;
  const F square = r.hi * r.hi;
  const F half = 0.5 * square;
  const F cubic = (r.hi * square) * Polynomial(kSin, square);
  const F sine = r.hi + (cubic + (r.lo - half * r.lo));
  const F near_one = 1.0 - half;
  const F quartic = (square * square) * Polynomial(kCos, square);
  const F cosine = near_one + (((1.0 - near_one) - half) + (quartic - r.hi * r.lo));

  const auto quarter = angle.quarter + turns;
  const F value = Select<F>((quarter & 1) != 0, cosine, sine);
  const F turned = Select<F>((quarter & 2) != 0, -value, value);
  return Select<F>(bounded == x, turned, kNaN);
}

template <typename F>
F Sin(F x) {
  return Sine(x, 0);
}
template <typename F>
F Cos(F x) {
  return Sine(x, 1);
}

// Computes E / (E + 2) for E = exp(2 |x|) - 1.
template <typename F>
F Tanh(F x) {
  const F size = Abs(x);
  const HiLo<F> e = Expm1Of(2 * Clamp(size, 0, 20));
  const HiLo<F> sum = TwoSum(2.0, e.hi);
  const F d_lo = sum.lo + e.lo;
  const F quotient = e.hi / sum.hi;
  const HiLo<F> product = TwoProduct(quotient, sum.hi);
  const F rest = ((e.hi - product.hi) - product.lo) + (e.lo - quotient * d_lo);
  const F large = quotient + rest / sum.hi;
  return Select<F>(size < 0x1p-28, x, CopySign(large, x));
}

// erf_inv(y) = factor * polynomial((argument - centre) * scale). Row 0 is for |y| <= 1/2, with
// factor y and argument y^2. In the other rows, factor and argument are s = sqrt(-ln(1 - |y|)),
// which also chooses the row. The comment of a row is its range, and
// the error of its polynomial.
struct ErfInvRow {
  double centre, scale;
  double constant_rest;  // the rounding error of the constant term, c[0]
  double c[20];
};
inline constexpr double kErfInvEnds[] = {0x1.7p+0, 0x1.2p+1, 0x1.cp+1};
inline constexpr ErfInvRow kErfInv[] = {
    // y^2 in [0, 0.25]: 2^-81.2
    {0x1p-3,
     0x1p+3,
     -0x1.7f22acb79d9ccp-55,
     {0x1.d5b68cab21ed6p-1,  0x1.12fc00eac5523p-5,  0x1.56a033eae079cp-9,  0x1.08877d2b5758ap-12,
      0x1.c499564b137f5p-16, 0x1.9b356de909b6cp-19, 0x1.84ae113efcb89p-22, 0x1.79cf268111f9cp-25,
      0x1.76f88a42f7e9fp-28, 0x1.7a31dfc502a0cp-31, 0x1.825e2ba961e1ep-34, 0x1.8edcc0c2b7e25p-37,
      0x1.9f590f3c2a44fp-40, 0x1.b3b12975db08fp-43, 0x1.cbeff8b23ad55p-46, 0x1.e820a0de5eb02p-49,
      0x1.03414764d3555p-51, 0x1.1595f725da5b9p-54, 0x1.483f22b513b17p-57, 0x1.621eef9040412p-60}},
    // s in [0.8125, 1.4375]: 2^-67.1
    {0x1.2p+0,
     0x1.999999999999ap+1,
     0x1.ac3e12f538496p-56,
     {0x1.5a2c18a08a3aap-1,   0x1.7405686e7f8e1p-4,   -0x1.27c3fb062294ap-6,
      0x1.68a23b2daf81dp-9,   -0x1.1fb8a1a8cb996p-12, -0x1.47ca05c454ep-18,
      0x1.6116ad5a99382p-17,  -0x1.95ae97f1d99ap-19,  0x1.2674c9de1161ap-21,
      -0x1.eb8a29bd8e7bp-25,  -0x1.c5ba8b48f0442p-29, 0x1.cef38ad73fdfcp-29,
      -0x1.0875ce9dea594p-30, 0x1.82286991360dap-33,  -0x1.330a62cae0a9dp-36,
      -0x1.dca7b61d24821p-40, 0x1.77f8ba4150cdp-40,   -0x1.a72ae5b202163p-42,
      0x1.0cc7cba38816ap-44,  -0x1.a332b6807971cp-49}},
    // s in [1.4375, 2.25]: 2^-70.1
    {0x1.d8p+0,
     0x1.3b13b13b13b14p+1,
     -0x1.d61807d05f6cfp-55,
     {0x1.a1b8d8d44c863p-1,   0x1.a4347f2f44713p-5,   -0x1.6353de4329a7ap-7,
      0x1.03f5f2c4874b2p-9,   -0x1.504aa87325684p-12, 0x1.77fe8e59b55f3p-15,
      -0x1.4974c8c22f9a7p-18, 0x1.fe7361b29ff63p-23,  0x1.3668d4af09c12p-24,
      -0x1.07b48ab4c50edp-25, 0x1.08fce9ed2e4d6p-27,  -0x1.a7a218f79646fp-30,
      0x1.19d73c38cd203p-32,  -0x1.2a1a18a3c884p-35,  0x1.76b1435889d5bp-39,
      0x1.2d614222afe69p-42,  -0x1.96f297a60b2c5p-43, 0x1.dff18ceb27729p-45,
      -0x1.e5dc264916a87p-47, 0x1.4f46ef220edcep-49}},
    // s in [2.25, 3.5]: 2^-69.6
    {0x1.7p+1,
     0x1.999999999999ap+0,
     0x1.6ffdf4ad884e6p-56,
     {0x1.cc420fd61479ep-1,   0x1.00c04ccb84a54p-5,   -0x1.eedff1f5795bdp-8,
      0x1.ab147f4ff7fa7p-10,  -0x1.5713bc1a540bap-12, 0x1.03d7adc32d197p-14,
      -0x1.73a66ac346b75p-17, 0x1.f23bc1b0f904fp-20,  -0x1.32d46b4f46312p-22,
      0x1.4aa26874787cap-25,  -0x1.0ad1f1d5e823fp-28, 0x1.69a2801e93081p-35,
      0x1.134edfead34c8p-33,  -0x1.a28cba1d1801fp-35, 0x1.c8ad1439ee5abp-37,
      -0x1.ac7e357edd6f7p-39, 0x1.693362a99923fp-41,  -0x1.1c703f1c22c7cp-43,
      0x1.cb8e3cfab26aep-46,  -0x1.1ee9945e663b6p-48}},
    // s in [3.5, 6.125]: 2^-61.9
    {0x1.34p+2,
     0x1.8618618618618p-1,
     0x1.4c8524f62de7p-57,
     {0x1.e806b34a94b17p-1,   0x1.4476fcdb796b6p-6,   -0x1.ad8e53a4617eap-8,
      0x1.01b9bf660c3ep-9,    -0x1.2493b4ea54c87p-11, 0x1.3fdb65ea9d6f4p-13,
      -0x1.53ac663b4092ep-15, 0x1.5ff4f02020951p-17,  -0x1.64956bb85aa7ap-19,
      0x1.6172e64f9511ap-21,  -0x1.5682de20889fbp-23, 0x1.43d4537792d25p-25,
      -0x1.299c2cf4d3bfbp-27, 0x1.082015d24f08bp-29,  -0x1.be72bc2db4066p-32,
      0x1.61213086bcf15p-34,  -0x1.0a7888439b8c6p-36, 0x1.40d45ef66d4fp-39,
      0x1.4c7ab5129da2p-42,   -0x1.f619b9b01f00dp-43}},
};

inline int ErfInvRowOf(bool central, bool past0, bool past1, bool past2) {
  return central ? 0 : 1 + past0 + past1 + past2;
}
template <typename Member>
double OfRow(int row, Member member) {
  return member(kErfInv[row]);
}

template <typename F>
F ErfInv(F y) {
  const F size = Abs(y);
  const auto central = size <= 0.5;
  const HiLo<F> log = LogOf(Select<F>(central, 0.5, 1.0 - size));
  const F s = Sqrt(-log.hi);
  const HiLo<F> square = TwoProduct(s, s);
  const F s_rest = (((-log.hi - square.hi) - square.lo) - log.lo) / (2 * s);
  const auto row = ErfInvRowOf(central, s > kErfInvEnds[0], s > kErfInvEnds[1], s > kErfInvEnds[2]);
  const F factor = Select<F>(central, size, s);
  const F factor_rest = Select<F>(central, 0, s_rest);
  const F centre = OfRow(row, [](const ErfInvRow& p) { return p.centre; });
  const F scale = OfRow(row, [](const ErfInvRow& p) { return p.scale; });
  const F constant_rest = OfRow(row, [](const ErfInvRow& p) { return p.constant_rest; });
  const auto c = [&](int i) -> F { return OfRow(row, [i](const ErfInvRow& p) { return p.c[i]; }); };
  const F t = ((Select<F>(central, y * y, s) - centre) + factor_rest) * scale;
  F sum = c(19);
  for (int i = 19; i-- > 1;) sum = c(i) + t * sum;
  const HiLo<F> value = TwoSum(c(0), F(t * sum));
  const HiLo<F> product = TwoProduct(factor, value.hi);
  const F result =
      product.hi + (product.lo + (factor * (value.lo + constant_rest) + factor_rest * value.hi));
  const F end = Select<F>(size == 1, kInfinity, kNaN);
  return CopySign(Select<F>(size < 1, result, end), y);
}

// A binary float type whose numbers are all f64 numbers: the bits after the leading one, the power
// of the smallest exponent, and the largest number.
struct Format {
  int mantissa_bits;
  double smallest_power, largest;
};
inline constexpr Format kF32 = {23, 0x1p-126, 0x1.fffffep+127};
inline constexpr Format kBf16 = {7, 0x1p-126, 0x1.fep+127};
inline constexpr Format kF16 = {10, 0x1p-14, 0x1.ffcp+15};

// Rounds x to the format, ties to even. Adds a power of two that is so much larger that the sum has
// no more bits than the format.
template <typename F>
F Rounded(const Format& format, F x) {
  const F power = FromBits(BitsOf(x) & uint64_t{0x7FF0000000000000});
  const F bounded = Clamp<F>(power, format.smallest_power, 0x1p200);
  const double shift = 1.5 * static_cast<double>(uint64_t{1} << (52 - format.mantissa_bits));
  const F large = bounded * shift;
  const F near = (x + large) - large;
  // NOLINTNEXTLINE(misc-redundant-expression): a NaN alone differs from itself.
  const F finite = Select<F>(Abs(near) <= format.largest, near, Select<F>(x == x, kInfinity, kNaN));
  return CopySign(finite, x);
}

// Lists each operation with its operands x, y, z.
// clang-format off
#define SHARDINIT_ELEMENT_OPERATIONS(ONE, TWO, THREE)  \
  ONE(kNegate, -x)                                     \
  TWO(kAdd, x + y)                                     \
  TWO(kSubtract, x - y)                                \
  TWO(kMultiply, x * y)                                \
  TWO(kDivide, x / y)                                  \
  TWO(kLess, Select<F>(x < y, 1, 0))                   \
  TWO(kLessEqual, Select<F>(x <= y, 1, 0))             \
  TWO(kGreater, Select<F>(x > y, 1, 0))                \
  TWO(kGreaterEqual, Select<F>(x >= y, 1, 0))          \
  TWO(kEqual, Select<F>(x == y, 1, 0))                 \
  TWO(kNotEqual, Select<F>(x != y, 1, 0))              \
  THREE(kWhere, Select<F>(x != 0, y, z))               \
  TWO(kMin, Select<F>(y < x, y, x))                    \
  TWO(kMax, Select<F>(y > x, y, x))                    \
  THREE(kClip, elementary::Clamp<F>(x, y, z))          \
  ONE(kAbs, Abs(x))                                    \
  ONE(kFloor, Floor(x))                                \
  TWO(kMod, x - Floor(x / y) * y)                      \
  TWO(kCeilDiv, -Floor(-x / y))                        \
  TWO(kRoundUp, -Floor(-x / y) * y)                    \
  ONE(kSqrt, Sqrt(x))                                  \
  ONE(kExp, elementary::Exp<F>(x))                     \
  ONE(kExpm1, elementary::Expm1<F>(x))                 \
  ONE(kLog, elementary::Log<F>(x))                     \
  ONE(kLog1p, elementary::Log1p<F>(x))                 \
  TWO(kPow, elementary::Pow<F>(x, y))                  \
  ONE(kSin, elementary::Sin<F>(x))                     \
  ONE(kCos, elementary::Cos<F>(x))                     \
  ONE(kTanh, elementary::Tanh<F>(x))                   \
  ONE(kErfInv, elementary::ErfInv<F>(x))               \
  ONE(kF32, elementary::Rounded<F>(elementary::kF32, x)) \
  ONE(kBf16, elementary::Rounded<F>(elementary::kBf16, elementary::Rounded<F>(elementary::kF32, x))) \
  ONE(kF16, elementary::Rounded<F>(elementary::kF16, elementary::Rounded<F>(elementary::kF32, x)))
// clang-format on

}  // namespace shardinit::elementary
