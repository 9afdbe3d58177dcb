// Words → f32 values, a vector at a time. rng/reference.cc is the same code for
// one element, with the reasons; here only what differs in form. Each operation
// below is one operation there, in the same order: no MulAdd, which Highway fuses on
// some instruction sets only.

HWY_BEFORE_NAMESPACE();
namespace shardinit::kernels::HWY_NAMESPACE {

using DF = hn::ScalableTag<float>;
using DI = hn::ScalableTag<int32_t>;
using VF = hn::Vec<DF>;
using VU = hn::Vec<D32>;

HWY_INLINE VF SignedToF32(VU words) { return hn::ConvertTo(DF(), hn::BitCast(DI(), words)); }

// By one bit of each word.
template <int bit>
HWY_INLINE VF Choose(VU words, VF if_set, VF if_clear) {
  const DF df;
#if HWY_TARGET == HWY_AVX3
  const auto mask = hn::TestBit(words, hn::Set(D32(), 1u << bit));
  return hn::IfThenElse(hn::RebindMask(df, mask), if_set, if_clear);
#else
  const auto top = hn::BitCast(DI(), hn::ShiftLeft<31 - bit>(words));
#if HWY_TARGET == HWY_SSSE3
  // Highway 1.0.3's IfNegativeThenElse is wrong here: it selects single bits.
  return hn::IfVecThenElse(hn::BitCast(df, hn::BroadcastSignBit(top)), if_set, if_clear);
#else
  return hn::IfNegativeThenElse(hn::BitCast(df, top), if_set, if_clear);
#endif
#endif
}

// c0 + c1 x + … in pairs of pairs.
HWY_INLINE VF Polynomial(const float* c, VF x, VF x2) {
  const DF df;
  const auto low = hn::Add(hn::Set(df, c[0]), hn::Mul(hn::Set(df, c[1]), x));
  const auto high = hn::Add(hn::Set(df, c[2]), hn::Mul(hn::Set(df, c[3]), x));
  return hn::Add(low, hn::Mul(high, x2));
}

HWY_INLINE VF Polynomial(const float* c, VF x, VF x2, VF x4) {
  return hn::Add(Polynomial(c, x, x2), hn::Mul(Polynomial(c + 4, x, x2), x4));
}

HWY_INLINE VF Polynomial(const float (&c)[4], VF x) { return Polynomial(c, x, hn::Mul(x, x)); }

HWY_INLINE VF Polynomial(const float (&c)[8], VF x) {
  const auto x2 = hn::Mul(x, x);
  return Polynomial(c, x, x2, hn::Mul(x2, x2));
}

HWY_INLINE VF Polynomial(const float (&c)[9], VF x) {
  const auto x2 = hn::Mul(x, x);
  const auto x4 = hn::Mul(x2, x2);
  const auto last = hn::Mul(hn::Set(DF(), c[8]), hn::Mul(x4, x4));
  return hn::Add(Polynomial(c, x, x2, x4), last);
}

template <int scale, int below>
HWY_INLINE VF MinusLog2(VF x) {
  using namespace coefficients;
  const DF df;
  const DI di;
  constexpr int32_t kOrigin = static_cast<int32_t>(kTwoThirds) + scale * (1 << 23) + below;
  const auto shifted = hn::Sub(hn::BitCast(di, x), hn::Set(di, kOrigin));
  const auto e = hn::ConvertTo(df, hn::ShiftRight<23>(shifted));
  const auto mantissa = hn::And(shifted, hn::Set(di, 0x7FFFFF));
  const auto m = hn::BitCast(df, hn::Add(mantissa, hn::Set(di, kTwoThirds)));
  const auto f = hn::Sub(m, hn::Set(df, 1.0f));
  return hn::Sub(hn::Mul(f, Polynomial(kLog, f)), e);
}

// A kernel turns the even and the odd words of some blocks into the even and
// the odd elements.

struct BitsKernel {
  explicit BitsKernel(const BitsSampler&) {}
  HWY_INLINE void operator()(VU even, VU odd, VF& even_out, VF& odd_out) const {
    even_out = hn::BitCast(DF(), even);
    odd_out = hn::BitCast(DF(), odd);
  }
};

struct UniformKernel {
  explicit UniformKernel(const UniformSampler& sampler) : s(sampler) {}
  HWY_INLINE VF One(VU words) const {
    const DF df;
    const auto u = hn::Mul(SignedToF32(hn::ShiftRight<8>(words)), hn::Set(df, 0x1p-24f));
    const auto value = hn::Add(hn::Set(df, s.low), hn::Mul(u, hn::Set(df, s.span)));
    return hn::Min(value, hn::Set(df, s.last));
  }
  HWY_INLINE void operator()(VU even, VU odd, VF& even_out, VF& odd_out) const {
    even_out = One(even);
    odd_out = One(odd);
  }
  UniformSampler s;
};

struct NormalKernel {
  explicit NormalKernel(const NormalSampler& sampler) : s(sampler) {}
  HWY_INLINE void operator()(VU even, VU odd, VF& even_out, VF& odd_out) const {
    using namespace coefficients;
    const DF df;
    const D32 du;
    const auto u = hn::Abs(hn::Add(SignedToF32(even), hn::Set(df, 0.25f)));
    const auto radius = hn::Mul(hn::Sqrt(MinusLog2<31, 1>(u)), hn::Set(df, s.scale));

    const auto x = hn::Mul(SignedToF32(odd), hn::Set(df, 0x1p-31f));
    const auto y = hn::Mul(x, x);
    const auto sine = hn::Mul(x, Polynomial(kSin, y));
    const auto cosine = Polynomial(kCos, y);
    const auto sign = hn::And(hn::ShiftLeft<30>(odd), hn::Set(du, 0x80000000u));
    const auto first = hn::BitCast(df, hn::Xor(hn::BitCast(du, cosine), sign));

    const auto mean = hn::Set(df, s.mean);
    even_out = hn::Add(hn::Mul(radius, Choose<0>(odd, sine, first)), mean);
    odd_out = hn::Add(hn::Mul(radius, Choose<0>(odd, first, sine)), mean);
  }
  NormalSampler s;
};

HWY_INLINE VF CentralRatio(VF v) {
  using namespace coefficients;
  const DF df;
  const auto n4 = hn::Mul(v, hn::Set(df, kNumerator[4]));
  const auto n2 = hn::Mul(v, hn::Add(hn::Set(df, kNumerator[2]), n4));
  const auto n_even = hn::Add(hn::Set(df, kNumerator[0]), n2);
  const auto n_odd =
      hn::Add(hn::Set(df, kNumerator[1]), hn::Mul(v, hn::Set(df, kNumerator[3])));
  const auto d2 = hn::Mul(v, hn::Add(hn::Set(df, kDenominator[2]), v));
  const auto d_even = hn::Add(hn::Set(df, kDenominator[0]), d2);
  const auto d_odd =
      hn::Add(hn::Set(df, kDenominator[1]), hn::Mul(v, hn::Set(df, kDenominator[3])));
  const auto s = hn::Sqrt(v);
  return hn::Div(hn::Add(n_even, hn::Mul(s, n_odd)), hn::Add(d_even, hn::Mul(s, d_odd)));
}

HWY_INLINE VF TailRatio(VF v) {
  using namespace coefficients;
  const DF df;
  const auto t = hn::Sqrt(MinusLog2<0, 0>(v));
  const auto r = hn::Div(hn::Set(df, 1.0f), t);
  return hn::Add(hn::Mul(hn::Set(df, kSqrt2Ln2), t), Polynomial(kTail, r));
}

// Where the cut-offs are as far on one side as on the other, the halves have
// the same constants and one bound: the same bits with fewer operations.
template <bool kSymmetric>
struct TruncatedNormalKernel {
  explicit TruncatedNormalKernel(const TruncatedNormalSampler& sampler) : s(sampler) {}
  HWY_INLINE VF PerHalf(VU words, const float (&constants)[2]) const {
    const DF df;
    const auto clear = hn::Set(df, constants[0]);
    return kSymmetric ? clear : Choose<31>(words, hn::Set(df, constants[1]), clear);
  }
  HWY_INLINE VF One(VU words) const {
    using namespace coefficients;
    const DF df;
    const D32 du;
    const auto place = SignedToF32(hn::And(words, hn::Set(du, 0x7FFFFFFFu)));
    const auto q = hn::Add(PerHalf(words, s.tail), hn::Mul(place, PerHalf(words, s.step)));
    const auto p = hn::Sub(hn::Set(df, 1.0f), q);
    const auto x = hn::Sub(p, q);
    const auto v = hn::Mul(q, p);

    auto ratio = CentralRatio(v);
    const auto in_tail = hn::Lt(v, hn::Set(df, kCentralEnd));
    if (HWY_UNLIKELY(!hn::AllFalse(df, in_tail))) {
      ratio = hn::IfThenElse(in_tail, TailRatio(v), ratio);
    }
    auto distance = hn::Mul(x, ratio);
    const auto high = hn::Set(df, s.z_high);
    if (kSymmetric) distance = hn::Min(distance, high);

    const auto sign =
        hn::Xor(hn::And(words, hn::Set(du, s.sign_mask)), hn::Set(du, s.sign_flip));
    auto z = hn::BitCast(df, hn::Xor(hn::BitCast(du, distance), sign));
    if (!kSymmetric) z = hn::Min(hn::Max(z, hn::Set(df, s.z_low)), high);
    return hn::Add(hn::Mul(z, hn::Set(df, s.std)), hn::Set(df, s.mean));
  }
  HWY_INLINE void operator()(VU even, VU odd, VF& even_out, VF& odd_out) const {
    even_out = One(even);
    odd_out = One(odd);
  }
  TruncatedNormalSampler s;
};

}  // namespace shardinit::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
