// The numbers that formulas are made of in kernels (base/number.h): vectors, several at a time.

HWY_BEFORE_NAMESPACE();
namespace shardinit::kernels::HWY_NAMESPACE {

namespace wide {

// One number in all lanes of a vector of Highway's, or of Two of them.
template <class V>
struct All {
  template <class D>
  static HWY_INLINE V Of(D d, hn::TFromD<D> value) {
    return hn::Set(d, value);
  }
};
template <class V>
struct All<Two<V>> {
  template <class D>
  static HWY_INLINE Two<V> Of(D d, hn::TFromD<D> value) {
    return {All<V>::Of(d, value), All<V>::Of(d, value)};
  }
};

// Conditions. M: masks.
template <class M>
struct Flags {
  explicit HWY_INLINE Flags(M mask) : m(mask) {}
  M m;
};

// Words of 32 bits. V: vectors.
template <class V>
struct Words {
  HWY_INLINE Words(V vectors) : v(vectors) {}
  HWY_INLINE Words(uint32_t word) : v(All<V>::Of(D32(), word)) {}

  friend HWY_INLINE Words operator+(Words a, Words b) { return Add(a.v, b.v); }
  friend HWY_INLINE Words operator-(Words a, Words b) { return Sub(a.v, b.v); }
  friend HWY_INLINE Words operator&(Words a, Words b) { return And(a.v, b.v); }
  friend HWY_INLINE Words operator|(Words a, Words b) { return Or(a.v, b.v); }
  friend HWY_INLINE Words operator^(Words a, Words b) { return Xor(a.v, b.v); }
  V v;
};
template <class V>
Words(V) -> Words<V>;

// Numbers of type f32.
template <class V>
struct Floats {
  HWY_INLINE Floats(V vectors) : v(vectors) {}
  HWY_INLINE Floats(float number) : v(All<V>::Of(DF(), number)) {}

  friend HWY_INLINE Floats operator+(Floats a, Floats b) { return Add(a.v, b.v); }
  friend HWY_INLINE Floats operator-(Floats a, Floats b) { return Sub(a.v, b.v); }
  friend HWY_INLINE Floats operator*(Floats a, Floats b) { return Mul(a.v, b.v); }
  friend HWY_INLINE Floats operator/(Floats a, Floats b) { return Div(a.v, b.v); }
  friend HWY_INLINE auto operator<(Floats a, Floats b) { return Flags(Lt(a.v, b.v)); }
  friend HWY_INLINE auto operator>=(Floats a, Floats b) { return Flags(Ge(a.v, b.v)); }
  friend HWY_INLINE auto operator==(Floats a, Floats b) { return Flags(Eq(a.v, b.v)); }

  friend HWY_INLINE Floats Abs(Floats a) { return Abs(a.v); }
  friend HWY_INLINE Floats Sqrt(Floats a) { return Sqrt(a.v); }
  friend HWY_INLINE Floats Min(Floats a, Floats b) { return Min(a.v, b.v); }
  friend HWY_INLINE Floats Max(Floats a, Floats b) { return Max(a.v, b.v); }
  friend HWY_INLINE auto BitsOf(Floats a) { return Words(BitCast(D32(), a.v)); }
  friend HWY_INLINE bool AnyLess(Floats a, Floats b) {
    return HWY_UNLIKELY(!AllFalse(DF(), Lt(a.v, b.v)));
  }
  friend HWY_INLINE bool AllLess(Floats a, Floats b) {
    return HWY_LIKELY(AllTrue(DF(), Lt(a.v, b.v)));
  }
#if HWY_NATIVE_FMA
  friend HWY_INLINE Floats Fma(Floats a, Floats b, Floats c) { return MulAdd(a.v, b.v, c.v); }
#endif
  friend HWY_INLINE auto TruncatedToWord(Floats a) {
    return Words(BitCast(D32(), ConvertTo(DI(), a.v)));
  }
  // The power is joined with what all lanes have.
  friend HWY_INLINE Floats Product(Floats a, float power, float b) { return a * (power * b); }
  V v;
};
template <class V>
Floats(V) -> Floats<V>;

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

// Whether a bit of each word is set; with `flipped`, whether it is not.
template <int bit, class V>
struct BitFlags {
  HWY_INLINE BitFlags(V words, bool other) : v(words), flipped(other) {}
  friend HWY_INLINE BitFlags operator!=(BitFlags a, bool b) { return {a.v, a.flipped != b}; }
  V v;
  bool flipped;
};
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

// As numbers they have the same order.
template <class V>
HWY_INLINE Words<V> MinMagnitude(Words<V> words, uint32_t bound) {
  return BitsOf(Min(FromBits(words), FromBits(Words<V>(bound))));
}
template <class V>
HWY_INLINE auto IsLessMagnitude(Words<V> words, uint32_t bound) {
  return Flags(RebindMask(D32(), (FromBits(words) < FromBits(Words<V>(bound))).m));
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
  for (float& value : values) value = FusedMultiplyAdd(value, y, z);
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
