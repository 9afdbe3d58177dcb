// Words → f32 values, a vector at a time. rng/reference.cc is the same code for
// one element, with the reasons; here only what differs in form. Each operation
// below is one operation there, in the same order: no MulAdd, which Highway fuses on
// some instruction sets only.

HWY_BEFORE_NAMESPACE();
namespace shardinit::kernels::HWY_NAMESPACE {

using DF = hn::ScalableTag<float>;
using DI = hn::ScalableTag<int32_t>;
using VF = wide::Of<hn::Vec<DF>>;

HWY_INLINE VF SignedToF32(VU words) { return wide::ConvertTo(DF(), wide::BitCast(DI(), words)); }

// By one bit of each word.
template <int bit>
HWY_INLINE VF Choose(VU words, VF if_set, VF if_clear) {
  const DF df;
#if HWY_TARGET == HWY_AVX3
  const auto mask = wide::TestBit(words, wide::Set(D32(), 1u << bit));
  return wide::IfThenElse(wide::RebindMask(df, mask), if_set, if_clear);
#else
  const auto top = wide::BitCast(DI(), wide::ShiftLeft<31 - bit>(words));
#if HWY_TARGET == HWY_SSSE3
  // Highway 1.0.3's IfNegativeThenElse is wrong here: it selects single bits.
  return wide::IfVecThenElse(wide::BitCast(df, wide::BroadcastSignBit(top)), if_set, if_clear);
#else
  return wide::IfNegativeThenElse(wide::BitCast(df, top), if_set, if_clear);
#endif
#endif
}

// c0 + c1 x + … in pairs of pairs.
HWY_INLINE VF Polynomial(const float* c, VF x, VF x2) {
  const DF df;
  const auto low = wide::Add(wide::Set(df, c[0]), wide::Mul(wide::Set(df, c[1]), x));
  const auto high = wide::Add(wide::Set(df, c[2]), wide::Mul(wide::Set(df, c[3]), x));
  return wide::Add(low, wide::Mul(high, x2));
}

HWY_INLINE VF Polynomial(const float* c, VF x, VF x2, VF x4) {
  return wide::Add(Polynomial(c, x, x2), wide::Mul(Polynomial(c + 4, x, x2), x4));
}

HWY_INLINE VF Polynomial(const float (&c)[4], VF x) { return Polynomial(c, x, wide::Mul(x, x)); }

HWY_INLINE VF Polynomial(const float (&c)[8], VF x) {
  const auto x2 = wide::Mul(x, x);
  return Polynomial(c, x, x2, wide::Mul(x2, x2));
}

HWY_INLINE VF Polynomial(const float (&c)[9], VF x) {
  const auto x2 = wide::Mul(x, x);
  const auto x4 = wide::Mul(x2, x2);
  const auto last = wide::Mul(wide::Set(DF(), c[8]), wide::Mul(x4, x4));
  return wide::Add(Polynomial(c, x, x2, x4), last);
}

template <int scale, int below>
HWY_INLINE VF MinusLog2(VF x) {
  using namespace coefficients;
  const DF df;
  const DI di;
  constexpr int32_t kOrigin = static_cast<int32_t>(kTwoThirds) + scale * (1 << 23) + below;
  const auto shifted = wide::Sub(wide::BitCast(di, x), wide::Set(di, kOrigin));
  const auto e = wide::ConvertTo(df, wide::ShiftRight<23>(shifted));
  const auto mantissa = wide::And(shifted, wide::Set(di, 0x7FFFFF));
  const auto m = wide::BitCast(df, wide::Add(mantissa, wide::Set(di, kTwoThirds)));
  const auto f = wide::Sub(m, wide::Set(df, 1.0f));
  return wide::Sub(wide::Mul(f, Polynomial(kLog, f)), e);
}

// A kernel turns the even and the odd words of some blocks into the even and
// the odd elements.

struct BitsKernel {
  explicit BitsKernel(const BitsSampler&) {}
  HWY_INLINE void operator()(VU even, VU odd, VF& even_out, VF& odd_out) const {
    even_out = wide::BitCast(DF(), even);
    odd_out = wide::BitCast(DF(), odd);
  }
};

struct UniformKernel {
  // u * span and word * (2^-24 * span) are the same: a power of two is exact.
  explicit UniformKernel(const UniformSampler& sampler)
      : s(sampler), scale(sampler.span * 0x1p-24f) {}
  HWY_INLINE VF One(VU words) const {
    const DF df;
    const auto scaled = wide::Mul(SignedToF32(wide::ShiftRight<8>(words)), wide::Set(df, scale));
    return wide::Min(wide::Add(wide::Set(df, s.low), scaled), wide::Set(df, s.last));
  }
  HWY_INLINE void operator()(VU even, VU odd, VF& even_out, VF& odd_out) const {
    even_out = One(even);
    odd_out = One(odd);
  }
  UniformSampler s;
  float scale;
};

// A mean of 0 is not added: no element is -0 before, unless std is 0.
template <bool kZeroMean>
struct NormalKernel {
  explicit NormalKernel(const NormalSampler& sampler) : s(sampler) {}
  HWY_INLINE void operator()(VU even, VU odd, VF& even_out, VF& odd_out) const {
    using namespace coefficients;
    const DF df;
    const D32 du;
    const auto u = wide::Abs(wide::Add(SignedToF32(even), wide::Set(df, 0.25f)));
    const auto radius = wide::Mul(wide::Sqrt(MinusLog2<31, 1>(u)), wide::Set(df, s.scale));

    const auto x = wide::Mul(SignedToF32(odd), wide::Set(df, 0x1p-31f));
    const auto y = wide::Mul(x, x);
    const auto sine = wide::Mul(x, Polynomial(kSin, y));
    const auto cosine = Polynomial(kCos, y);
    const auto sign = wide::And(wide::ShiftLeft<30>(odd), wide::Set(du, 0x80000000u));
    const auto first = wide::BitCast(df, wide::Xor(wide::BitCast(du, cosine), sign));

    even_out = wide::Mul(radius, Choose<0>(odd, sine, first));
    odd_out = wide::Mul(radius, Choose<0>(odd, first, sine));
    if (!kZeroMean) {
      even_out = wide::Add(even_out, wide::Set(df, s.mean));
      odd_out = wide::Add(odd_out, wide::Set(df, s.mean));
    }
  }
  NormalSampler s;
};

HWY_INLINE VF CentralRatio(VF v) {
  using namespace coefficients;
  const DF df;
  const auto n4 = wide::Mul(v, wide::Set(df, kNumerator[4]));
  const auto n2 = wide::Mul(v, wide::Add(wide::Set(df, kNumerator[2]), n4));
  const auto n_even = wide::Add(wide::Set(df, kNumerator[0]), n2);
  const auto n_odd =
      wide::Add(wide::Set(df, kNumerator[1]), wide::Mul(v, wide::Set(df, kNumerator[3])));
  const auto d2 = wide::Mul(v, wide::Add(wide::Set(df, kDenominator[2]), v));
  const auto d_even = wide::Add(wide::Set(df, kDenominator[0]), d2);
  const auto d_odd =
      wide::Add(wide::Set(df, kDenominator[1]), wide::Mul(v, wide::Set(df, kDenominator[3])));
  const auto s = wide::Sqrt(v);
  return wide::Div(wide::Add(n_even, wide::Mul(s, n_odd)), wide::Add(d_even, wide::Mul(s, d_odd)));
}

HWY_INLINE VF TailRatio(VF v) {
  using namespace coefficients;
  const DF df;
  const auto t = wide::Sqrt(MinusLog2<0, 0>(v));
  const auto inverse = wide::Div(wide::Set(df, 1.0f), t);
  const auto r = wide::Sub(inverse, wide::Set(df, kTailCentre));
  return wide::Add(wide::Mul(wide::Set(df, kSqrt2Ln2), t), Polynomial(kTail, r));
}

// Where the cut-offs are as far on one side as on the other, the halves have
// the same constants and one bound: the same bits with fewer operations.
template <bool kSymmetric>
struct TruncatedNormalKernel {
  explicit TruncatedNormalKernel(const TruncatedNormalSampler& sampler) : s(sampler) {}
  HWY_INLINE VF PerHalf(VU words, const float (&constants)[2]) const {
    const DF df;
    const auto clear = wide::Set(df, constants[0]);
    return kSymmetric ? clear : Choose<31>(words, wide::Set(df, constants[1]), clear);
  }
  HWY_INLINE VF One(VU words) const {
    using namespace coefficients;
    const DF df;
    const D32 du;
    const auto place = SignedToF32(wide::And(words, wide::Set(du, 0x7FFFFFFFu)));
    const auto q = wide::Add(PerHalf(words, s.tail), wide::Mul(place, PerHalf(words, s.step)));
    const auto p = wide::Sub(wide::Set(df, 1.0f), q);
    const auto x = wide::Sub(p, q);
    const auto v = wide::Mul(q, p);

    auto ratio = CentralRatio(v);
    const auto in_tail = wide::Lt(v, wide::Set(df, kCentralEnd));
    if (HWY_UNLIKELY(!wide::AllFalse(df, in_tail))) {
      ratio = wide::IfThenElse(in_tail, TailRatio(v), ratio);
    }
    auto distance = wide::Mul(x, ratio);
    const auto high = wide::Set(df, s.z_high);
    if (kSymmetric) distance = wide::Min(distance, high);

    const auto sign =
        wide::Xor(wide::And(words, wide::Set(du, s.sign_mask)), wide::Set(du, s.sign_flip));
    auto z = wide::BitCast(df, wide::Xor(wide::BitCast(du, distance), sign));
    if (!kSymmetric) z = wide::Min(wide::Max(z, wide::Set(df, s.z_low)), high);
    return wide::Add(wide::Mul(z, wide::Set(df, s.std)), wide::Set(df, s.mean));
  }
  HWY_INLINE void operator()(VU even, VU odd, VF& even_out, VF& odd_out) const {
    even_out = One(even);
    odd_out = One(odd);
  }
  TruncatedNormalSampler s;
};

}  // namespace shardinit::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
