// Converts words of engines to f32 values, vectors at a time: the even and the odd elements of some
// blocks of words. The formulas are in rng/samplers-inl.h and rng/jax-samplers-inl.h.

HWY_BEFORE_NAMESPACE();
namespace shardinit::kernels::HWY_NAMESPACE {

using V1 = hn::Vec<DF>;
using U1 = hn::Vec<D32>;
using VF = wide::Floats<wide::VectorPair<V1>>;
using VU = wide::Words<wide::VectorPair<U1>>;

// The neutral operand: adding it, or combining with it by XOR, changes nothing.
struct NoOperand {};
template <class V>
HWY_INLINE wide::Floats<V> operator+(wide::Floats<V> x, NoOperand) {
  return x;
}
template <class V>
HWY_INLINE wide::Words<V> operator^(wide::Words<V> x, NoOperand) {
  return x;
}

// Omits adding a mean of 0: even without it no element is -0, unless std is 0.
struct NormalAboutZero {
  explicit NormalAboutZero(const NormalSampler& s) : scale(s.scale) {}
  static constexpr NoOperand mean = {};
  float scale;
};

// The constants of both halves, if the cut-offs are equally far on both sides.
struct OfBothHalves {
  HWY_INLINE OfBothHalves operator[](int) const { return *this; }
  float value;
};
template <class N, int bit, class V>
HWY_INLINE N Select(wide::BitFlags<bit, V>, OfBothHalves yes, OfBothHalves) {
  return yes.value;
}
struct SymmetricTruncatedNormal {
  explicit SymmetricTruncatedNormal(const TruncatedNormalSampler& s)
      : mean(s.mean),
        std(s.std),
        tail{s.tail[0]},
        step{s.step[0]},
        z_low(s.z_low),
        z_high(s.z_high) {}
  float mean, std;
  OfBothHalves tail, step;
  static constexpr uint32_t sign_mask = 0x80000000;
  static constexpr NoOperand sign_flip = {};
  float z_low, z_high;
};

// even elements, odd elements
using Elements = wide::VectorPair<VF>;

struct OfPhilox {
  using Keys = PhiloxKeys;
  static HWY_INLINE Elements Make(const BitsSampler&, VU even, VU odd) {
    return {FromBits(even), FromBits(odd)};
  }
  static HWY_INLINE Elements Make(const UniformSampler& s, VU even, VU odd) {
    return {samplers::Uniform<VF>(s, even), samplers::Uniform<VF>(s, odd)};
  }
  static HWY_INLINE Elements Make(const NormalSampler& s, VU even, VU odd) {
    return MakeNormal(s, even, odd);
  }
  static HWY_INLINE Elements Make(const NormalAboutZero& s, VU even, VU odd) {
    return MakeNormal(s, even, odd);
  }
  template <class S>
  static HWY_INLINE Elements MakeNormal(const S& s, VU even, VU odd) {
    return {samplers::Normal<VF>(s, even, odd, false), samplers::Normal<VF>(s, even, odd, true)};
  }
  template <class S>
  static HWY_INLINE Elements Make(const S& s, VU even, VU odd) {
    return {samplers::TruncatedNormal<VF>(s, even), samplers::TruncatedNormal<VF>(s, odd)};
  }
};

// Horner's polynomials are long chains of dependent operations, so four vectors alternate.
struct OfJax {
  using Keys = ThreefryKeys;
  using F = wide::Floats<wide::VectorPair<wide::VectorPair<V1>>>;
  using U = wide::Words<wide::VectorPair<wide::VectorPair<U1>>>;
  template <class S>
  static HWY_INLINE Elements Make(const S& s, VU even, VU odd) {
    const F both = samplers::Jax<F>(s, U(wide::VectorPair(even.v, odd.v)));
    return {both.v.a, both.v.b};
  }
};

}  // namespace shardinit::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
