// Defines the vectors that kernels use: Highway's operations on two vectors at a time, or on two
// pairs.
//
// Philox, the logarithm and the polynomials are chains of dependent operations. A processor looks
// only a limited distance ahead for independent work: on Zen 4 about 60 vector operations, which is
// about one iteration of a loop here. Two chains whose operations alternate computed 10 to 15 %
// more values a second than one. Compilers do not reorder that far.

HWY_BEFORE_NAMESPACE();
namespace shardinit::kernels::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using DF = hn::ScalableTag<float>;
using DI = hn::ScalableTag<int32_t>;
using D32 = hn::ScalableTag<uint32_t>;
using D64 = hn::ScalableTag<uint64_t>;

namespace wide {

// The constructors are written out because GCC compiles implicit ones for the baseline, where it
// cannot inline Highway's.
template <class V>
struct VectorPair {
  HWY_INLINE VectorPair() {}
  HWY_INLINE VectorPair(V first, V second) : a(first), b(second) {}
  V a, b;
};

// Argument-dependent lookup finds Highway's own operations.
#define SHARDINIT_WIDE(Op)                                                \
  template <class V>                                                      \
  HWY_INLINE auto Op(VectorPair<V> x) {                                   \
    return VectorPair{Op(x.a), Op(x.b)};                                  \
  }                                                                       \
  template <class V>                                                      \
  HWY_INLINE auto Op(VectorPair<V> x, VectorPair<V> y) {                  \
    return VectorPair{Op(x.a, y.a), Op(x.b, y.b)};                        \
  }                                                                       \
  template <class M, class V>                                             \
  HWY_INLINE auto Op(VectorPair<M> x, VectorPair<V> y, VectorPair<V> z) { \
    return VectorPair{Op(x.a, y.a, z.a), Op(x.b, y.b, z.b)};              \
  }                                                                       \
  template <class D, class V>                                             \
  HWY_INLINE auto Op(D d, VectorPair<V> x) {                              \
    return VectorPair{Op(d, x.a), Op(d, x.b)};                            \
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
SHARDINIT_WIDE(Ge)
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
HWY_INLINE VectorPair<V> ShiftLeft(VectorPair<V> x) {
  return {ShiftLeft<bits>(x.a), ShiftLeft<bits>(x.b)};
}
template <int bits, class V>
HWY_INLINE VectorPair<V> ShiftRight(VectorPair<V> x) {
  return {ShiftRight<bits>(x.a), ShiftRight<bits>(x.b)};
}
template <int bits, class V>
HWY_INLINE VectorPair<V> RotateRight(VectorPair<V> x) {
  return {RotateRight<bits>(x.a), RotateRight<bits>(x.b)};
}
template <class D>
HWY_INLINE auto Set(D d, hn::TFromD<D> value) {
  return VectorPair{hn::Set(d, value), hn::Set(d, value)};
}
template <class D>
HWY_INLINE auto Load(D d, const hn::TFromD<D>* from) {
  return VectorPair{hn::Load(d, from), hn::Load(d, from + hn::Lanes(d))};
}
template <class D, class V>
HWY_INLINE void Store(VectorPair<V> x, D d, hn::TFromD<D>* to) {
  hn::Store(x.a, d, to);
  hn::Store(x.b, d, to + hn::Lanes(d));
}
template <class D, class M>
HWY_INLINE bool AllFalse(D d, VectorPair<M> x) {
  return AllFalse(d, Or(x.a, x.b));
}
template <class D, class M>
HWY_INLINE bool AllTrue(D d, VectorPair<M> x) {
  return AllTrue(d, And(x.a, x.b));
}

}  // namespace wide
}  // namespace shardinit::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
