#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <fstream>
#include <limits>
#include <sstream>

#include "base/error.h"
#include "base/sha256.h"
#include "tensor/encode.h"

namespace shardinit {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

TEST(DType, DTypeTableIsConsistent) {
  EXPECT_EQ(DTypeNames(),
            (std::vector<std::string>{"f32", "f64", "bf16", "f16", "f8e4m3fn", "f8e5m2", "i8",
                                      "i16", "i32", "i64", "u8", "u16", "u32", "u64", "bool"}));
  for (const DTypeInfo& info : DTypes()) {
    EXPECT_EQ(&InfoOf(info.dtype), &info);
    EXPECT_EQ(FindDType(info.name), info.dtype);
    if (info.kind == DTypeKind::kCarried) continue;
    const int bits = 1 + info.exponent_bits + info.mantissa_bits;
    EXPECT_EQ(bits, info.is_float() ? 8 * info.bytes : 1) << info.name;
  }
  EXPECT_EQ(FindDType("float32"), std::nullopt);
}

TEST(DType, AcceptsOtherDTypeNames) {
  EXPECT_EQ(FindDTypeByOtherName("float8_e4m3fn"), DType::f8e4m3fn);
  EXPECT_EQ(FindDTypeByOtherName("torch.float8_e5m2"), DType::f8e5m2);
  EXPECT_EQ(FindDTypeByOtherName("jax.numpy.int64"), DType::i64);
  EXPECT_EQ(FindDTypeByOtherName("torch.bool"), DType::boolean);
  EXPECT_EQ(FindDTypeByOtherName("np.bool_"), DType::boolean);
  // This is another type, with infinities at other codes.
  EXPECT_EQ(FindDTypeByOtherName("torch.float8_e4m3fnuz"), std::nullopt);
}

TEST(DType, DTypesHaveTheirLimits) {
  const double safe = 0x1p53 - 1;
  const struct {
    DType dtype;
    double lowest, largest;
  } cases[] = {
      {DType::f8e4m3fn, -448, 448},
      {DType::f8e5m2, -57344, 57344},
      {DType::f16, -65504, 65504},
      {DType::bf16, -0x1.fep127, 0x1.fep127},
      {DType::i8, -128, 127},
      {DType::i16, -32768, 32767},
      {DType::i32, -0x1p31, 0x1p31 - 1},
      {DType::i64, -safe, safe},
      {DType::u8, 0, 255},
      {DType::u16, 0, 65535},
      {DType::u32, 0, 0x1p32 - 1},
      {DType::u64, 0, safe},
      {DType::boolean, 0, 1},
  };
  for (const auto& [dtype, lowest, largest] : cases) {
    SCOPED_TRACE(InfoOf(dtype).name);
    EXPECT_EQ(LowestOf(dtype), lowest);
    EXPECT_EQ(LargestOf(dtype), largest);
    EXPECT_TRUE(Holds(dtype, lowest));
    EXPECT_TRUE(Holds(dtype, largest));
    EXPECT_TRUE(Holds(dtype, -0.0));
    EXPECT_FALSE(Holds(dtype, std::nan("")));
    EXPECT_FALSE(Holds(dtype, -kInfinity));
    EXPECT_FALSE(Holds(dtype, largest * 1.125));
    if (!InfoOf(dtype).is_float()) {
      EXPECT_FALSE(Holds(dtype, lowest - 1));
      EXPECT_FALSE(Holds(dtype, largest + 1));
      EXPECT_FALSE(Holds(dtype, 0.5));
    } else {
      // The type holds exactly the numbers that do not overflow.
      const float last = LargestRounded(dtype);
      EXPECT_TRUE(Holds(dtype, -last));
      uint8_t bytes[8];
      Encode(-last, dtype, bytes);
      EXPECT_EQ(Decode(bytes, dtype), lowest);
      const float next = std::nextafter(last, kInfinity);
      EXPECT_FALSE(Holds(dtype, next));
      Encode(next, dtype, bytes);
      EXPECT_FALSE(std::isfinite(Decode(bytes, dtype)));
    }
  }
}

// Checks each pair of neighbouring finite numbers: both survive a round trip, numbers between them
// round to the nearer one, and the middle rounds to the even one.
template <typename Encode, typename Decode>
void CheckRounding(Encode encode, Decode decode, uint16_t first_not_finite, uint16_t sign_bit) {
  for (uint16_t low = 0; low < first_not_finite; ++low) {
    for (const uint16_t sign : {uint16_t{0}, sign_bit}) {
      const uint16_t bits = low | sign, next = bits + 1;
      const double a = decode(bits), b = decode(next);
      EXPECT_EQ(encode(decode(bits)), bits);
      // A number after the last finite one would be equally far away.
      const double end = std::isfinite(b) ? b : 2 * a - decode(bits - 1);
      const float middle = static_cast<float>((a + end) / 2);
      EXPECT_EQ(encode(middle), (low % 2 == 0) ? bits : next) << bits;
      EXPECT_EQ(encode(std::nextafter(middle, 0.0f)), bits) << bits;
      EXPECT_EQ(encode(std::nextafter(middle, sign ? -kInfinity : kInfinity)), next) << bits;
    }
  }
}

TEST(Encode, Bf16RoundsToNearestEven) { CheckRounding(EncodeBf16, DecodeBf16, 0x7F80, 0x8000); }
TEST(Encode, F16RoundsToNearestEven) { CheckRounding(EncodeF16, DecodeF16, 0x7C00, 0x8000); }
TEST(Encode, F8E4M3FnRoundsToNearestEven) {
  CheckRounding(EncodeF8E4M3Fn, DecodeF8E4M3Fn, 0x7F, 0x80);
}
TEST(Encode, F8E5M2RoundsToNearestEven) { CheckRounding(EncodeF8E5M2, DecodeF8E5M2, 0x7C, 0x80); }

// Encodings equal ml_dtypes' for every upper half of an f32, with lower halves near which rounding
// changes; tests/python/test_dtypes.py lists them.
TEST(Encode, EncodingEqualsMlDtypes) {
  std::ifstream file(SHARDINIT_SOURCE_DIR "/tests/vectors/encodings.txt");
  int cases = 0;
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with('#')) continue;
    std::istringstream in(line);
    std::string name, expected;
    ASSERT_TRUE(in >> name >> expected);
    const DType dtype = *FindDType(name);
    std::vector<uint8_t> encoded;
    for (uint32_t high = 0; high < 0x10000; ++high) {
      for (const uint32_t low :
           {0u, 1u, 0xFFFu, 0x1000u, 0x1001u, 0x7FFFu, 0x8000u, 0x8001u, 0xFFFFu}) {
        const float value = std::bit_cast<float>(high << 16 | low);
        if (std::isnan(value)) continue;
        uint8_t bytes[8];
        Encode(value, dtype, bytes);
        encoded.insert(encoded.end(), bytes, bytes + InfoOf(dtype).bytes);
      }
    }
    Sha256 digest;
    digest.Update(encoded.data(), encoded.size());
    EXPECT_EQ(ToHex(digest.Finish()), expected) << name;
    ++cases;
  }
  EXPECT_EQ(cases, 4);
}

