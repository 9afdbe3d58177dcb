#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <fstream>
#include <limits>
#include <sstream>
#include <vector>

#include "base/error.h"
#include "base/exact_math.h"
#include "kernels/kernels.h"
#include "rng/reference.h"
#include "rng/sampler.h"
#include "support/cases.h"

namespace shardinit {
namespace {

TEST(Sampler, SamplersHaveKnownAnswers) {
  std::ifstream file(SHARDINIT_SOURCE_DIR "/tests/vectors/samplers.txt");
  int cases = 0;
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with('#')) continue;
    std::istringstream in(line);
    std::string name;
    std::vector<double> p;
    in >> name;
    for (std::string word; in >> word && word != "=";) p.push_back(std::stod(word));
    const Sampler sampler = name == "uniform"  ? Sampler(MakeUniform(p[0], p[1]))
                            : name == "normal" ? Sampler(MakeNormal(p[0], p[1]))
                                               : MakeTruncatedNormal(p[0], p[1], p[2], p[3]);
    in >> std::hex;
    for (uint64_t i = 0; i < 8; ++i) {
      uint32_t expected = 0;
      ASSERT_TRUE(in >> expected) << line;
      const float value = Sample(sampler, Stream{KeyOf(0, "w"), 0}, i);
      EXPECT_EQ(std::bit_cast<uint32_t>(value), expected) << name << " element " << i;
    }
    ++cases;
  }
  EXPECT_EQ(cases, 8);
}

TEST(Sampler, SamplerParametersHaveLimits) {
  EXPECT_TRUE(IsValidScale(0));
  EXPECT_TRUE(IsValidScale(-0x1p-80));
  EXPECT_FALSE(IsValidScale(0x1p-81));
  EXPECT_FALSE(IsValidScale(0x1.1p100));
  EXPECT_FALSE(IsValidScale(std::nan("")));
  EXPECT_TRUE(AreValidCutoffs(-100, 100));
  EXPECT_TRUE(AreValidCutoffs(10, 11));
  EXPECT_FALSE(AreValidCutoffs(10.5, 11));
  EXPECT_FALSE(AreValidCutoffs(2, 2));
  EXPECT_FALSE(AreValidCutoffs(2, -2));
  EXPECT_FALSE(AreValidCutoffs(1, std::nextafter(1.0, 2.0)));
  EXPECT_FALSE(AreValidCutoffs(-std::numeric_limits<double>::infinity(), 0));
  EXPECT_THROW(MakeUniform(1, 1), Bug);
  EXPECT_THROW(MakeNormal(0, -1), Bug);
}

TEST(Sampler, ParametersRoundToF32) {
  const UniformSampler uniform = MakeUniform(-0.1, 0.1);
  EXPECT_EQ(uniform.low, -0.1f);
  EXPECT_EQ(uniform.span, 0.2f);
  EXPECT_EQ(uniform.last, std::nextafter(0.1f, 0.0f));
  EXPECT_EQ(MakeUniform(-1, 0).last, -std::numeric_limits<float>::min());
  EXPECT_FALSE(std::signbit(MakeNormal(-0.0, 1).mean));
  EXPECT_EQ(MakeNormal(0, 1).scale, 0x1.2d6abep+0f);
}

constexpr size_t kCount = Cases(1 << 22), kFewer = Cases(1 << 20);

std::vector<float> DrawMany(const Sampler& sampler, size_t count = kCount) {
  std::vector<float> values(count);
  kernels::Fill(sampler, Stream{KeyOf(7, "statistics"), 0}, 0, count, DType::f32, values.data());
  return values;
}

// Returns the largest distance between the values' distribution and `cdf`, times sqrt(n). It
// exceeds 1.63 in one of a hundred streams, and the stream never changes.
template <typename Cdf>
double KolmogorovSmirnov(std::vector<float> values, Cdf cdf) {
  std::sort(values.begin(), values.end());
  const double n = static_cast<double>(values.size());
  double distance = 0;
  for (size_t i = 0; i < values.size(); ++i) {
    const double p = cdf(values[i]), index = static_cast<double>(i);
    distance = std::max({distance, p - index / n, (index + 1) / n - p});
  }
  return distance * std::sqrt(n);
}

double Phi(double z) { return std::erfc(-z / std::sqrt(2.0)) / 2; }

// Returns the error of a moment in standard errors; `power` applies to the standardized value.
double MomentError(const std::vector<float>& values, int power, double expected, double variance) {
  double sum = 0;
  for (const float z : values) sum += std::pow(z, power);
  const double n = static_cast<double>(values.size());
  return (sum / n - expected) / std::sqrt(variance / n);
}

TEST(Normal, NormalDistributionFits) {
  const auto z = DrawMany(MakeNormal(0, 1));
  EXPECT_LT(KolmogorovSmirnov(z, Phi), 1.63);
  EXPECT_LT(std::fabs(MomentError(z, 1, 0, 1)), 3);
  EXPECT_LT(std::fabs(MomentError(z, 2, 1, 2)), 3);
  EXPECT_LT(std::fabs(MomentError(z, 3, 0, 15)), 3);
  EXPECT_LT(std::fabs(MomentError(z, 4, 3, 96)), 3);
}

