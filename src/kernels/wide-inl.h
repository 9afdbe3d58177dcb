// The vectors that kernels compute with: Highway's vocabulary, for two vectors
// at a time.
//
// Philox, the logarithm and the polynomials are chains of operations that wait
// for each other, and a processor looks only so far ahead for work that does
// not wait: on Zen 4 some 60 vector operations, about one iteration of a loop
// here. Two chains, an operation of each in turn, gave 10 to 15 % more values
// a second than one; compilers do not reorder that far. Vectors whose length is
// unknown to the compiler (SVE) cannot be members, and go one at a time.

HWY_BEFORE_NAMESPACE();
namespace shardinit::kernels::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

#if !HWY_HAVE_SCALABLE

namespace wide {

inline constexpr size_t kVectors = 2;

// Its constructors are written out because GCC compiles implicit ones for the baseline, where it
// cannot inline Highway's.
template <class V>
struct Two {
  HWY_INLINE Two() {}
  HWY_INLINE Two(V first, V second) : a(first), b(second) {}
  V a, b;
};

template <class V>
using Of = Two<V>;

#define SHARDINIT_WIDE(Op)                                    \
  template <class V>                                          \
  HWY_INLINE auto Op(Two<V> x) {                              \
    return Two{hn::Op(x.a), hn::Op(x.b)};                     \
  }                                                           \
  template <class V>                                          \
  HWY_INLINE auto Op(Two<V> x, Two<V> y) {                    \
    return Two{hn::Op(x.a, y.a), hn::Op(x.b, y.b)};           \
  }                                                           \
  template <class M, class V>                                 \
  HWY_INLINE auto Op(Two<M> x, Two<V> y, Two<V> z) {          \
    return Two{hn::Op(x.a, y.a, z.a), hn::Op(x.b, y.b, z.b)}; \
  }                                                           \
  template <class D, class V>                                 \
  HWY_INLINE auto Op(D d, Two<V> x) {                         \
    return Two{hn::Op(d, x.a), hn::Op(d, x.b)};               \
  }
SHARDINIT_WIDE(Abs)
SHARDINIT_WIDE(Add)
SHARDINIT_WIDE(And)
SHARDINIT_WIDE(BitCast)
SHARDINIT_WIDE(BroadcastSignBit)
SHARDINIT_WIDE(ConvertTo)
SHARDINIT_WIDE(Div)
SHARDINIT_WIDE(DupEven)
SHARDINIT_WIDE(Eq)
SHARDINIT_WIDE(IfNegativeThenElse)
SHARDINIT_WIDE(IfThenElse)
SHARDINIT_WIDE(IfVecThenElse)
SHARDINIT_WIDE(Lt)
SHARDINIT_WIDE(Max)
SHARDINIT_WIDE(Min)
SHARDINIT_WIDE(Mul)
SHARDINIT_WIDE(MulAdd)
SHARDINIT_WIDE(MulEven)
SHARDINIT_WIDE(OddEven)
SHARDINIT_WIDE(Or)
SHARDINIT_WIDE(RebindMask)
SHARDINIT_WIDE(Sqrt)
SHARDINIT_WIDE(Sub)
SHARDINIT_WIDE(TestBit)
SHARDINIT_WIDE(Xor)
SHARDINIT_WIDE(Xor3)
#undef SHARDINIT_WIDE

template <int bits, class V>
HWY_INLINE Two<V> ShiftLeft(Two<V> x) {
  return {hn::ShiftLeft<bits>(x.a), hn::ShiftLeft<bits>(x.b)};
}
template <int bits, class V>
HWY_INLINE Two<V> ShiftRight(Two<V> x) {
  return {hn::ShiftRight<bits>(x.a), hn::ShiftRight<bits>(x.b)};
}
template <int bits, class V>
HWY_INLINE Two<V> RotateRight(Two<V> x) {
  return {hn::RotateRight<bits>(x.a), hn::RotateRight<bits>(x.b)};
}
template <class D>
HWY_INLINE auto Set(D d, hn::TFromD<D> value) {
  return Two{hn::Set(d, value), hn::Set(d, value)};
}
template <class D>
HWY_INLINE auto Load(D d, const hn::TFromD<D>* from) {
  return Two{hn::Load(d, from), hn::Load(d, from + hn::Lanes(d))};
}
template <class D, class V>
HWY_INLINE void Store(Two<V> x, D d, hn::TFromD<D>* to) {
  hn::Store(x.a, d, to);
  hn::Store(x.b, d, to + hn::Lanes(d));
}
template <int i, class V>
HWY_INLINE V Part(Two<V> x) {
  return i == 0 ? x.a : x.b;
}
template <class D, class M>
HWY_INLINE bool AllFalse(D d, Two<M> x) {
  return hn::AllFalse(d, hn::Or(x.a, x.b));
}
template <class D, class M>
HWY_INLINE bool AllTrue(D d, Two<M> x) {
  return hn::AllTrue(d, hn::And(x.a, x.b));
}

}  // namespace wide

#else

namespace wide {
using namespace hn;
inline constexpr size_t kVectors = 1;
template <class V>
using Of = V;
template <int, class V>
HWY_INLINE V Part(V x) {
  return x;
}
}  // namespace wide

#endif

}  // namespace shardinit::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
