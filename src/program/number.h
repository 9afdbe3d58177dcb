// Defines the numbers of a program. Formulas are templates over their number types (base/number.h);
// with these types they write their operations into a Function.
#pragma once

#include <bit>
#include <cmath>
#include <concepts>
#include <cstdint>
#include <functional>
#include <type_traits>

#include "base/number.h"
#include "base/overloaded.h"
#include "program/function.h"
#include "program/rounding.h"

namespace shardinit::program {

class Flag {
 public:
  Flag(bool value) : value_{-1, DType::boolean, 0, value} {}
  Flag(Function* in, Value value) : in_(in), value_(value) {}

  Function* in() const { return in_; }
  Value value() const { return value_; }

  bool is_constant() const { return in_ == nullptr; }
  bool constant() const { return value_.bits != 0; }

  friend Flag operator&(Flag a, Flag b) { return Of("and", a, b, std::logical_and()); }
  friend Flag operator|(Flag a, Flag b) { return Of("or", a, b, std::logical_or()); }
  friend Flag operator!=(Flag a, Flag b) { return Of("xor", a, b, std::not_equal_to()); }

 private:
  template <typename F>
  static Flag Of(std::string_view operation, Flag a, Flag b, F compute) {
    if (a.is_constant() && b.is_constant()) return compute(a.constant(), b.constant());
    Function* in = a.in_ ? a.in_ : b.in_;
    return {in, in->Elementwise(operation, {a.value_, b.value_}, DType::boolean)};
  }

  Function* in_ = nullptr;
  Value value_;
};

inline Flag And(Flag a, Flag b) { return a & b; }

// An unsigned integer of T's size that wraps around.
template <std::unsigned_integral T>
class Word {
 public:
  static constexpr DType kElement = sizeof(T) == 4 ? DType::u32 : DType::u64;

  template <std::integral I>
  Word(I value) : value_{-1, kElement, 0, static_cast<T>(value)} {}
  Word(Function* in, Value value) : in_(in), value_(value) {}

  Function* in() const { return in_; }
  Value value() const { return value_; }
  bool is_constant() const { return in_ == nullptr; }
  T constant() const { return static_cast<T>(value_.bits); }
  Value ValueIn(Function*) const { return value_; }

  friend Word operator+(Word a, Word b) {
    if (a.Is(0)) return b;
    if (b.Is(0)) return a;
    return Of("add", a, b, std::plus());
  }
  friend Word operator-(Word a, Word b) { return b.Is(0) ? a : Of("subtract", a, b, std::minus()); }
  friend Word operator*(Word a, Word b) {
    if (a.Is(1)) return b;
    if (b.Is(1)) return a;
    return Of("multiply", a, b, std::multiplies());
  }
  friend Word operator/(Word a, Word b) { return b.Is(1) ? a : Of("divide", a, b, std::divides()); }
  friend Word operator%(Word a, Word b) {
    return b.Is(1) ? Word(0) : Of("remainder", a, b, std::modulus());
  }
  friend Word operator&(Word a, Word b) { return Of("and", a, b, std::bit_and()); }
  friend Word operator|(Word a, Word b) { return Of("or", a, b, std::bit_or()); }
  friend Word operator^(Word a, Word b) { return Of("xor", a, b, std::bit_xor()); }
  friend Word operator>>(Word a, Word b) {
    return Of("shift_right_logical", a, b, [](T x, T y) { return x >> y; });
  }
  friend Word operator<<(Word a, Word b) {
    return Of("shift_left", a, b, [](T x, T y) { return x << y; });
  }
  friend Flag operator==(Word a, Word b) { return Is("EQ", a, b, std::equal_to()); }
  friend Flag operator!=(Word a, Word b) { return Is("NE", a, b, std::not_equal_to()); }
  friend Flag operator<(Word a, Word b) { return Is("LT", a, b, std::less()); }

 private:
  bool Is(T value) const { return is_constant() && constant() == value; }

