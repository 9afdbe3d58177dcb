#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <fstream>
#include <random>
#include <sstream>
#include <vector>

#include "base/number.h"
#include "kernels/kernels.h"
#include "rng/engines.h"
#include "rng/jax_threefry.h"
#include "rng/threefry2x32.h"
#include "support/forced_target.h"

namespace shardinit {
namespace {

namespace jax = jax_threefry;

uint64_t Words(uint64_t first, uint64_t second) { return second << 32 | first; }

std::vector<float> DrawOfJax(const Sampler& sampler, uint64_t key, size_t count) {
  std::vector<float> values(count);
  kJaxThreefry.sample(sampler, {.key = key, .engine = &kJaxThreefry}, 0, count, values.data());
  return values;
}

TEST(Threefry2x32, ThreefryHasKnownAnswers) {
  std::ifstream file(SHARDINIT_SOURCE_DIR "/tests/vectors/threefry2x32.txt");
  int answers = 0;
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with('#')) continue;
    std::istringstream in(line);
    std::string name;
    int rounds = 0;
    threefry2x32::Words counter, key, expected;
    in >> name >> rounds >> std::hex;
    for (auto* words : {&counter, &key, &expected}) in >> (*words)[0] >> (*words)[1];
    ASSERT_TRUE(in) << line;
    EXPECT_EQ(rounds, 20);
    EXPECT_EQ(threefry2x32::Block(counter, key), expected) << line;
    ++answers;
  }
  EXPECT_EQ(answers, 3);
}

// Keys equal those that JAX 0.10.2 prints.
TEST(JaxThreefry, KeysEqualJax) {
  EXPECT_EQ(jax::KeyOfSeed(0), 0u);
  EXPECT_EQ(jax::KeyOfSeed(42), Words(0, 42));
  EXPECT_EQ(jax::KeyOfSeed(1099511627781), Words(256, 5));
  EXPECT_EQ(jax::SplitKey(jax::KeyOfSeed(42), 0), Words(1832780943, 270669613));
  EXPECT_EQ(jax::SplitKey(jax::KeyOfSeed(42), 1), Words(64467757, 2916123636));
  EXPECT_EQ(jax::FoldIn(jax::KeyOfSeed(0), 1), Words(928981903, 3453687069));
  EXPECT_EQ(jax::FoldIn(jax::KeyOfSeed(0), 0xFFFFFFFF), Words(743310391, 3789761811));
  EXPECT_EQ(jax::SplitKey(jax::KeyOfSeed(0), 5),
            Words(1524306142, 1887795613));  // The last of 2 × 3.
}

TEST(JaxThreefry, WordsEqualJax) {
  const std::array<uint32_t, 4> expected = {0xf29a4fa7, 0xfa843692, 0x55110e28, 0x77faa835};
  const Stream stream = {.key = jax::KeyOfSeed(0), .engine = &kJaxThreefry};
  for (uint64_t i = 0; i < 4; ++i) EXPECT_EQ(jax::Word(stream, i), expected[i]);
  for (const std::string& target : kernels::Targets()) {
    const ForcedTarget forced(target);
    std::array<uint32_t, 4> words;
    kernels::Fill(BitsSampler{}, stream, 0, 4, DType::f32, words.data());
    EXPECT_EQ(words, expected) << target;
  }
  // Another draw uses another key; element 2^32 increments the counter's other word.
  EXPECT_EQ(jax::Word({.key = 7, .draw = 2}, 9), jax::Word({.key = jax::FoldIn(7, 2)}, 9));
  const auto words = threefry2x32::Block<uint32_t>({1, 5}, {7, 0});
  EXPECT_EQ(jax::Word({.key = 7}, (uint64_t{1} << 32) + 5), words[0] ^ words[1]);
}

