#include "program/encode.h"

#include <bit>
#include <cmath>

#include "base/error.h"
#include "tensor/encode-inl.h"

namespace shardinit::program {
namespace {

DType WordOf(int bytes) {
  return bytes == 8 ? DType::u64 : bytes == 4 ? DType::u32 : bytes == 2 ? DType::u16 : DType::u8;
}

Value Narrow(const Word32& word, int bytes) {
  const Word32 low = word & ((1u << (8 * bytes)) - 1);
  return word.in()->Convert(low.value(), WordOf(bytes));
}

}  // namespace

Word32 RoundToF32(const Double& number) {
  Function* in = number.in();
  if (in == nullptr) return std::bit_cast<uint32_t>(static_cast<float>(number.constant()));
  const Double size = Abs(number);
  // One unit in the last place of 2^-97 is 2^-149.
  const Word64 multiple = BitsOf(size + 0x1p-97) - std::bit_cast<uint64_t>(0x1p-97);
  const Word32 sign = LowWord(BitsOf(number) >> 32) & 0x80000000u;
  const Value near = in->Convert(size.ValueIn(in), DType::f32);
  const Word32 normal = {in, in->Bitcast(near, DType::u32)};
  return sign | Select<Word32>(size < 0x1p-126, LowWord(multiple), normal);
}

Value AsStored(const Word32& bits, DType dtype) {
  Function* in = bits.in();
  const DTypeInfo& info = InfoOf(dtype);
  if (dtype == DType::boolean) return (bits != 0).value();
  const Value narrow = info.bytes == 4 ? bits.value() : Narrow(bits, info.bytes);
  return info.is_float() ? narrow : in->Bitcast(narrow, dtype);
}

Value Encoded(const Word32& bits, DType dtype) {
  switch (dtype) {
    case DType::f32:
      return bits.value();
    case DType::f64: {
      Function* in = bits.in();
      return in->Bitcast(in->Convert(in->Bitcast(bits.value(), DType::f32), DType::f64),
                         DType::u64);
    }
    case DType::bf16:
      return Narrow(encoding::Bf16(bits), 2);
    case DType::f16:
      return Narrow(encoding::Small<DType::f16>(bits), 2);
    case DType::f8e4m3fn:
      return Narrow(encoding::Small<DType::f8e4m3fn>(bits), 1);
    case DType::f8e5m2:
      return Narrow(encoding::Small<DType::f8e5m2>(bits), 1);
    default:
      Check(false, "a fraction for an integer");
  }
  return {};
}

Value EncodedNumber(const Double& number, DType dtype, Function* in) {
  if (number.is_constant()) return ConstantOf(*in, number.constant(), dtype);
  const DTypeInfo& info = InfoOf(dtype);
  if (dtype == DType::f64) return BitsOf(number).value();
  if (info.is_float()) return Encoded(RoundToF32(number), dtype);
  if (dtype == DType::boolean) return (number != 0).value();
  const Value whole = in->Convert(number.ValueIn(in), DType::i64);
  return in->Convert(whole, dtype);
}

Double Decoded(const Value& bits, DType dtype, Function* out) {
  if (dtype == DType::f64) return FromBits(Word64(out, bits));
  if (dtype == DType::f32) return ToDouble(FromBits(Word32(out, bits)));
  const DTypeInfo& info = InfoOf(dtype);
  const int bias = (1 << (info.exponent_bits - 1)) - 1;
  const Word64 word(out, out->Convert(bits, DType::u64));
  const Word64 sign = word >> (8 * info.bytes - 1) << 63;
  const Word64 size = word & ((uint64_t{1} << (8 * info.bytes - 1)) - 1);
  const Double normal =
      FromBits((size << (52 - info.mantissa_bits)) + (static_cast<uint64_t>(1023 - bias) << 52));
  const Double subnormal = ToDouble(size) * std::ldexp(1, 1 - bias - info.mantissa_bits);
  const Flag is_subnormal = size < (uint64_t{1} << info.mantissa_bits);
  return FromBits(BitsOf(Select<Double>(is_subnormal, subnormal, normal)) | sign);
}

Value ConstantOf(const Function& out, double value, DType dtype) {
  uint64_t bits = 0;
  EncodeNumber(value, dtype, &bits);
  const DTypeInfo& info = InfoOf(dtype);
  return out.Constant(info.is_float() ? WordOf(info.bytes) : dtype, bits);
}

}  // namespace shardinit::program
