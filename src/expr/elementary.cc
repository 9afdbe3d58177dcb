#include "expr/elementary.h"

#include <bit>
#include <cfloat>
#include <cmath>
#include <limits>

// Each function works with sums of two doubles, hi + lo, where one double is
// not exact enough, and rounds such a sum once at the end. That needs no table,
// no fused multiply-add and no libm but sqrt, fabs, floor and copysign, which
// are exact or correctly rounded. Polynomials are Horner's, from the highest
// coefficient; constants are hexadecimal and part of the contract of values.
//
// Loops over these functions have no branch that depends on data, apart from
// the choice of a row in ErfInv, so compilers make vector code of them.
static_assert(FLT_EVAL_METHOD == 0, "f64 operations must be rounded to f64");

namespace shardinit {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

uint64_t Bits(double x) { return std::bit_cast<uint64_t>(x); }
double FromBits(uint64_t bits) { return std::bit_cast<double>(bits); }

struct Two {
  double hi, lo;
};

// a + b exactly (Knuth).
Two TwoSum(double a, double b) {
  const double sum = a + b;
  const double b_part = sum - a;
  const double a_part = sum - b_part;
  return {sum, (a - a_part) + (b - b_part)};
}

// a + b exactly if |a| >= |b| or a == 0 (Dekker).
Two FastTwoSum(double a, double b) {
  const double sum = a + b;
  return {sum, b - (sum - a)};
}

// The upper 26 bits of x, and the rest (Veltkamp).
Two Split(double x) {
  const double scaled = x * 0x1.0000002p+27;
  const double hi = scaled - (scaled - x);
  return {hi, x - hi};
}

// a * b exactly (Dekker), where nothing overflows or underflows.
Two TwoProduct(double a, double b) {
  const double product = a * b;
  const Two x = Split(a), y = Split(b);
  const double error = (((x.hi * y.hi - product) + x.hi * y.lo) + x.lo * y.hi) + x.lo * y.lo;
  return {product, error};
}

Two Times(Two a, Two b) {
  const Two p = TwoProduct(a.hi, b.hi);
  return FastTwoSum(p.hi, p.lo + (a.hi * b.lo + a.lo * b.hi));
}

template <size_t n>
double Polynomial(const double (&c)[n], double x) {
  double sum = c[n - 1];
  for (size_t i = n - 1; i-- > 0;) sum = c[i] + x * sum;
  return sum;
}

// The nearest integer, ties to even, of a number below 2^51 in magnitude:
// adding 1.5 * 2^52 leaves no bits for a fraction.
constexpr double kShift = 0x1.8p+52;
struct Integer {
  double value;
  uint64_t bits;  // Two's complement.
};
Integer Nearest(double x) {
  const double shifted = x + kShift;
  return {shifted - kShift, Bits(shifted) - Bits(kShift)};
}

// ln 2 in parts of 42, 42 and 53 bits: k times the first two is exact.
constexpr double kLn2[] = {0x1.62e42fefa38p-1, 0x1.ef35793c76p-45, 0x1.cc01f97b57a08p-87};

// (exp(r) - 1 - r - r^2 / 2) / r^3: 1 / 3!, 1 / 4!, … 1 / 15!.
constexpr double kExp[] = {0x1.5555555555555p-3,  0x1.5555555555555p-5,  0x1.1111111111111p-7,
                           0x1.6c16c16c16c17p-10, 0x1.a01a01a01a01ap-13, 0x1.a01a01a01a01ap-16,
                           0x1.71de3a556c734p-19, 0x1.27e4fb7789f5cp-22, 0x1.ae64567f544e4p-26,
                           0x1.1eed8eff8d898p-29, 0x1.6124613a86d09p-33, 0x1.93974a8c07c9dp-37,
                           0x1.ae7f3e733b81fp-41};

// exp(x) = 2^k * (1 + rest), |ln(1 + rest)| <= ln(2) / 2.
struct Scaled {
  uint64_t k;
  Two rest;
};
Scaled Exponential(Two x) {
  const Integer k = Nearest(x.hi * 0x1.71547652b82fep+0);  // 1 / ln 2
  const Two sum = TwoSum(x.hi - k.value * kLn2[0], -(k.value * kLn2[1]));
  const Two r = FastTwoSum(sum.hi, (sum.lo - k.value * kLn2[2]) + x.lo);
  const Two square = TwoProduct(r.hi, r.hi);
  const double half = 0.5 * square.hi;
  const double half_rest = 0.5 * square.lo + r.hi * r.lo;
  const double cubic = (r.hi * square.hi) * Polynomial(kExp, r.hi);
  const Two low = FastTwoSum(r.hi, half);
  return {k.bits, FastTwoSum(low.hi, ((low.lo + r.lo) + half_rest) + cubic)};
}

double PowerOfTwo(uint64_t k) { return FromBits((k + 1023) << 52); }

// In two steps, as 2^k itself may be too large or too small. Only a result
// below 2^-1022 is rounded a second time.
double Scale(double x, uint64_t k) {
  const uint64_t half = ((k + 2048) >> 1) - 1024;
  return (x * PowerOfTwo(half)) * PowerOfTwo(k - half);
}

double Clamp(double x, double low, double high) {
  const double above = x < low ? low : x;
  return above > high ? high : above;
}

double ExpOf(Two x) {
  const Scaled power = Exponential(x);
  const Two one = FastTwoSum(1.0, power.rest.hi);
  return Scale(one.hi + (one.lo + power.rest.lo), power.k);
}

double Exp(double x) { return ExpOf({Clamp(x, -1100, 1100), 0}); }

// exp(x) - 1 for |x| <= 60.
Two Expm1Of(double x) {
  const Scaled power = Exponential({x, 0});
  const double scale = PowerOfTwo(power.k);
  const Two minus_one = TwoSum(scale, -1.0);
  const Two sum = TwoSum(minus_one.hi, scale * power.rest.hi);
  return FastTwoSum(sum.hi, sum.lo + (minus_one.lo + scale * power.rest.lo));
}

double Expm1(double x) {
  const Two small = Expm1Of(Clamp(x, -40, 40));
  return x > 40 ? Exp(x) : small.hi + small.lo;
}

// 2 atanh(s) = 2 s + s^3 (2/3 + 2/5 s^2 + …): 2/3 and 2/5 as sums of two,
// 2/7, 2/9, … 2/27 as one.
constexpr Two kAtanh3 = {0x1.5555555555555p-1, 0x1.5555555555555p-55};
constexpr Two kAtanh5 = {0x1.999999999999ap-2, -0x1.999999999999ap-56};
constexpr double kAtanh[] = {0x1.2492492492492p-2, 0x1.c71c71c71c71cp-3, 0x1.745d1745d1746p-3,
                             0x1.3b13b13b13b14p-3, 0x1.1111111111111p-3, 0x1.e1e1e1e1e1e1ep-4,
                             0x1.af286bca1af28p-4, 0x1.8618618618618p-4, 0x1.642c8590b2164p-4,
                             0x1.47ae147ae147bp-4, 0x1.2f684bda12f68p-4};

// ln(x) for finite x > 0, to about 2^-68 of it: x = m * 2^e with m from
// sqrt(1/2) to sqrt(2), and ln m = 2 atanh((m - 1) / (m + 1)).
Two LogOf(double x) {
  constexpr uint64_t kSqrtHalf = 0x3FE6A09E667F3BCD;
  const bool tiny = x < 0x1p-1022;
  const double normal = tiny ? x * 0x1p54 : x;
  const uint64_t shifted = Bits(normal) - kSqrtHalf;
  // e + 1024 is a small positive integer; as the low bits of 2^52 it is a
  // double.
  const uint64_t biased = (shifted + (uint64_t{1024} << 52)) >> 52;
  const double e = (FromBits(biased | Bits(0x1p52)) - 0x1p52) - (tiny ? 1078.0 : 1024.0);
  const double m = FromBits((shifted & 0xFFFFFFFFFFFFF) + kSqrtHalf);

  const double f = m - 1.0;
  const Two d = TwoSum(m, 1.0);
  const double quotient = f / d.hi;
  const Two product = TwoProduct(quotient, d.hi);
  const Two s = {quotient, (((f - product.hi) - product.lo) - quotient * d.lo) / d.hi};
  const Two u = Times(s, s);
  const Two fifth = FastTwoSum(kAtanh5.hi, u.hi * Polynomial(kAtanh, u.hi));
  const Two product5 = Times(u, {fifth.hi, fifth.lo + kAtanh5.lo});
  const Two third = FastTwoSum(kAtanh3.hi, product5.hi);
  const Two cubic = Times(Times(s, u), {third.hi, third.lo + (product5.lo + kAtanh3.lo)});
  const Two series = FastTwoSum(2 * s.hi, cubic.hi);
  const Two log_m = FastTwoSum(series.hi, series.lo + (2 * s.lo + cubic.lo));

  const Two whole = TwoSum(e * kLn2[0], e * kLn2[1]);
  const Two sum = TwoSum(whole.hi, log_m.hi);
  return FastTwoSum(sum.hi, sum.lo + (whole.lo + (log_m.lo + e * kLn2[2])));
}

double LogEnds(double x, double log) {
  const double positive = x == kInfinity ? kInfinity : log;
  const double zero = x == 0 ? -kInfinity : kNaN;
  return x > 0 ? positive : zero;
}

double Log(double x) {
  const Two log = LogOf(x);
  return LogEnds(x, log.hi + log.lo);
}

double Log1p(double x) {
  const Two sum = TwoSum(1.0, x);
  const Two log = LogOf(sum.hi);
  const Two more = TwoSum(log.hi, sum.lo / sum.hi);
  return LogEnds(sum.hi, more.hi + (more.lo + log.lo));
}

double Floor(double x) { return std::floor(x); }

// exp(y ln |x|). Exact wherever x^y is a double with an integer y, as the error
// before the last rounding is far below half a unit.
double Pow(double x, double y) {
  const double base = std::fabs(x);
  const Two log = LogOf(base);
  const double bounded = Clamp(y, -0x1p64, 0x1p64);
  const Two product = TwoProduct(bounded, log.hi);
  const double exponent = Clamp(product.hi, -1100, 1100);
  const double rest = exponent == product.hi ? product.lo + bounded * log.lo : 0;
  const double power = ExpOf({exponent, rest});

  const bool whole = Floor(y) == y;
  const bool odd = whole && Floor(y * 0.5) * 2 != y;
  const double of_negative = whole ? (odd ? -power : power) : kNaN;
  const double of_zero = y > 0 ? 0 : kInfinity;
  const double of_infinity = y > 0 ? kInfinity : 0;
  double result = x < 0 ? of_negative : power;
  result = base == 0 ? of_zero : result;
  result = base == kInfinity ? (x < 0 ? kNaN : of_infinity) : result;
  result = x != x || y != y ? kNaN : result;
  return y == 0 ? 1 : result;
}

// pi / 2 in parts of 27, 27, 27, 27 and 53 bits.
constexpr double kHalfPi[] = {0x1.921fb54p+0, 0x1.10b461p-30, 0x1.a62633p-58, 0x1.45c06ep-86,
                              0x1.cd129024e088ap-115};

struct Angle {
  uint64_t quarter;
  Two r;  // Within pi / 4.
};
Angle Reduce(double x) {
  const Integer k = Nearest(x * 0x1.45f306dc9c883p-1);  // 2 / pi
  const double first = x - k.value * kHalfPi[0];
  const Two second = TwoSum(first, -(k.value * kHalfPi[1]));
  const Two third = TwoSum(second.hi, -(k.value * kHalfPi[2]));
  const Two rest = TwoSum(second.lo, third.lo);
  const Two fourth = TwoSum(rest.hi, -(k.value * kHalfPi[3]));
  const Two sum = TwoSum(third.hi, fourth.hi);
  return {k.bits, FastTwoSum(sum.hi, sum.lo + ((rest.lo + fourth.lo) - k.value * kHalfPi[4]))};
}

// (sin(r) - r) / r^3 in r^2: -1 / 3!, 1 / 5!, … -1 / 19!.
constexpr double kSin[] = {-0x1.5555555555555p-3,  0x1.1111111111111p-7,   -0x1.a01a01a01a01ap-13,
                           0x1.71de3a556c734p-19,  -0x1.ae64567f544e4p-26, 0x1.6124613a86d09p-33,
                           -0x1.ae7f3e733b81fp-41, 0x1.952c77030ad4ap-49,  -0x1.2f49b46814157p-57};
// (cos(r) - 1 + r^2 / 2) / r^4 in r^2: 1 / 4!, -1 / 6!, … 1 / 20!.
constexpr double kCos[] = {0x1.5555555555555p-5,   -0x1.6c16c16c16c17p-10, 0x1.a01a01a01a01ap-16,
                           -0x1.27e4fb7789f5cp-22, 0x1.1eed8eff8d898p-29,  -0x1.93974a8c07c9dp-37,
                           0x1.ae7f3e733b81fp-45,  -0x1.6827863b97d97p-53, 0x1.e542ba4020225p-62};

// sin of x plus a number of quarter turns.
double Sine(double x, uint64_t turns) {
  const double bounded = Clamp(x, -kLargestAngle, kLargestAngle);
  const Angle angle = Reduce(bounded);
  const Two r = angle.r;
  const double square = r.hi * r.hi;
  const double half = 0.5 * square;
  const double cubic = (r.hi * square) * Polynomial(kSin, square);
  const double sine = r.hi + (cubic + (r.lo - half * r.lo));
  const double near_one = 1.0 - half;
  const double quartic = (square * square) * Polynomial(kCos, square);
  const double cosine = near_one + (((1.0 - near_one) - half) + (quartic - r.hi * r.lo));

  const uint64_t quarter = angle.quarter + turns;
  const double value = (quarter & 1) != 0 ? cosine : sine;
  const double turned = (quarter & 2) != 0 ? -value : value;
  return bounded == x ? turned : kNaN;
}

double Sin(double x) { return Sine(x, 0); }
double Cos(double x) { return Sine(x, 1); }

// E / (E + 2) for E = exp(2 |x|) - 1.
double Tanh(double x) {
  const double size = std::fabs(x);
  const Two e = Expm1Of(2 * Clamp(size, 0, 20));
  const Two sum = TwoSum(2.0, e.hi);
  const double d_lo = sum.lo + e.lo;
  const double quotient = e.hi / sum.hi;
  const Two product = TwoProduct(quotient, sum.hi);
  const double rest = ((e.hi - product.hi) - product.lo) + (e.lo - quotient * d_lo);
  const double large = quotient + rest / sum.hi;
  return size < 0x1p-28 ? x : std::copysign(large, x);
}

// erf_inv(y) = factor * polynomial((argument - centre) * scale). Row 0, for
// |y| <= 1/2: factor y, argument y^2. The others, by the argument: factor and
// argument s = sqrt(-ln(1 - |y|)).
struct ErfInvRow {
  double centre, scale;
  double constant_rest;  // What the constant term, c[0], lacks.
  double c[20];
};
constexpr double kErfInvEnds[] = {0x1.7p+0, 0x1.2p+1, 0x1.cp+1};
constexpr ErfInvRow kErfInv[] = {
    // v in [0, 0.25]: 2^-81.2
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

double ErfInv(double y) {
  const double size = std::fabs(y);
  const bool central = size <= 0.5;
  const Two log = LogOf(central ? 0.5 : 1.0 - size);
  const double s = std::sqrt(-log.hi);
  const Two square = TwoProduct(s, s);
  const double s_rest = (((-log.hi - square.hi) - square.lo) - log.lo) / (2 * s);
  const int row =
      central ? 0 : 1 + (s > kErfInvEnds[0]) + (s > kErfInvEnds[1]) + (s > kErfInvEnds[2]);
  const ErfInvRow& p = kErfInv[row];
  const double factor = central ? size : s;
  const double factor_rest = central ? 0 : s_rest;
  const double t = (((central ? y * y : s) - p.centre) + factor_rest) * p.scale;
  double sum = p.c[19];
  for (int i = 19; i-- > 1;) sum = p.c[i] + t * sum;
  const Two value = TwoSum(p.c[0], t * sum);
  const Two product = TwoProduct(factor, value.hi);
  const double result =
      product.hi + (product.lo + (factor * (value.lo + p.constant_rest) + factor_rest * value.hi));
  const double end = size == 1 ? kInfinity : kNaN;
  return std::copysign(size < 1 ? result : end, y);
}

template <typename F>
void Each(const double* a, double* out, size_t n, F f) {
  for (size_t i = 0; i < n; ++i) out[i] = f(a[i]);
}
template <typename F>
void Each(const double* a, const double* b, double* out, size_t n, F f) {
  for (size_t i = 0; i < n; ++i) out[i] = f(a[i], b[i]);
}
template <typename F>
void Each(const double* a, const double* b, const double* c, double* out, size_t n, F f) {
  for (size_t i = 0; i < n; ++i) out[i] = f(a[i], b[i], c[i]);
}

}  // namespace

void Apply(ElementOp op, const double* a, const double* b, const double* c, double* out, size_t n) {
  // A function's address would be called for each element; these are inlined.
#define SHARDINIT_ONE(name, result) \
  case ElementOp::name:             \
    return Each(a, out, n, [](double x) -> double { return result; })
#define SHARDINIT_TWO(name, result) \
  case ElementOp::name:             \
    return Each(a, b, out, n, [](double x, double y) -> double { return result; })
#define SHARDINIT_THREE(name, result) \
  case ElementOp::name:               \
    return Each(a, b, c, out, n, [](double x, double y, double z) -> double { return result; })
  switch (op) {
    SHARDINIT_ONE(kNegate, -x);
    SHARDINIT_TWO(kAdd, x + y);
    SHARDINIT_TWO(kSubtract, x - y);
    SHARDINIT_TWO(kMultiply, x * y);
    SHARDINIT_TWO(kDivide, x / y);
    SHARDINIT_TWO(kLess, x < y ? 1.0 : 0.0);
    SHARDINIT_TWO(kLessEqual, x <= y ? 1.0 : 0.0);
    SHARDINIT_TWO(kGreater, x > y ? 1.0 : 0.0);
    SHARDINIT_TWO(kGreaterEqual, x >= y ? 1.0 : 0.0);
    SHARDINIT_TWO(kEqual, x == y ? 1.0 : 0.0);
    SHARDINIT_TWO(kNotEqual, x != y ? 1.0 : 0.0);
    SHARDINIT_THREE(kWhere, x != 0 ? y : z);
    SHARDINIT_TWO(kMin, y < x ? y : x);
    SHARDINIT_TWO(kMax, y > x ? y : x);
    SHARDINIT_THREE(kClip, Clamp(x, y, z));
    SHARDINIT_ONE(kAbs, std::fabs(x));
    SHARDINIT_ONE(kFloor, Floor(x));
    SHARDINIT_TWO(kMod, x - Floor(x / y) * y);
    SHARDINIT_TWO(kCeilDiv, -Floor(-x / y));
    SHARDINIT_TWO(kRoundUp, -Floor(-x / y) * y);
    SHARDINIT_ONE(kSqrt, std::sqrt(x));
    SHARDINIT_ONE(kExp, Exp(x));
    SHARDINIT_ONE(kExpm1, Expm1(x));
    SHARDINIT_ONE(kLog, Log(x));
    SHARDINIT_ONE(kLog1p, Log1p(x));
    SHARDINIT_TWO(kPow, Pow(x, y));
    SHARDINIT_ONE(kSin, Sin(x));
    SHARDINIT_ONE(kCos, Cos(x));
    SHARDINIT_ONE(kTanh, Tanh(x));
    SHARDINIT_ONE(kErfInv, ErfInv(x));
  }
#undef SHARDINIT_ONE
#undef SHARDINIT_TWO
#undef SHARDINIT_THREE
}

double Apply(ElementOp op, double a, double b, double c) {
  double out;
  Apply(op, &a, &b, &c, &out, 1);
  return out;
}

}  // namespace shardinit
