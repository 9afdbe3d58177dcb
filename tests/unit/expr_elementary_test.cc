// Compares the functions of expressions over elements with MPFR, within the bounds that
// shardinit-values(7) promises.
#include <gtest/gtest.h>
#include <mpfr.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <functional>
#include <limits>
#include <random>
#include <utility>
#include <vector>

#include "expr/elementary.h"

namespace shardinit {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

class Number {
 public:
  explicit Number(double value = 0) {
    mpfr_init2(value_, 320);
    mpfr_set_d(value_, value, MPFR_RNDN);
  }
  ~Number() { mpfr_clear(value_); }
  Number(const Number&) = delete;
  Number& operator=(const Number&) = delete;
  operator mpfr_ptr() { return value_; }

 private:
  mpfr_t value_;
};

using Reference = std::function<void(mpfr_ptr out, mpfr_ptr x, mpfr_ptr y)>;

template <int (*kFunction)(mpfr_ptr, mpfr_srcptr, mpfr_rnd_t)>
void One(mpfr_ptr out, mpfr_ptr x, mpfr_ptr) {
  kFunction(out, x, MPFR_RNDN);
}

void Pow(mpfr_ptr out, mpfr_ptr x, mpfr_ptr y) { mpfr_pow(out, x, y, MPFR_RNDN); }

// Applies Newton's method to erf, starting at the double under test.
void ErfInv(mpfr_ptr out, mpfr_ptr x, mpfr_ptr) {
  Number step, slope;
  mpfr_set_d(out, Apply(ElementOp::kErfInv, mpfr_get_d(x, MPFR_RNDN)), MPFR_RNDN);
  for (int i = 0; i < 3; ++i) {
    mpfr_erf(step, out, MPFR_RNDN);
    mpfr_sub(step, step, x, MPFR_RNDN);
    mpfr_sqr(slope, out, MPFR_RNDN);
    mpfr_exp(slope, slope, MPFR_RNDN);
    mpfr_mul(step, step, slope, MPFR_RNDN);
    mpfr_const_pi(slope, MPFR_RNDN);
    mpfr_sqrt(slope, slope, MPFR_RNDN);
    mpfr_mul(step, step, slope, MPFR_RNDN);
    mpfr_div_2ui(step, step, 1, MPFR_RNDN);
    mpfr_sub(out, out, step, MPFR_RNDN);
  }
}

// Returns the distance of `got` from the true value, in units of the last place there.
double Ulps(double got, mpfr_ptr want) {
  const double rounded = mpfr_get_d(want, MPFR_RNDN);
  if (!std::isfinite(rounded) || !std::isfinite(got)) return got == rounded ? 0 : kInfinity;
  int exponent;
  std::frexp(rounded, &exponent);
  Number difference;
  mpfr_sub_d(difference, want, got, MPFR_RNDN);
  return std::fabs(mpfr_get_d(difference, MPFR_RNDN)) /
         std::ldexp(1.0, std::max(exponent - 53, -1074));
}

class Elementary : public testing::Test {
 protected:
  double Between(double low, double high) {
    return low + (high - low) * (static_cast<double>(random_() >> 11) * 0x1p-53);
  }
  // Draws a number of either sign whose logarithm is uniform.
  double Size(double low, double high) {
    const double size = std::exp(Between(std::log(low), std::log(high)));
    return (random_() & 1) != 0 ? -size : size;
  }

  void Expect(ElementOp op, double most, const Reference& reference,
              const std::function<double()>& x, const std::function<double()>& y = {}) {
    constexpr size_t kCount = 8'000;
    std::vector<double> a(kCount), b(kCount), out(kCount);
    for (size_t i = 0; i < kCount; ++i) {
      a[i] = x();
      if (y) b[i] = y();
    }
    Apply(op, a.data(), b.data(), b.data(), out.data(), kCount);
    double worst = 0, at = 0;
    Number number, second, want;
    for (size_t i = 0; i < kCount; ++i) {
      // A vector gives the same bits as a single number.
      ASSERT_EQ(std::bit_cast<uint64_t>(out[i]), std::bit_cast<uint64_t>(Apply(op, a[i], b[i])));
      mpfr_set_d(number, a[i], MPFR_RNDN);
      mpfr_set_d(second, b[i], MPFR_RNDN);
      reference(want, number, second);
      const double ulps = Ulps(out[i], want);
      if (ulps > worst) {
        worst = ulps;
        at = a[i];
      }
    }
    EXPECT_LE(worst, most) << "at " << at;
  }