  template <typename F>
  static Word Of(std::string_view operation, Word a, Word b, F compute) {
    if (a.is_constant() && b.is_constant()) {
      return static_cast<T>(compute(a.constant(), b.constant()));
    }
    Function* in = a.in_ ? a.in_ : b.in_;
    return {in, in->Elementwise(operation, {a.value_, b.value_}, kElement)};
  }
  template <typename F>
  static Flag Is(std::string_view direction, Word a, Word b, F compute) {
    if (a.is_constant() && b.is_constant()) return compute(a.constant(), b.constant());
    Function* in = a.in_ ? a.in_ : b.in_;
    return {in, in->Compare(direction, a.value_, b.value_, "UNSIGNED")};
  }

  Function* in_ = nullptr;  // null for a constant
  Value value_;
};

using Word32 = Word<uint32_t>;
using Word64 = Word<uint64_t>;

// A number of type T, f32 or f64. Each result equals one IEEE operation on numbers of this type,
// whatever the program's compiler does (Arithmetic).
template <std::floating_point T>
class Real {
 public:
  using Bits = std::conditional_t<sizeof(T) == 4, uint32_t, uint64_t>;

  template <typename N>
  requires std::is_arithmetic_v<N> Real(N value) : constant_(static_cast<T>(value)) {}
  // `value` has the type that the function uses for T.
  Real(Function* in, Value value) : in_(in), value_(value) {}

  Function* in() const { return in_; }
  bool is_constant() const { return in_ == nullptr; }
  T constant() const { return constant_; }
  // Returns the value in a function, with the type that the function uses for T.
  Value ValueIn(Function* in) const {
    if (!is_constant()) return value_;
    if (ElementIn(*in) == DType::f64) {
      return in->Constant(DType::f64, std::bit_cast<uint64_t>(static_cast<double>(constant_)));
    }
    return in->Constant(DType::f32, std::bit_cast<uint32_t>(static_cast<float>(constant_)));
  }
  static DType ElementIn(const Function& in) {
    return sizeof(T) == 8 || in.arithmetic() == Arithmetic::kDouble ? DType::f64 : DType::f32;
  }

  friend Real operator+(Real a, Real b) {
    return Of("add", Summand(a, b), Summand(b, a), std::plus());
  }
  friend Real operator-(Real a, Real b) {
    return Of("subtract", Summand(a, b), Summand(b, a), std::minus());
  }
  friend Real operator*(Real a, Real b) { return Of("multiply", a, b, std::multiplies()); }
  friend Real operator/(Real a, Real b) {
    Function* in = a.in_ ? a.in_ : b.in_;
    if (in != nullptr) b = Divisor(in, a, b);
    if constexpr (sizeof(T) == 4) {
      if (in != nullptr && in->arithmetic() == Arithmetic::kSingle) {
        const Value near = in->Elementwise("divide", {a.ValueIn(in), b.ValueIn(in)}, DType::f32);
        const Word<Bits> bits_a = BitsOf(a), bits_b = BitsOf(b);
        return FromBits(rounding::Quotient<Word<Bits>>(bits_a, bits_b, BitsOf(Real(in, near))));
      }
    }
    return Of("divide", a, b, std::divides());
  }
  friend Real operator-(Real a) { return a.is_constant() ? Real(-a.constant_) : a.Unary("negate"); }
  friend Flag operator<(Real a, Real b) { return Is("LT", a, b, std::less()); }
  friend Flag operator<=(Real a, Real b) { return Is("LE", a, b, std::less_equal()); }
  friend Flag operator>(Real a, Real b) { return Is("GT", a, b, std::greater()); }
  friend Flag operator>=(Real a, Real b) { return Is("GE", a, b, std::greater_equal()); }
  friend Flag operator==(Real a, Real b) { return Is("EQ", a, b, std::equal_to()); }
  friend Flag operator!=(Real a, Real b) { return Is("NE", a, b, std::not_equal_to()); }

