#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <ios>
#include <limits>
#include <random>
#include <vector>

#include "program/rounding.h"

namespace shardinit::rounding {
namespace {

constexpr uint32_t kInfinity = 0x7F800000, kSign = 0x80000000, kLowestNormal = 0x800000;

uint32_t Root(uint32_t a) { return BitsOf(std::sqrt(FromBits(a))); }
uint32_t Ratio(uint32_t a, uint32_t b) { return BitsOf(FromBits(a) / FromBits(b)); }

bool IsNormalNumber(uint32_t bits) { return std::isnormal(FromBits(bits)); }

// Counts the approximations within 2 units in the last place that do not give the correct result.
int WrongRoots(uint32_t a) {
  const uint32_t root = Root(a);
  int wrong = 0;
  for (int off = -2; off <= 2; ++off) wrong += Sqrt<uint32_t>(a, root + off) != root;
  return wrong;
}
int WrongQuotients(uint32_t a, uint32_t b) {
  const uint32_t ratio = Ratio(a, b);
  if (!IsNormalNumber(ratio)) return 0;
  int wrong = 0;
  for (int off = -2; off <= 2; ++off) wrong += Quotient<uint32_t>(a, b, ratio + off) != ratio;
  return wrong;
}

// Returns mantissas at the ends of the range, in the middle, and near the root of two.
std::vector<uint32_t> Mantissas() {
  std::vector<uint32_t> all;
  for (uint32_t i = 0; i < 6; ++i) {
    for (const uint32_t m :
         {i, 0x7FFFFF - i, 0x400000 + i, 0x400000 - i, 0x3504F3 + i, 0x3504F3 - i})
      all.push_back(m);
  }
  return all;
}

TEST(Rounding, RootsOfAllExponentsAreCorrectlyRounded) {
  for (uint32_t e = 1; e < 255; ++e) {
    for (const uint32_t m : Mantissas()) {
      ASSERT_EQ(WrongRoots((e << 23) | m), 0) << std::hex << ((e << 23) | m);
    }
  }
}

TEST(Rounding, RootsNearSquaresAreCorrectlyRounded) {
  for (uint32_t root = 0x800000; root < 0x1000000; root += 61) {
    const uint32_t square = BitsOf(static_cast<float>(root) * static_cast<float>(root));
    for (const uint32_t a : {square - 1, square, square + 1}) ASSERT_EQ(WrongRoots(a), 0) << root;
  }
  // These squares are exact.
  for (uint32_t root = 1; root < 0x1000; ++root) {
    const uint32_t square = BitsOf(static_cast<float>(root * root));
    for (const uint32_t a : {square - 1, square, square + 1}) ASSERT_EQ(WrongRoots(a), 0) << root;
  }
}

TEST(Rounding, RootsOfRandomNumbersAreCorrectlyRounded) {
  std::mt19937 random(1);
  for (int i = 0; i < 500'000; ++i) {
    const uint32_t a = random() & ~kSign;
    if (!IsNormalNumber(a)) continue;
    ASSERT_EQ(WrongRoots(a), 0) << std::hex << a;
  }
}

TEST(Rounding, QuotientsOfExtremeMantissasAreCorrectlyRounded) {
  const std::vector<uint32_t> mantissas = Mantissas();
  for (const uint32_t a : mantissas) {
    for (const uint32_t b : mantissas) {
      const uint32_t one = 127u << 23;
      ASSERT_EQ(WrongQuotients(one | a, one | b), 0) << std::hex << a << " / " << b;
    }
  }
}

TEST(Rounding, QuotientsOfAllExponentsAreCorrectlyRounded) {
  for (uint32_t a = 1; a < 255; ++a) {
    for (uint32_t b = 1; b < 255; ++b) {
      for (const uint32_t m : {0u, 0x2AAAABu, 0x7FFFFFu}) {
        const uint32_t n = (a << 23) | m, d = (b << 23) | (0x7FFFFF - m) | (a << 31);
        // Approximations of the largest and the smallest results may not be normal numbers.
        const uint32_t ratio = Ratio(n, d) & ~kSign;
        if (ratio < kLowestNormal + 2 || ratio >= kInfinity - 2) continue;
        ASSERT_EQ(WrongQuotients(n, d), 0) << std::hex << n << " / " << d;
      }
    }
  }
}

TEST(Rounding, QuotientsNearProductsAreCorrectlyRounded) {
  std::mt19937 random(2);
  for (int i = 0; i < 200'000; ++i) {
    // The product of numbers of 12 bits is exact.
    const auto x = static_cast<float>(random() >> 20 | 1),
               y = static_cast<float>(random() >> 20 | 1);
    const uint32_t product = BitsOf(x * y);
    for (const uint32_t a : {product - 1, product, product + 1}) {
      ASSERT_EQ(WrongQuotients(a, BitsOf(y)), 0) << x << " " << y;
    }
  }
}

TEST(Rounding, QuotientsOfRandomNumbersAreCorrectlyRounded) {
  std::mt19937 random(3);
  for (int i = 0; i < 500'000; ++i) {
    const auto a = static_cast<uint32_t>(random()), b = static_cast<uint32_t>(random());
    if (!IsNormalNumber(a) || !IsNormalNumber(b)) continue;
    const uint32_t ratio = Ratio(a, b) & ~kSign;
    if (ratio < kLowestNormal + 2 || ratio >= kInfinity - 2) continue;
    ASSERT_EQ(WrongQuotients(a, b), 0) << std::hex << a << " / " << b;
  }
}

TEST(Rounding, SpecialNumbersKeepTheApproximation) {
  const uint32_t one = BitsOf(1.0f), near = 0x3F000123;
  for (const uint32_t a : {0u, 1u, kLowestNormal - 1, kInfinity, kInfinity + 1, 0x7FFFFFFFu}) {
    for (const uint32_t sign : {0u, kSign}) {
      EXPECT_EQ(Sqrt<uint32_t>(a | sign, near), near) << std::hex << a;
      EXPECT_EQ(Quotient<uint32_t>(a | sign, one, near), near) << std::hex << a;
      EXPECT_EQ(Quotient<uint32_t>(one, a | sign, near), near) << std::hex << a;
    }
  }
  EXPECT_EQ(Sqrt<uint32_t>(one | kSign, near), near);
  const uint32_t largest = kInfinity - 1;
  EXPECT_EQ(Quotient<uint32_t>(largest, kLowestNormal, kInfinity), kInfinity);
  EXPECT_EQ(Quotient<uint32_t>(kLowestNormal, largest, 0), 0u);
}

}  // namespace
}  // namespace shardinit::rounding