// All 256 codes have the values of Micikevicius et al. 2022, "FP8 formats for deep learning".
TEST(Decode, F8MatchesItsDefinition) {
  const auto value = [](int code, int exponent_bits, int mantissa_bits) {
    const int bias = (1 << (exponent_bits - 1)) - 1;
    const int exponent = (code & 0x7F) >> mantissa_bits;
    const double fraction = std::ldexp(code & ((1 << mantissa_bits) - 1), -mantissa_bits);
    const double magnitude =
        exponent == 0 ? std::ldexp(fraction, 1 - bias) : std::ldexp(1 + fraction, exponent - bias);
    return code & 0x80 ? -magnitude : magnitude;
  };
  for (int code = 0; code < 256; ++code) {
    SCOPED_TRACE(code);
    const float e4m3 = DecodeF8E4M3Fn(static_cast<uint8_t>(code));
    const float e5m2 = DecodeF8E5M2(static_cast<uint8_t>(code));
    if ((code & 0x7F) == 0x7F) {
      EXPECT_TRUE(std::isnan(e4m3));
    } else {
      EXPECT_EQ(std::bit_cast<uint32_t>(e4m3),
                std::bit_cast<uint32_t>(static_cast<float>(value(code, 4, 3))));
    }
    if ((code & 0x7F) > 0x7C) {
      EXPECT_TRUE(std::isnan(e5m2));
    } else if ((code & 0x7F) == 0x7C) {
      EXPECT_EQ(e5m2, code & 0x80 ? -kInfinity : kInfinity);
    } else {
      EXPECT_EQ(std::bit_cast<uint32_t>(e5m2),
                std::bit_cast<uint32_t>(static_cast<float>(value(code, 5, 2))));
    }
  }
}