  friend Real Sqrt(Real a) {
    if (a.is_constant()) return std::sqrt(a.constant_);
    const Real near = a.Unary("sqrt");
    if constexpr (sizeof(T) == 4) {
      if (a.in_->arithmetic() == Arithmetic::kSingle) {
        const Word<Bits> bits = BitsOf(a);
        return FromBits(rounding::Sqrt<Word<Bits>>(bits, BitsOf(near)));
      }
    }
    return Settled(a.in_, near.value_);
  }
  friend Real Abs(Real a) {
    return a.is_constant() ? Real(std::fabs(a.constant_)) : a.Unary("abs");
  }
  friend Real Floor(Real a) {
    return a.is_constant() ? Real(std::floor(a.constant_)) : a.Unary("floor");
  }
  friend Word<Bits> BitsOf(Real a) {
    if (a.is_constant()) return std::bit_cast<Bits>(a.constant_);
    const DType element = sizeof(T) == 4 ? DType::f32 : DType::f64;
    return {a.in_, a.in_->Bitcast(a.in_->Convert(a.value_, element), Word<Bits>::kElement)};
  }
  friend Real CopySign(Real size, Real sign) {
    constexpr Bits kSign = Bits{1} << (8 * sizeof(T) - 1);
    return FromBits((BitsOf(size) & (kSign - 1)) | (BitsOf(sign) & kSign));
  }

  // Returns a result that no compiler fuses with other operations. It uses `or`, not `xor`, because
  // a value may be settled twice, as after a product with 1, which compilers remove: `xor` would
  // cancel.
  static Real Settled(Function* in, Value value) {
    if (sizeof(T) == 4 && in->arithmetic() == Arithmetic::kDouble) {
      return {in, in->Elementwise("reduce_precision", {value}, DType::f64, ", format = e8m23")};
    }
    return {in, Hidden(in, value)};
  }

 private:
  // Mixes the argument that is 0 into a value, so that compilers do not know the value. Over the
  // dimensions `over` they also do not know that it is constant.
  static Value Hidden(Function* in, Value value, Over over = 0) {
    const DType bits = value.element == DType::f32 ? DType::u32 : DType::u64;
    const Value zero = over == 0 ? in->Zero(bits) : in->ZeroOver(over, bits);
    const Value mixed = in->Elementwise("or", {in->Bitcast(value, bits), zero}, bits);
    return in->Bitcast(mixed, value.element);
  }
  Real Unary(std::string_view operation) const {
    return {in_, in_->Elementwise(operation, {value_}, value_.element)};
  }
  // Hides a zero that is added: compilers replace x + 0 by x, which is wrong if x is -0.
  static Real Summand(Real x, Real other) {
    if (!x.is_constant() || x.constant_ != 0 || other.is_constant()) return x;
    return {other.in_, Hidden(other.in_, x.ValueIn(other.in_))};
  }
  // Hides the divisor: compilers multiply by the inverse of a known divisor, or of one for many a.
  static Real Divisor(Function* in, Real a, Real b) {
    const Value value = b.ValueIn(in);
    const Over missing = a.value_.over & ~value.over;
    if (missing == 0) return Settled(in, value);
    return Settled(in, Hidden(in, value, missing));
  }
  template <typename F>
  static Real Of(std::string_view operation, Real a, Real b, F compute) {
    if (a.is_constant() && b.is_constant()) return compute(a.constant_, b.constant_);
    Function* in = a.in_ ? a.in_ : b.in_;
    return Settled(in, in->Elementwise(operation, {a.ValueIn(in), b.ValueIn(in)}, ElementIn(*in)));
  }
  template <typename F>
  static Flag Is(std::string_view direction, Real a, Real b, F compute) {
    if (a.is_constant() && b.is_constant()) return compute(a.constant_, b.constant_);
    Function* in = a.in_ ? a.in_ : b.in_;
    return {in, in->Compare(direction, a.ValueIn(in), b.ValueIn(in), "FLOAT")};
  }