// Values and their squares are independent in a pair, between the pairs of a block, and between
// rows of 1024. A wrong sign in a quadrant leaves each value normal, but fails here.
TEST(Normal, NormalsAreIndependent) {
  const auto z = DrawMany(MakeNormal(0, 1));
  for (const size_t lag : {1, 2, 3, 4, 1024}) {
    double product = 0, squares = 0, cubes = 0;
    for (size_t i = 0; i + lag < z.size(); ++i) {
      const double x = z[i], y = z[i + lag];
      product += x * y;
      squares += (x * x - 1) * (y * y - 1);
      cubes += x * x * y;
    }
    const double root = std::sqrt(static_cast<double>(z.size() - lag));
    EXPECT_LT(std::fabs(product / root), 4) << lag;
    EXPECT_LT(std::fabs(squares / root / 2), 4) << lag;
    EXPECT_LT(std::fabs(cubes / root / std::sqrt(3.0)), 4) << lag;
  }
}

// The chi-squared of 64 sectors is expected to be 63, with standard deviation 11.
TEST(Normal, AnglesOfPairsAreUniform) {
  const auto z = DrawMany(MakeNormal(0, 1));
  std::vector<double> sectors(64);
  for (size_t i = 0; i < z.size(); i += 2) {
    const double turn = std::atan2(z[i + 1], z[i]) / (2 * M_PI) + 0.5;
    ++sectors[std::min(63, static_cast<int>(turn * 64))];
  }
  const double expected = static_cast<double>(z.size()) / 2 / 64;
  double chi_squared = 0;
  for (const double n : sectors) chi_squared += (n - expected) * (n - expected) / expected;
  EXPECT_LT(chi_squared, 63 + 3 * 11.2);
  EXPECT_GT(chi_squared, 63 - 3 * 11.2);
}

// The contract's operations have a small total error, compared with libm in double.
TEST(Normal, NormalIsAccurate) {
  const Stream stream{KeyOf(7, "accuracy"), 0};
  const Sampler sampler = MakeNormal(0, 1);
  double worst = 0;
  for (uint64_t i = 0; i < 400'000; i += 2) {
    const double k = static_cast<int32_t>(Word(stream, i)), u = std::fabs(k + 0.25) * 0x1p-31;
    const double angle = M_PI / 4 * static_cast<int32_t>(Word(stream, i + 1)) * 0x1p-31;
    // Close to 1, u itself is rounded, to multiples of 2^-24.
    if (u > 0.5) continue;
    const double radius = std::sqrt(-2 * std::log(u));
    const uint32_t quarter = Word(stream, i + 1) & 3;
    double pair[2] = {radius * std::cos(angle) * (quarter & 2 ? -1 : 1), radius * std::sin(angle)};
    if (quarter & 1) std::swap(pair[0], pair[1]);
    for (int j = 0; j < 2; ++j) {
      worst = std::max(worst, std::fabs(Sample(sampler, stream, i + j) / pair[j] - 1));
    }
  }
  EXPECT_LT(worst, 0x1p-21) << std::log2(worst);
}

TEST(TruncatedNormal, TruncatedNormalDistributionFits) {
  const double cutoffs[][2] = {{-2, 2}, {-3, 3},  {-100, 100}, {-1, 3},   {0, 5},
                               {5, 6},  {1.9, 2}, {-10, -1.9}, {9.5, 20}, {-0.01, 0.01}};
  for (const auto& [low, high] : cutoffs) {
    const auto z = DrawMany(MakeTruncatedNormal(0, 1, low, high), kFewer);
    const auto [least, most] = std::minmax_element(z.begin(), z.end());
    EXPECT_GE(*least, static_cast<float>(low));
    EXPECT_LE(*most, static_cast<float>(high));
    // Upper tails are mirrored, so that they keep their digits.
    const double sign = low >= 0 ? -1 : 1, begin = low >= 0 ? -high : low;
    const double end = low >= 0 ? -low : high, span = Phi(end) - Phi(begin);
    auto mirrored = z;
    for (float& value : mirrored) value *= static_cast<float>(sign);
    const auto cdf = [&](double x) { return (Phi(x) - Phi(begin)) / span; };
    EXPECT_LT(KolmogorovSmirnov(std::move(mirrored), cdf), 1.63) << low << " " << high;
  }
}

TEST(TruncatedNormal, TruncatedNormalIsAccurate) {
  for (const double cutoff : {2.0, 3.0, 100.0}) {
    const Sampler sampler = MakeTruncatedNormal(0, 1, -cutoff, cutoff);
    const Stream stream{KeyOf(7, "accuracy"), 0};
    const double low = Phi(-cutoff), span = 1 - 2 * low;
    double worst = 0;
    for (uint64_t i = 0; i < 200'000; ++i) {
      const uint32_t word = Word(stream, i);
      const double q = low + span * ((word & 0x7FFFFFFF) + 0.5) * 0x1p-32;
      const double z = Sample(sampler, stream, i);
      // Converts the error of the probability to a distance of z.
      const double density = std::exp(-z * z / 2) / std::sqrt(2 * M_PI);
      const double error = (Phi(-std::fabs(z)) - q) / density;
      worst = std::max(worst, std::fabs(error) / std::max(1.0, std::fabs(z)));
      EXPECT_EQ(z < 0, word >> 31) << z;
    }
    EXPECT_LT(worst, 0x1p-21) << cutoff << " " << std::log2(worst);
  }
}

TEST(Uniform, UniformDistributionFits) {
  const auto u = DrawMany(MakeUniform(0, 1));
  EXPECT_LT(KolmogorovSmirnov(u, [](double x) { return x; }), 1.63);
  for (const auto& [low, high] : {std::pair{-0.1, 0.1}, {1.0, 1.0001}, {-1.0, 0.0}, {0.0, 3e-20}}) {
    const auto values = DrawMany(MakeUniform(low, high), kFewer);
    const auto [least, most] = std::minmax_element(values.begin(), values.end());
    EXPECT_GE(*least, static_cast<float>(low));
    EXPECT_LT(*most, static_cast<float>(high));
  }
}

}  // namespace
}  // namespace shardinit