TEST(Encode, SpecialValuesAreEncoded) {
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
  EXPECT_EQ(EncodeF8E4M3Fn(464), 0x7E);  // A tie between 448 and NaN, whose code is odd.
  EXPECT_EQ(EncodeF8E4M3Fn(std::nextafter(464.0f, kInfinity)), 0x7F);
  EXPECT_EQ(EncodeF8E4M3Fn(-kInfinity), 0xFF);
  EXPECT_EQ(EncodeF8E4M3Fn(std::nanf("")), 0x7F);
  EXPECT_EQ(EncodeF8E5M2(61440), 0x7C);
  EXPECT_EQ(EncodeF8E5M2(-kInfinity), 0xFC);
  EXPECT_EQ(EncodeF8E5M2(-std::nanf("")), 0xFE);
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

TEST(Decode, DecodeInvertsEncode) {
  for (const DTypeInfo& info : DTypes()) {
    if (info.kind == DTypeKind::kCarried) continue;
    for (const double value : {0.0, -0.0, 1.0, -1.0, -0.375, 0x1p-6, 104.0, -128.0, 448.0, 65504.0,
                               0x1p31 - 1, -0x1p31, 0x1p32 - 1, 0x1p53 - 1, 1 - 0x1p53}) {
      uint8_t bytes[8];
      if (!Holds(info.dtype, value)) {
        if (!info.is_float()) {
          EXPECT_THROW(EncodeNumber(value, info.dtype, bytes), Bug);
        }
        continue;
      }
      EncodeNumber(value, info.dtype, bytes);
      // The result is exact, or right to the last place of a float.
      const double back = Decode(bytes, info.dtype);
      const double error =
          info.is_float() ? std::ldexp(std::fabs(value), -1 - info.mantissa_bits) : 0;
      EXPECT_LE(std::fabs(back - value), error) << info.name << " " << value;
    }
  }
  uint8_t bytes[8];
  EXPECT_THROW(Encode(1, DType::i32, bytes), Bug);
  EncodeNumber(-2, DType::i64, bytes);
  EXPECT_EQ(std::string(reinterpret_cast<char*>(bytes), 8), "\xFE\xFF\xFF\xFF\xFF\xFF\xFF\xFF");
}

TEST(Encode, MissingValueIsNotPlausible) {
  for (const DTypeInfo& info : DTypes()) {
    if (info.kind == DTypeKind::kCarried) continue;
    uint8_t bytes[8];
    EncodeMissing(info.dtype, bytes);
    const double value = Decode(bytes, info.dtype);
    if (info.is_float()) {
      EXPECT_TRUE(std::isnan(value)) << info.name;
    } else if (info.kind == DTypeKind::kSigned) {
      EXPECT_EQ(value, -std::ldexp(1, 8 * info.bytes - 1)) << info.name;
    } else {
      EXPECT_EQ(value, std::ldexp(1, 8 * info.bytes) - (info.bytes == 8 ? 0 : 1)) << info.name;
    }
  }
}

}  // namespace
}  // namespace shardinit
