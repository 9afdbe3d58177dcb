// Defines the number types of formulas in kernels (base/number.h): vectors, several at a time.

HWY_BEFORE_NAMESPACE();
namespace shardinit::kernels::HWY_NAMESPACE {

namespace wide {

// Puts one number into all lanes of a Highway vector, or of Two of them.
template <class V>
struct All {
  template <class D>
  static HWY_INLINE V Of(D d, hn::TFromD<D> value) {
    return hn::Set(d, value);
  }
};
template <class V>
struct All<VectorPair<V>> {
  template <class D>
  static HWY_INLINE VectorPair<V> Of(D d, hn::TFromD<D> value) {
    return {All<V>::Of(d, value), All<V>::Of(d, value)};
  }
};

// Conditions. M is a type of masks.
template <class M>
struct Flags {
  explicit HWY_INLINE Flags(M mask) : m(mask) {}
  M m;
};

// Words of 32 bits. V is a type of vectors.
template <class V>
struct Words {
  HWY_INLINE Words(V vectors) : v(vectors) {}
  HWY_INLINE Words(uint32_t word) : v(All<V>::Of(D32(), word)) {}
  V v;
};
template <class V>
Words(V) -> Words<V>;

// Numbers of type f32. V is a type of vectors.
template <class V>
struct Floats {
  HWY_INLINE Floats(V vectors) : v(vectors) {}
  HWY_INLINE Floats(float number) : v(All<V>::Of(DF(), number)) {}
  V v;
};
template <class V>
Floats(V) -> Floats<V>;

// The operators are not friends, because GCC would compile friends for the baseline.
#define SHARDINIT_OPERATOR(Type, Number, symbol, Op)         \
  template <class V>                                         \
  HWY_INLINE Type<V> operator symbol(Type<V> a, Type<V> b) { \
    return Op(a.v, b.v);                                     \
  }                                                          \
  template <class V>                                         \
  HWY_INLINE Type<V> operator symbol(Type<V> a, Number b) {  \
    return a symbol Type<V>(b);                              \
  }                                                          \
  template <class V>                                         \
  HWY_INLINE Type<V> operator symbol(Number a, Type<V> b) {  \
    return Type<V>(a) symbol b;                              \
  }
SHARDINIT_OPERATOR(Words, uint32_t, +, Add)
SHARDINIT_OPERATOR(Words, uint32_t, -, Sub)
SHARDINIT_OPERATOR(Words, uint32_t, &, And)
SHARDINIT_OPERATOR(Words, uint32_t, |, Or)
SHARDINIT_OPERATOR(Words, uint32_t, ^, Xor)
SHARDINIT_OPERATOR(Floats, float, +, Add)
SHARDINIT_OPERATOR(Floats, float, -, Sub)
SHARDINIT_OPERATOR(Floats, float, *, Mul)
SHARDINIT_OPERATOR(Floats, float, /, Div)
#undef SHARDINIT_OPERATOR

template <class V>
HWY_INLINE auto operator<(Floats<V> a, float b) {
  return Flags(Lt(a.v, All<V>::Of(DF(), b)));
}
template <class V>
HWY_INLINE auto operator>=(Floats<V> a, float b) {
  return Flags(Ge(a.v, All<V>::Of(DF(), b)));
}
template <class V>
HWY_INLINE auto operator==(Floats<V> a, float b) {
  return Flags(Eq(a.v, All<V>::Of(DF(), b)));
}
template <class V>
HWY_INLINE bool AnyLess(Floats<V> a, float b) {
  return HWY_UNLIKELY(!AllFalse(DF(), (a < b).m));
}
template <class V>
HWY_INLINE bool AllLess(Floats<V> a, float b) {
  return HWY_LIKELY(AllTrue(DF(), (a < b).m));
}

template <class V>
HWY_INLINE Floats<V> Abs(Floats<V> a) {
  return Abs(a.v);
}
template <class V>
HWY_INLINE Floats<V> Sqrt(Floats<V> a) {
  return Sqrt(a.v);
}
template <class V>
HWY_INLINE Floats<V> Min(Floats<V> a, float b) {
  return Min(a.v, All<V>::Of(DF(), b));
}
template <class V>
HWY_INLINE Floats<V> Max(Floats<V> a, float b) {
  return Max(a.v, All<V>::Of(DF(), b));
}
#if HWY_NATIVE_FMA
template <class V>
HWY_INLINE Floats<V> Fma(Floats<V> a, Floats<V> b, Floats<V> c) {
  return MulAdd(a.v, b.v, c.v);
}
#endif
// Multiplies the power by `b` first, because both are the same in all lanes.
template <class V>
HWY_INLINE Floats<V> Product(Floats<V> a, float power, float b) {
  return a * (power * b);
}

template <class V>
HWY_INLINE auto BitsOf(Floats<V> a) {
  return Words(BitCast(D32(), a.v));
}
template <class V>
HWY_INLINE auto TruncatedToWord(Floats<V> a) {
  return Words(BitCast(D32(), ConvertTo(DI(), a.v)));
}
template <class V>
HWY_INLINE auto FromBits(Words<V> words) {
  return Floats(BitCast(DF(), words.v));
}
template <class V>
HWY_INLINE auto SignedToF32(Words<V> words) {
  return Floats(ConvertTo(DF(), BitCast(DI(), words.v)));
}
template <int places, class V>
HWY_INLINE Words<V> ShiftLeft(Words<V> words) {
  return ShiftLeft<places>(words.v);
}
template <int places, class V>
HWY_INLINE Words<V> ShiftRight(Words<V> words) {
  return ShiftRight<places>(words.v);
}
template <int places, class V>
HWY_INLINE Words<V> ShiftSigned(Words<V> words) {
  return BitCast(D32(), ShiftRight<places>(BitCast(DI(), words.v)));
}

template <class N, class M>
HWY_INLINE N Select(Flags<M> condition, std::type_identity_t<N> yes, std::type_identity_t<N> no) {
  return IfThenElse(condition.m, yes.v, no.v);
}

// Tests whether a bit of each word is set, or, with `flipped`, clear.
template <int bit, class V>
struct BitFlags {
  HWY_INLINE BitFlags(V words, bool other) : v(words), flipped(other) {}
  V v;
  bool flipped;
};
template <int bit, class V>
HWY_INLINE BitFlags<bit, V> operator!=(BitFlags<bit, V> a, bool b) {
  return {a.v, a.flipped != b};
}
template <int bit, class V>
HWY_INLINE BitFlags<bit, V> IsSet(Words<V> words) {
  return {words.v, false};
}
template <class N, int bit, class V>
HWY_INLINE N Select(BitFlags<bit, V> condition, std::type_identity_t<N> if_true,
                    std::type_identity_t<N> if_false) {
  const N yes = condition.flipped ? if_false : if_true, no = condition.flipped ? if_true : if_false;
  const DF df;
#if HWY_TARGET == HWY_AVX3
  const auto mask = TestBit(condition.v, All<V>::Of(D32(), 1u << bit));
  return IfThenElse(RebindMask(df, mask), yes.v, no.v);
#else
  const auto top = BitCast(DI(), ShiftLeft<31 - bit>(condition.v));
#if HWY_TARGET == HWY_SSSE3
  // Highway 1.0.3's IfNegativeThenElse is wrong here: it selects single bits.
  return IfVecThenElse(BitCast(df, BroadcastSignBit(top)), yes.v, no.v);
#else
  return IfNegativeThenElse(BitCast(df, top), yes.v, no.v);
#endif
#endif
}
template <int bit, class F, class V>
HWY_INLINE F NegateIfSet(Words<V> words, F x) {
  return FromBits(BitsOf(x) ^ (ShiftLeft<31 - bit>(words) & 0x80000000u));
}
template <int bit, class V>
HWY_INLINE Words<V> BitPlus(Words<V> words, uint32_t number) {
#if HWY_TARGET == HWY_AVX3
  const D32 d;
  const auto mask = TestBit(words.v, All<V>::Of(d, 1u << bit));
  return IfThenElse(mask, All<V>::Of(d, number + 1), All<V>::Of(d, number));
#else
  return (ShiftRight<bit>(words) & 1u) + number;
#endif
}

// Magnitudes have the same order as words and as f32 numbers.
template <class V>
HWY_INLINE Words<V> MinMagnitude(Words<V> words, uint32_t bound) {
  return BitsOf(Min(FromBits(words), std::bit_cast<float>(bound)));
}
template <class V>
HWY_INLINE auto IsLessMagnitude(Words<V> words, uint32_t bound) {
  return Flags(RebindMask(D32(), (FromBits(words) < std::bit_cast<float>(bound)).m));
}

#if HWY_NATIVE_FMA
template <class V>
HWY_INLINE V FusedMultiplyAddAll(V x, float y, float z) {
  return MulAdd(x, All<V>::Of(DF(), y), All<V>::Of(DF(), z));
}
#else
template <class V>
HWY_INLINE V FusedMultiplyAddAll(V x, float y, float z) {
  HWY_ALIGN float values[sizeof(V) / sizeof(float)];
  std::memcpy(values, &x, sizeof values);
  for (float &value : values) value = FusedMultiplyAdd(value, y, z);
  std::memcpy(&x, values, sizeof values);
  return x;
}
#endif
template <class V>
HWY_INLINE Floats<V> FusedProductPlus(Floats<V> x, float power, float y, float z) {
  return FusedMultiplyAddAll(x.v, power * y, z);
}

}  // namespace wide

}  // namespace shardinit::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
