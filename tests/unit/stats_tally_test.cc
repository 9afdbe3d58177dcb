#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "stats/tally.h"
#include "tensor/encode.h"

namespace shardinit {
namespace {

std::vector<uint16_t> Bf16(const std::vector<float>& values) {
  std::vector<uint16_t> stored;
  for (const float value : values) stored.push_back(EncodeBf16(value));
  return stored;
}

TEST(Tally, CountsEachValueOfANarrowType) {
  const auto stored = Bf16({1, -0.0f, 1, -3, 0, INFINITY, NAN, 1.0078125f});
  Tally tally(DType::bf16);
  tally.Add(stored.data(), 3);
  Tally rest(DType::bf16);
  rest.Add(stored.data() + 3, 5);
  tally.Merge(rest);
  EXPECT_EQ(tally.count(), 8);
  const std::vector<Bin> bins = tally.Bins();
  ASSERT_EQ(bins.size(), 4u);
  const int64_t counts[] = {1, 2, 2, 1};
  const double values[] = {-3, 0, 1, 1.0078125};
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(bins[i].count, counts[i]);
    EXPECT_EQ(bins[i].lowest, values[i]);
    EXPECT_EQ(bins[i].highest, values[i]);
  }
  // Halfway to the neighbours: the steps are 2^-8 below 1 and 2^-7 above.
  EXPECT_EQ(bins[2].from, 1 - 0x1p-9);
  EXPECT_EQ(bins[2].to, 1 + 0x1p-8);
  EXPECT_EQ(bins[1].to, 0x1p-134);  // Half of the smallest subnormal.
  const Moments moments = MomentsOf(bins);
  EXPECT_EQ(moments.count, 6);
  EXPECT_EQ(moments.min, -3);
  EXPECT_EQ(moments.max, 1.0078125);
  EXPECT_NEAR(moments.mean, 0.0078125 / 6, 1e-15);
}

TEST(Tally, ComputesMomentsOfAWideType) {
  std::vector<float> values;
  for (int i = 0; i < 1003; ++i) values.push_back(1e6f + static_cast<float>(i));
  Tally tally(DType::f32);
  Moments moments = tally.Add(values.data(), 500);
  moments.Append(tally.Add(values.data() + 500, 503));
  EXPECT_EQ(moments.count, 1003);
  EXPECT_EQ(moments.min, 1e6);
  EXPECT_EQ(moments.max, 1e6 + 1002);
  EXPECT_NEAR(moments.mean, 1e6 + 501, 1e-9);
  EXPECT_NEAR(moments.std(), std::sqrt((1003.0 * 1003 - 1) / 12), 1e-9);
}

TEST(Tally, IgnoresNonfiniteValues) {
  std::vector<float> values(100, 2);
  values[3] = NAN;
  values[60] = -INFINITY;
  Tally tally(DType::f32);
  const Moments moments = tally.Add(values.data(), 100);
  EXPECT_EQ(moments.count, 98);
  EXPECT_EQ(moments.mean, 2);
  EXPECT_EQ(moments.std(), 0);
  EXPECT_EQ(tally.count(), 100);
  ASSERT_EQ(tally.Bins().size(), 1u);
  EXPECT_EQ(tally.Bins()[0].count, 98);
}

// NaN are counted separately, even with payloads only in bits that bins of wide types drop.
TEST(Tally, CountsNaNSeparately) {
  const uint32_t wide[] = {0x7F800000, 0x7F800001, 0xFFC00000, 0xFF800000, 0x3F800000};
  Tally f32(DType::f32);
  f32.Add(wide, 5);
  EXPECT_EQ(f32.nans(), 2);
  const uint64_t widest[] = {0x7FF0000000000001, 0xFFF0000000000000, 0x7FEFFFFFFFFFFFFF};
  Tally f64(DType::f64);
  f64.Add(widest, 3);
  EXPECT_EQ(f64.nans(), 1);
  const uint16_t narrow[] = {0x7F80, 0x7F81, 0xFFC0, 0x3F80};
  Tally bf16(DType::bf16), more(DType::bf16);
  bf16.Add(narrow, 4);
  more.Add(narrow, 2);
  bf16.Merge(more);
  f32.Merge(f32);
  EXPECT_EQ(bf16.nans(), 3);
  EXPECT_EQ(f32.nans(), 4);
  const uint8_t tiny[] = {0x7F, 0xFF, 0x7E};  // This type has no infinity.
  Tally f8(DType::f8e4m3fn);
  f8.Add(tiny, 3);
  EXPECT_EQ(f8.nans(), 2);
}

// The values have every sign and magnitude, including some that only f64 has.
TEST(Tally, BinsOfWideTypesContainTheirValues) {
  for (const double value :
       {0.0, 1.0, 1.9999, -1e-30, 3e38, -7.5, 0x1p-149, -0x1.fffffep127, 1e300}) {
    Tally tally(DType::f64);
    tally.Add(&value, 1);
    ASSERT_EQ(tally.Bins().size(), 1u) << value;
    const Bin bin = tally.Bins()[0];
    const double held = std::min(value, 0x1.fffffep127);
    EXPECT_LE(bin.lowest, held);
    EXPECT_GE(bin.highest, static_cast<float>(held));
    EXPECT_LT(bin.from, bin.lowest);
    EXPECT_GT(bin.to, bin.highest);
    if (std::fabs(held) > 1e-37) {
      EXPECT_LE(bin.highest - bin.lowest, std::fabs(held) / 512);
    }
  }
}

TEST(Tally, ComputesQuantiles) {
  std::vector<float> ascending;
  for (int i = 1; i <= 100; ++i) ascending.push_back(static_cast<float>(i));
  const auto stored = Bf16(ascending);
  Tally tally(DType::bf16);
  tally.Add(stored.data(), 100);
  const auto bins = tally.Bins();
  EXPECT_EQ(Quantile(bins, 0), 1);
  EXPECT_EQ(Quantile(bins, 0.01), 1);
  EXPECT_EQ(Quantile(bins, 0.011), 2);
  EXPECT_EQ(Quantile(bins, 0.5), 50);
  EXPECT_EQ(Quantile(bins, 1), 100);
}

}  // namespace
}  // namespace shardinit