// Values equal the ones in JAX's documentation.
TEST(JaxThreefry, ValuesEqualJax) {
  const Sampler uniform = MakeUniform(0, 1), normal = MakeNormal(0, 1);
  const uint64_t zero = jax::KeyOfSeed(0), key = jax::KeyOfSeed(42);
  EXPECT_NEAR(DrawOfJax(uniform, zero, 1)[0], 0.947667, 5e-7);
  EXPECT_NEAR(DrawOfJax(uniform, jax::SplitKey(zero, 1), 1)[0], 0.00729382, 5e-9);
  const std::vector<float> three = DrawOfJax(normal, key, 3);
  EXPECT_NEAR(three[0], -0.02830462, 5e-9);
  EXPECT_NEAR(three[1], 0.46713185, 4e-8);
  EXPECT_NEAR(three[2], 0.29570296, 4e-8);
  const double of_split[] = {0.07592554, 0.60576403, 0.4323065};
  for (uint64_t i = 0; i < 3; ++i) {
    EXPECT_NEAR(DrawOfJax(normal, jax::SplitKey(key, i), 1)[0], of_split[i], 7e-8);
  }
  uint64_t rest = key;
  for (const double expected : {0.60576403, -0.21089035, -0.39489815}) {
    const uint64_t used = jax::SplitKey(rest, 1);
    EXPECT_NEAR(DrawOfJax(normal, used, 1)[0], expected, 7e-8);
    rest = jax::SplitKey(rest, 0);
  }
}

TEST(JaxThreefry, MultiplyAddIsRoundedOnce) {
  std::mt19937 random(5);
  const auto number = [&](int exponents) {
    const float mantissa = static_cast<float>(random() % 0x1000000) * 0x1p-24f;
    return std::ldexp(random() % 2 ? mantissa : -mantissa,
                      static_cast<int>(random() % static_cast<unsigned>(exponents)));
  };
  for (int i = 0; i < 300'000; ++i) {
    const float a = number(1), b = number(60), c = number(60);
    ASSERT_EQ(FusedMultiplyAdd(a, b, c), std::fmaf(a, b, c)) << a << " " << b << " " << c;
  }
  // The sum is halfway between two f32 but for the product's last bit, which f64 would lose.
  EXPECT_EQ(FusedMultiplyAdd(0x1.000002p-1f, 0x1.000002p-24f, 0x1p30f), 0x1p30f);
  const float more = 0x1.000002p+0f, less = 0x1.fffffcp-1f;
  EXPECT_EQ(FusedMultiplyAdd(more * 0x1p-24f, less, more), more);
  EXPECT_EQ(FusedMultiplyAdd(more * -0x1p-24f, less, more), more);
}

// The largest distance of 2^20 draws from the normal distribution, times the square root of their
// number, exceeds 1.63 in one of a hundred streams. The stream never changes.
TEST(JaxThreefry, NormalNumbersAreNormal) {
  std::vector<float> z = DrawOfJax(MakeNormal(0, 1), KeyOf(7, "statistics"), 1 << 20);
  double sums[4] = {};
  for (const double x : z) {
    for (int power = 1; power <= 4; ++power) sums[power - 1] += std::pow(x, power);
  }
  std::sort(z.begin(), z.end());
  const double n = static_cast<double>(z.size());
  double distance = 0;
  for (size_t i = 0; i < z.size(); ++i) {
    const double p = std::erfc(-z[i] / std::sqrt(2.0)) / 2, index = static_cast<double>(i);
    distance = std::max({distance, p - index / n, (index + 1) / n - p});
  }
  EXPECT_LT(distance * std::sqrt(n), 1.63);
  const double expected[] = {0, 1, 0, 3}, variance[] = {1, 2, 15, 96};
  for (int i = 0; i < 4; ++i) {
    EXPECT_LT(std::fabs(sums[i] / n - expected[i]), 3 * std::sqrt(variance[i] / n)) << i + 1;
  }
}

// JAX's f32 have no numbers between these cut-offs.
TEST(JaxThreefry, RejectsTensorsThatJaxCannotDraw) {
  const auto refuses = [](const Sampler& sampler) {
    return !kJaxThreefry.refusal(sampler).empty();
  };
  EXPECT_FALSE(refuses(MakeTruncatedNormal(0, 1, -2, 2)));
  EXPECT_FALSE(refuses(MakeTruncatedNormal(0, 1, 5, 6)));
  EXPECT_TRUE(refuses(MakeTruncatedNormal(0, 1, 6, 7)));
  EXPECT_TRUE(refuses(MakeTruncatedNormal(0, 0x1p-61, -2, 2)));
  EXPECT_FALSE(refuses(MakeTruncatedNormal(0, 0x1p-60, -2, 2)));
  EXPECT_FALSE(refuses(MakeTruncatedNormal(0, 0, -2, 2)));
  EXPECT_FALSE(refuses(MakeNormal(0, 0x1p-80)));
  EXPECT_FALSE(refuses(MakeUniform(0, 1)));
}

}  // namespace
}  // namespace shardinit
