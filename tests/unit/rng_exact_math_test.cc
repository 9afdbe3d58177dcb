#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "base/exact_math.h"

namespace shardinit::exact {
namespace {

// Correctly rounded values from mpmath with 60 digits.
TEST(ExactMath, ExactMathHasKnownValues) {
  EXPECT_EQ(Exp(1), 0x1.5bf0a8b145769p+1);
  EXPECT_EQ(Exp(-0.1), 0x1.cf46d99d52b3ap-1);
  EXPECT_EQ(Exp(700.5), 0x1.8625c7d4f56c2p+1010);
  EXPECT_EQ(Exp(-744.0), 0x0.0000000000002p-1022);
  EXPECT_EQ(Log(0.1), -0x1.26bb1bbb55515p+1);
  EXPECT_EQ(Log(10), 0x1.26bb1bbb55516p+1);
  EXPECT_EQ(Log(1e300), 0x1.5963447f87fb5p+9);
  EXPECT_EQ(Pow(10000, -0.015625), 0x1.bb5fad00ab22cp-1);
  EXPECT_EQ(Pow(500000, 0.9921875), 0x1.b8b42f83896bfp+18);
  EXPECT_EQ(Pow(2, -1074), 0x0.0000000000001p-1022);
  EXPECT_EQ(Sin(1e22), -0x1.b453ab76bf397p-1);
  EXPECT_EQ(Cos(0.1), 0x1.fd712f9a817c1p-1);
  EXPECT_EQ(Tanh(0.5), 0x1.d9353d7568af3p-2);
  EXPECT_EQ(NormalCdf(-2), 0x1.74bcf82c9d860p-6);
  EXPECT_EQ(NormalCdf(2), 0x1.f45a183e9b13dp-1);
  EXPECT_EQ(NormalCdf(-3), 0x1.61de1f985b5d7p-10);
  EXPECT_EQ(NormalCdf(5), 0x1.fffff661ae86fp-1);
  EXPECT_EQ(NormalCdf(-6), 0x1.0f30ef0092d48p-30);
  EXPECT_EQ(NormalCdf(-10), 0x1.26c75e84fb10dp-77);
  EXPECT_EQ(NormalCdf(-37.6), 0x0.0c5daf5e261b0p-1022);
  EXPECT_EQ(NormalCdf(-38.4), 0x0.000000000000dp-1022);
}

TEST(ExactMath, ExactMathIsRightAtTheEdgesOfItsRange) {
  EXPECT_EQ(Exp(710), std::numeric_limits<double>::infinity());
  EXPECT_EQ(Exp(-745.1), std::numeric_limits<double>::denorm_min());
  EXPECT_EQ(Exp(-800), 0);
  EXPECT_EQ(Log(0), -std::numeric_limits<double>::infinity());
  EXPECT_TRUE(std::isnan(Log(-1)));
  EXPECT_EQ(NormalCdf(0), 0.5);
  EXPECT_EQ(NormalCdf(40), 1);
  EXPECT_EQ(NormalCdf(-40), 0);
  EXPECT_EQ(NormalCdf(-1e300), 0);
}

}  // namespace
}  // namespace shardinit::exact