  Function* in_ = nullptr;  // null for a constant
  Value value_;
  T constant_ = 0;
};

using Single = Real<float>;
using Double = Real<double>;

inline Single FromBits(Word32 bits) {
  if (bits.is_constant()) return std::bit_cast<float>(bits.constant());
  Function* in = bits.in();
  return {in, in->Convert(in->Bitcast(bits.value(), DType::f32), Single::ElementIn(*in))};
}
inline Double FromBits(Word64 bits) {
  if (bits.is_constant()) return std::bit_cast<double>(bits.constant());
  return {bits.in(), bits.in()->Bitcast(bits.value(), DType::f64)};
}

inline Single SignedToF32(Word32 word) {
  if (word.is_constant()) return shardinit::SignedToF32(word.constant());
  Function* in = word.in();
  const Value number = in->Convert(in->Bitcast(word.value(), DType::i32), Single::ElementIn(*in));
  // f64 holds every word exactly, so only f64 needs rounding to f32.
  return number.element == DType::f32 ? Single(in, number) : Single::Settled(in, number);
}

template <int places>
Word32 ShiftSigned(Word32 word) {
  if (word.is_constant()) return shardinit::ShiftSigned<places>(word.constant());
  Function* in = word.in();
  const Value number = in->Bitcast(word.value(), DType::i32);
  const Value shifted = in->Elementwise(
      "shift_right_arithmetic", {number, in->Constant(DType::i32, static_cast<uint64_t>(places))},
      DType::i32);
  return {in, in->Bitcast(shifted, DType::u32)};
}

inline Word64 Widen(Word32 word) {
  if (word.is_constant()) return uint64_t{word.constant()};
  return {word.in(), word.in()->Convert(word.value(), DType::u64)};
}
inline Word32 LowWord(Word64 word) {
  if (word.is_constant()) return static_cast<uint32_t>(word.constant());
  const Word64 low = word & 0xFFFFFFFFu;
  return {low.in(), low.in()->Convert(low.value(), DType::u32)};
}
inline Word32 HighProduct(uint32_t a, Word32 b) { return LowWord((Widen(b) * uint64_t{a}) >> 32); }

// Converts a word that f64 holds exactly.
inline Double ToDouble(Word64 word) {
  if (word.is_constant()) return static_cast<double>(word.constant());
  return {word.in(), word.in()->Convert(word.value(), DType::f64)};
}
// Converts a whole f64 number from 0 to 2^63 - 1. The result for other numbers is unspecified.
inline Word64 ToWord(Double number) {
  Function* in = number.in();
  if (in == nullptr) {
    const double constant = number.constant();
    return constant >= 0 && constant < 0x1p63 ? static_cast<uint64_t>(constant) : 0;
  }
  return {in, in->Bitcast(in->Convert(number.ValueIn(in), DType::i64), DType::u64)};
}
inline Double ToDouble(Single number) {
  if (number.is_constant()) return static_cast<double>(number.constant());
  return {number.in(), number.in()->Convert(number.ValueIn(number.in()), DType::f64)};
}

// Implements Select<N>(…) of base/number.h.
template <OneOf<Single, Double, Word32, Word64> N>
N Select(Flag condition, std::type_identity_t<N> yes, std::type_identity_t<N> no) {
  Function* in = condition.in();
  if (in == nullptr) return condition.constant() ? yes : no;
  return {in, in->Select(condition.value(), yes.ValueIn(in), no.ValueIn(in))};
}

inline bool AnyLess(const Single&, const Single&) { return true; }
inline bool AllLess(const Single&, const Single&) { return false; }

// Computes the same result as FusedMultiplyAdd() for plain numbers (base/number.h).
inline Single FusedMultiplyAdd(const Single& a, const Single& b, const Single& c) {
  const Double product = ToDouble(a) * ToDouble(b), addend = ToDouble(c);
  const Double sum = product + addend;
  const Double added = sum - product;
  const Double error = (product - (sum - added)) + (addend - added);
  const Word64 bits = BitsOf(sum);
  const Flag same_sign = (error > 0) != (sum <= 0);
  const Word64 odd = Select<Word64>(same_sign, bits + 1, bits - 1);
  const Double rounded = FromBits(Select<Word64>((error != 0) & ((bits & 1) == 0), odd, bits));
  if (rounded.is_constant()) return static_cast<float>(rounded.constant());
  Function* in = rounded.in();
  // XLA removes a conversion to f32 and back to f64, with its rounding, where it sees both.
  return Single::Settled(in, in->Convert(rounded.ValueIn(in), Single::ElementIn(*in)));
}

}  // namespace shardinit::program