  std::mt19937_64 random_{1};
};

TEST_F(Elementary, ExpIsAccurate) {
  Expect(ElementOp::kExp, 0.54, One<mpfr_exp>, [&] { return Between(-708, 709.7); });
  Expect(ElementOp::kExp, 0.54, One<mpfr_exp>, [&] { return Size(1e-18, 1); });
  // Results below 2^-1022 are rounded twice.
  Expect(ElementOp::kExp, 1.01, One<mpfr_exp>, [&] { return Between(-746, -708); });
}

TEST_F(Elementary, Expm1IsAccurate) {
  Expect(ElementOp::kExpm1, 0.61, One<mpfr_expm1>, [&] { return Size(1e-300, 700); });
  Expect(ElementOp::kExpm1, 0.61, One<mpfr_expm1>, [&] { return Between(-2, 2); });
}

TEST_F(Elementary, LogIsAccurate) {
  Expect(ElementOp::kLog, 0.51, One<mpfr_log>, [&] { return std::fabs(Size(5e-324, 1e308)); });
  Expect(ElementOp::kLog, 0.51, One<mpfr_log>, [&] { return Between(0.5, 2); });
  Expect(ElementOp::kLog, 0.51, One<mpfr_log>, [&] { return 1 + Size(1e-16, 0.1); });
}

TEST_F(Elementary, Log1pIsAccurate) {
  Expect(ElementOp::kLog1p, 0.76, One<mpfr_log1p>, [&] { return Size(1e-300, 0.999); });
  Expect(ElementOp::kLog1p, 0.76, One<mpfr_log1p>, [&] { return Size(1e-17, 1e-14); });
  Expect(ElementOp::kLog1p, 0.51, One<mpfr_log1p>, [&] { return std::fabs(Size(1, 1e300)); });
}

TEST_F(Elementary, PowIsAccurate) {
  double x = 1;
  const auto base = [&] { return x = std::fabs(Size(1e-6, 1e6)); };
  Expect(ElementOp::kPow, 0.54, Pow, base, [&] { return Between(-700, 700) / std::log(x); });
  Expect(
      ElementOp::kPow, 0.54, Pow, [&] { return Between(0.9, 1.1); },
      [&] { return Between(-6000, 6000); });
}

TEST_F(Elementary, PowIsExactIfTheResultIs) {
  for (int64_t x = -100; x <= 100; ++x) {
    double power = 1;
    for (int y = 0; std::fabs(power) <= 0x1p53; ++y) {
      ASSERT_EQ(Apply(ElementOp::kPow, static_cast<double>(x), y), power) << x << "^" << y;
      power *= static_cast<double>(x);
      if (y > 60) break;
    }
  }
  for (int e = -1074; e < 1024; ++e) {
    ASSERT_EQ(Apply(ElementOp::kPow, 2, e), std::ldexp(1.0, e));
    ASSERT_EQ(Apply(ElementOp::kPow, 0.5, -e), std::ldexp(1.0, e));
  }
}

TEST_F(Elementary, SinAndCosAreAccurate) {
  for (const auto& [op, reference] : {std::pair(ElementOp::kSin, Reference(One<mpfr_sin>)),
                                      std::pair(ElementOp::kCos, Reference(One<mpfr_cos>))}) {
    Expect(op, 0.80, reference, [&] { return Between(-10, 10); });
    Expect(op, 0.80, reference, [&] { return Size(1e-300, kLargestAngle); });
    Expect(op, 0.80, reference, [&] { return Between(-kLargestAngle, kLargestAngle); });
    // At the doubles nearest to multiples of a quarter turn, all digits cancel.
    Expect(op, 0.80, reference, [&] { return std::floor(Between(0, 4e7)) * 0x1.921fb54442d18p+0; });
  }
}

TEST_F(Elementary, TanhIsAccurate) {
  Expect(ElementOp::kTanh, 0.57, One<mpfr_tanh>, [&] { return Between(-3, 3); });
  Expect(ElementOp::kTanh, 0.57, One<mpfr_tanh>, [&] { return Size(1e-300, 40); });
}

TEST_F(Elementary, ErfInvIsAccurate) {
  Expect(ElementOp::kErfInv, 1.1, ErfInv, [&] { return Between(-1, 1); });
  Expect(ElementOp::kErfInv, 1.1, ErfInv, [&] { return Size(1e-300, 0.6); });
  Expect(ElementOp::kErfInv, 1.1, ErfInv, [&] { return 1 - std::fabs(Size(2.3e-16, 0.6)); });
}

// Every compiler and optimization level must give these bits.
TEST_F(Elementary, ElementaryFunctionsHaveKnownAnswers) {
  const struct {
    ElementOp op;
    double a, b, result;
  } kAnswers[] = {
      {ElementOp::kExp, 0x1.3333333333333p-2, 0, 0x1.599058c8c1a96p+0},
      {ElementOp::kExp, 0x1.ccccccccccccdp-1, 0, 0x1.3ad44655c78bcp+1},
      {ElementOp::kExp, 0x1.4f8b588e368f1p-17, 0, 0x1.0000a7c5e340ep+0},
      {ElementOp::kExp, 0x1.dp+2, 0, 0x1.6006b5d53e8d9p+10},
      {ElementOp::kExpm1, 0x1.3333333333333p-2, 0, 0x1.6641632306a56p-2},
      {ElementOp::kExpm1, 0x1.ccccccccccccdp-1, 0, 0x1.75a88cab8f177p+0},
      {ElementOp::kExpm1, 0x1.4f8b588e368f1p-17, 0, 0x1.4f8bc681cdfb6p-17},
      {ElementOp::kExpm1, 0x1.dp+2, 0, 0x1.5fc6b5d53e8d9p+10},
      {ElementOp::kLog, 0x1.3333333333333p-2, 0, -0x1.34378fcbda721p+0},
      {ElementOp::kLog, 0x1.ccccccccccccdp-1, 0, -0x1.af8e8210a415cp-4},
      {ElementOp::kLog, 0x1.4f8b588e368f1p-17, 0, -0x1.7069e2aa2aa5bp+3},
      {ElementOp::kLog, 0x1.dp+2, 0, 0x1.fb22e98a1c24ep+0},
      {ElementOp::kLog1p, 0x1.3333333333333p-2, 0, 0x1.0ca937be1b9dcp-2},
      {ElementOp::kLog1p, 0x1.ccccccccccccdp-1, 0, 0x1.48a11293d785cp-1},
      {ElementOp::kLog1p, 0x1.4f8b588e368f1p-17, 0, 0x1.4f8aea9ae7317p-17},
      {ElementOp::kLog1p, 0x1.dp+2, 0, 0x1.0e1b775589bd9p+1},
      {ElementOp::kSin, 0x1.3333333333333p-2, 0, 0x1.2e9cd95baba33p-2},
      {ElementOp::kSin, 0x1.ccccccccccccdp-1, 0, 0x1.91103985da841p-1},
      {ElementOp::kSin, 0x1.4f8b588e368f1p-17, 0, 0x1.4f8b588e1e8a2p-17},
      {ElementOp::kSin, 0x1.dp+2, 0, 0x1.a56adb62a27b9p-1},
      {ElementOp::kCos, 0x1.3333333333333p-2, 0, 0x1.e921dd42f09bap-1},
      {ElementOp::kCos, 0x1.ccccccccccccdp-1, 0, 0x1.3e43a9692e21cp-1},
      {ElementOp::kCos, 0x1.4f8b588e368f1p-17, 0, 0x1.ffffffff920c8p-1},
      {ElementOp::kCos, 0x1.dp+2, 0, 0x1.22c6f50dc3fbep-1},
      {ElementOp::kTanh, 0x1.3333333333333p-2, 0, 0x1.2a4dda7d914fap-2},
      {ElementOp::kTanh, 0x1.ccccccccccccdp-1, 0, 0x1.6ebe982d6605dp-1},
      {ElementOp::kTanh, 0x1.4f8b588e368f1p-17, 0, 0x1.4f8b588e06854p-17},
      {ElementOp::kTanh, 0x1.dp+2, 0, 0x1.ffffde2760a41p-1},
      {ElementOp::kErfInv, 0x1.3333333333333p-2, 0, 0x1.1700774485ed2p-2},
      {ElementOp::kErfInv, 0x1.ccccccccccccdp-1, 0, 0x1.29c0146770651p+0},
      {ElementOp::kErfInv, 0x1.4f8b588e368f1p-17, 0, 0x1.295e50302c8ddp-17},
      {ElementOp::kErfInv, 0x1.ffffde7210be9p-1, 0, 0x1.babd964830d58p+1},
      {ElementOp::kPow, 0x1.d99999999999ap+1, -0x1.4p+1, 0x1.3716f6a49402ap-5},
      {ElementOp::kPow, 0x1.e848p+18, -0x1.f8p-1, 0x1.4985fec80a8cbp-19},
      {ElementOp::kPow, 0x1.000001ad7f29bp+0, 0x1.312dp+23, 0x1.5bf0a790ce6f2p+1},
      {ElementOp::kPow, -0x1.8p+1, 0x1.4p+2, -0x1.e6p+7},
  };
  for (const auto& answer : kAnswers) {
    EXPECT_EQ(Apply(answer.op, answer.a, answer.b), answer.result)
        << static_cast<int>(answer.op) << " of " << answer.a;
  }
}

TEST_F(Elementary, ElementaryFunctionsAreRightAtTheirLimits) {
  const auto is_nan = [](ElementOp op, double a, double b = 0) {
    return std::isnan(Apply(op, a, b));
  };
  EXPECT_EQ(Apply(ElementOp::kExp, 710), kInfinity);
  EXPECT_EQ(Apply(ElementOp::kExp, -kInfinity), 0);
  EXPECT_EQ(Apply(ElementOp::kExpm1, -kInfinity), -1);
  EXPECT_EQ(Apply(ElementOp::kLog, 0), -kInfinity);
  EXPECT_EQ(Apply(ElementOp::kLog, kInfinity), kInfinity);
  EXPECT_TRUE(is_nan(ElementOp::kLog, -1));
  EXPECT_EQ(Apply(ElementOp::kLog1p, -1), -kInfinity);
  EXPECT_TRUE(is_nan(ElementOp::kLog1p, -2));
  EXPECT_EQ(Apply(ElementOp::kPow, 0, 0), 1);
  EXPECT_EQ(Apply(ElementOp::kPow, 0, -1), kInfinity);
  EXPECT_EQ(Apply(ElementOp::kPow, -2, 3), -8);
  EXPECT_EQ(Apply(ElementOp::kPow, -2, 1e300), kInfinity);
  EXPECT_EQ(Apply(ElementOp::kPow, 1, 1e300), 1);
  EXPECT_EQ(Apply(ElementOp::kPow, 0.5, 1e300), 0);
  EXPECT_TRUE(is_nan(ElementOp::kPow, -2, 0.5));
  EXPECT_EQ(Apply(ElementOp::kSin, 0), 0);
  EXPECT_EQ(Apply(ElementOp::kCos, 0), 1);
  EXPECT_TRUE(is_nan(ElementOp::kSin, kLargestAngle * 1.5));
  EXPECT_EQ(Apply(ElementOp::kTanh, -kInfinity), -1);
  EXPECT_EQ(Apply(ElementOp::kErfInv, 1), kInfinity);
  EXPECT_EQ(Apply(ElementOp::kErfInv, -1), -kInfinity);
  EXPECT_TRUE(is_nan(ElementOp::kErfInv, 1.5));
  for (ElementOp op : {ElementOp::kExp, ElementOp::kExpm1, ElementOp::kLog, ElementOp::kLog1p,
                       ElementOp::kSin, ElementOp::kCos, ElementOp::kTanh, ElementOp::kErfInv,
                       ElementOp::kAbs, ElementOp::kFloor, ElementOp::kSqrt, ElementOp::kNegate}) {
    EXPECT_TRUE(is_nan(op, NAN)) << static_cast<int>(op);
  }
  EXPECT_EQ(Apply(ElementOp::kMod, -1, 7), 6);
  EXPECT_EQ(Apply(ElementOp::kCeilDiv, 7, 2), 4);
  EXPECT_EQ(Apply(ElementOp::kRoundUp, 7, 4), 8);
  EXPECT_EQ(Apply(ElementOp::kClip, 5, 0, 3), 3);
}

}  // namespace
}  // namespace shardinit
