// Words → f32 values as JAX makes them, a vector at a time: rng/jax-samplers-inl.h is the same code
// for one element, with the reasons.

HWY_BEFORE_NAMESPACE();
namespace shardinit::kernels::HWY_NAMESPACE {

// word → low + u * span, rounded once. `exact`: so are product and sum, and nothing is rounded.
template <bool exact>
HWY_INLINE VF JaxUniform(VU words, float span, float low) {
  const DF df;
  const auto k = SignedToF32(wide::ShiftRight<9>(words));
  const auto scale = wide::Set(df, span * 0x1p-23f);  // A power of two is exact.
#if HWY_NATIVE_FMA
  return wide::MulAdd(k, scale, wide::Set(df, low));
#else
  if (exact) return wide::Add(wide::Mul(k, scale), wide::Set(df, low));
  HWY_ALIGN float values[wide::kVectors * hn::MaxLanes(DF())];
  wide::Store(k, df, values);
  for (size_t i = 0; i < wide::kVectors * hn::Lanes(df); ++i) {
    values[i] = FusedMultiplyAdd(values[i], span * 0x1p-23f, low);
  }
  return wide::Load(df, values);
#endif
}

struct JaxUniformKernel {
  explicit JaxUniformKernel(const UniformSampler& sampler) : s(sampler) {}
  HWY_INLINE void operator()(VU even, VU odd, VF& even_out, VF& odd_out) const {
    even_out = JaxUniform<false>(even, s.span, s.low);
    odd_out = JaxUniform<false>(odd, s.span, s.low);
  }
  UniformSampler s;
};

// Each operation waits for the one before, so two polynomials go in turn.
HWY_INLINE void Horner(const float (&c)[9], VF x, VF y, VF& of_x, VF& of_y) {
  const DF df;
  of_x = of_y = wide::Set(df, c[8]);
  HWY_UNROLL(8)
  for (int i = 8; i-- > 0;) {
    const auto next = wide::Set(df, c[i]);
    of_x = wide::Mul(of_x, x);
    of_y = wide::Mul(of_y, y);
    of_x = wide::Add(next, of_x);
    of_y = wide::Add(next, of_y);
  }
}

HWY_INLINE VF SquareRest(VF u) { return wide::Sub(wide::Set(DF(), 1.0f), wide::Mul(u, u)); }

HWY_INLINE VF MinusLn(VF x) {
  return wide::Mul(MinusLog2<0, 0>(x), wide::Set(DF(), coefficients::kLn2));
}

// Of one of the tails, where `central` is not: one draw in 300.
HWY_INLINE VF WithTail(VF w, VF rest, VF ratio) {
  using namespace coefficients;
  const DF df;
  const auto t = wide::Sub(wide::Sqrt(w), wide::Set(df, 3.0f));
  VF tail, same;
  Horner(kErfInvTail, t, t, tail, same);
  const auto one = wide::Eq(rest, wide::Set(df, 0.0f));
  tail = wide::IfThenElse(one, wide::Set(df, kErfInvOne), tail);
  return wide::IfThenElse(wide::Lt(w, wide::Set(df, kErfInvCentralEnd)), ratio, tail);
}

// Of two vectors u and v.
HWY_INLINE void JaxStandardNormals(VF u, VF v, VF& of_u, VF& of_v) {
  using namespace coefficients;
  const DF df;
  const auto rest_u = SquareRest(u), rest_v = SquareRest(v);
  const auto w_u = MinusLn(rest_u), w_v = MinusLn(rest_v);
  const auto origin = wide::Set(df, 2.5f), end = wide::Set(df, kErfInvCentralEnd);
  VF ratio_u, ratio_v;
  Horner(kErfInvCentral, wide::Sub(w_u, origin), wide::Sub(w_v, origin), ratio_u, ratio_v);
  if (HWY_UNLIKELY(!wide::AllTrue(df, wide::Lt(wide::Max(w_u, w_v), end)))) {
    ratio_u = WithTail(w_u, rest_u, ratio_u);
    ratio_v = WithTail(w_v, rest_v, ratio_v);
  }
  const auto sqrt2 = wide::Set(df, kSqrt2);
  of_u = wide::Mul(wide::Mul(ratio_u, u), sqrt2);
  of_v = wide::Mul(wide::Mul(ratio_v, v), sqrt2);
}

HWY_INLINE VF JaxScaled(VF z, float std, float mean) {
  const DF df;
  return wide::Add(wide::Mul(z, wide::Set(df, std)), wide::Set(df, mean));
}

struct JaxNormalKernel {
  explicit JaxNormalKernel(const NormalSampler& sampler) : s(sampler) {}
  HWY_INLINE void operator()(VU even, VU odd, VF& even_out, VF& odd_out) const {
    using namespace samplers;
    JaxStandardNormals(JaxUniform<true>(even, kJaxNormalSpan, kJaxNormalLow),
                       JaxUniform<true>(odd, kJaxNormalSpan, kJaxNormalLow), even_out, odd_out);
    even_out = JaxScaled(even_out, s.std, s.mean);
    odd_out = JaxScaled(odd_out, s.std, s.mean);
  }
  NormalSampler s;
};

struct JaxTruncatedNormalKernel {
  explicit JaxTruncatedNormalKernel(const TruncatedNormalSampler& sampler) : s(sampler) {}
  HWY_INLINE VF Clamped(VF z) const {
    const DF df;
    return wide::Min(wide::Max(z, wide::Set(df, s.inside_low)), wide::Set(df, s.inside_high));
  }
  HWY_INLINE void operator()(VU even, VU odd, VF& even_out, VF& odd_out) const {
    JaxStandardNormals(JaxUniform<false>(even, s.erf_span, s.erf_low),
                       JaxUniform<false>(odd, s.erf_span, s.erf_low), even_out, odd_out);
    even_out = JaxScaled(Clamped(even_out), s.std, s.mean);
    odd_out = JaxScaled(Clamped(odd_out), s.std, s.mean);
  }
  TruncatedNormalSampler s;
};

}  // namespace shardinit::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
