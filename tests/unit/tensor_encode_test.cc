#include "tensor/encode.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>

namespace shardinit {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

TEST(DType, TableAgreesWithItself) {
  EXPECT_EQ(DTypeNames(), (std::vector<std::string>{"f32", "f64", "bf16", "f16"}));
  for (const DTypeInfo& info : DTypes()) {
    EXPECT_EQ(&InfoOf(info.dtype), &info);
    EXPECT_EQ(FindDType(info.name), info.dtype);
    EXPECT_EQ(1 + info.exponent_bits + info.mantissa_bits, 8 * info.bytes) << info.name;
  }
  EXPECT_EQ(FindDType("float32"), std::nullopt);
}

// Each pair of neighbours among the finite numbers: both come back, what lies between
// goes to the nearer one, the middle to the even one.
template <typename Encode, typename Decode>
void CheckRounding(Encode encode, Decode decode, uint16_t infinity) {
  for (uint16_t low = 0; low < infinity; ++low) {
    for (const uint16_t sign : {0, 0x8000}) {
      const uint16_t bits = low | sign, next = bits + 1;
      const double a = decode(bits), b = decode(next);
      EXPECT_EQ(encode(decode(bits)), bits);
      // The number after the last finite one would be, if there were one, 2^k.
      const double end = std::isinf(b) ? 2 * a - decode(bits - 1) : b;
      const float middle = static_cast<float>((a + end) / 2);
      EXPECT_EQ(encode(middle), (low % 2 == 0) ? bits : next) << bits;
      EXPECT_EQ(encode(std::nextafter(middle, 0.0f)), bits) << bits;
      EXPECT_EQ(encode(std::nextafter(middle, sign ? -kInfinity : kInfinity)), next) << bits;
    }
  }
}

TEST(Encode, Bf16RoundsToNearestEven) { CheckRounding(EncodeBf16, DecodeBf16, 0x7F80); }
TEST(Encode, F16RoundsToNearestEven) { CheckRounding(EncodeF16, DecodeF16, 0x7C00); }

TEST(Encode, SpecialValues) {
  EXPECT_EQ(EncodeBf16(kInfinity), 0x7F80);
  EXPECT_EQ(EncodeBf16(std::numeric_limits<float>::max()), 0x7F80);
  EXPECT_TRUE(std::isnan(DecodeBf16(EncodeBf16(std::bit_cast<float>(0x7F800001u)))));
  EXPECT_EQ(EncodeF16(-kInfinity), 0xFC00);
  EXPECT_EQ(EncodeF16(65519.996f), 0x7BFF);
  EXPECT_EQ(EncodeF16(65520.0f), 0x7C00);
  EXPECT_EQ(EncodeF16(1e30f), 0x7C00);
  EXPECT_EQ(EncodeF16(0x1p-24f), 0x0001);
  EXPECT_EQ(EncodeF16(0x1p-25f), 0x0000);
  EXPECT_EQ(EncodeF16(-0x1.000002p-25f), 0x8001);
  EXPECT_TRUE(std::isnan(DecodeF16(EncodeF16(std::nanf("")))));
}

TEST(Encode, BytesAreLittleEndian) {
  uint8_t bytes[8];
  Encode(1.5f, DType::bf16, bytes);
  EXPECT_EQ(bytes[0], 0xC0);
  EXPECT_EQ(bytes[1], 0x3F);
  Encode(1.5f, DType::f64, bytes);
  EXPECT_EQ(bytes[6], 0xF8);
  EXPECT_EQ(bytes[7], 0x3F);
}

TEST(Decode, GivesBackWhatWasEncoded) {
  for (const DTypeInfo& info : DTypes()) {
    for (const float value : {0.0f, -0.0f, 1.0f, -0.375f, 0x1p-14f, 65504.0f}) {
      uint8_t bytes[8];
      Encode(value, info.dtype, bytes);
      const double expected = info.dtype == DType::bf16 && value == 65504.0f ? 65536 : value;
      EXPECT_EQ(Decode(bytes, info.dtype), expected) << info.name;
    }
  }
}

}  // namespace
}  // namespace shardinit
