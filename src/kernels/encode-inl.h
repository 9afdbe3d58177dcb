// Even and odd elements → stored elements in memory order, at any address.
// tensor/encode.cc says why the roundings are right; there is no NaN here.

HWY_BEFORE_NAMESPACE();
namespace shardinit::kernels::HWY_NAMESPACE {

using V1 = hn::Vec<DF>;
using U1 = hn::Vec<D32>;

// 16-bit elements: an even and an odd one share a 32-bit lane, so blocks stay in
// the order of the lanes.
template <class Rounding>
struct Encode16 {
  static constexpr size_t kBytes = 2;
  static constexpr bool kInterleaved = false;
  static HWY_INLINE void Store(V1 even, V1 odd, uint8_t* out) {
    const D32 du;
    const hn::Repartition<uint16_t, D32> du16;
    const auto low = hn::ShiftRight<16>(Rounding::InHighHalf(even));
    const auto high = Rounding::InHighHalf(odd);
    const auto both = hn::OddEven(hn::BitCast(du16, high), hn::BitCast(du16, low));
    hn::StoreU(hn::BitCast(du, both), du, reinterpret_cast<uint32_t*>(out));
  }
};

struct Bf16Rounding {
  static HWY_INLINE U1 InHighHalf(V1 value) {
    const D32 du;
    const auto bits = hn::BitCast(du, value);
#if HWY_TARGET == HWY_AVX3
    const auto odd = hn::TestBit(bits, hn::Set(du, 0x10000));
    return hn::Add(bits, hn::IfThenElse(odd, hn::Set(du, 0x8000), hn::Set(du, 0x7FFF)));
#else
    const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(du, 1));
    return hn::Add(hn::Add(bits, hn::Set(du, 0x7FFF)), odd);
#endif
  }
};

// Floats of less exponent bits than f32: tensor/encode.cc has the same steps.
template <DType dtype>
struct SmallRounding {
  using T = SmallFloat<dtype>;

  // Without the sign.
  static HWY_INLINE U1 Magnitude(V1 value) {
    const DF df;
    const D32 du;
    const auto magnitude = hn::Min(hn::Abs(value), hn::BitCast(df, hn::Set(du, T::kBeyond)));
    const auto sum = hn::Add(magnitude, hn::BitCast(df, hn::Set(du, T::kPower)));
    const auto small = hn::Sub(hn::BitCast(du, sum), hn::Set(du, T::kPower));

    const auto rebiased = hn::Sub(hn::BitCast(du, magnitude), hn::Set(du, T::kRebias));
    const auto lowest = hn::And(hn::ShiftRight<T::kDropped>(rebiased), hn::Set(du, 1));
    const auto half = hn::Set(du, (1u << (T::kDropped - 1)) - 1);
    const auto normal = hn::ShiftRight<T::kDropped>(hn::Add(hn::Add(rebiased, half), lowest));

    const auto smallest_normal = hn::BitCast(df, hn::Set(du, T::kSmallestNormal));
    const auto is_small = hn::RebindMask(du, hn::Lt(magnitude, smallest_normal));
    return hn::IfThenElse(is_small, small, normal);
  }

  static HWY_INLINE U1 InHighHalf(V1 value) {
    const D32 du;
    const auto sign = hn::And(hn::BitCast(du, value), hn::Set(du, 0x80000000u));
    return hn::Or(hn::ShiftLeft<16>(Magnitude(value)), sign);
  }

  // 8 bits, all others 0.
  static HWY_INLINE U1 InLowByte(V1 value) {
    const D32 du;
    const auto sign = hn::ShiftRight<31>(hn::BitCast(du, value));
    return hn::Or(Magnitude(value), hn::ShiftLeft<7>(sign));
  }
};

using EncodeBf16 = Encode16<Bf16Rounding>;
using EncodeF16 = Encode16<SmallRounding<DType::f16>>;

// 8-bit elements: an even and an odd one make the 16 bits that stay of a lane.
template <class Rounding>
struct Encode8 {
  static constexpr size_t kBytes = 1;
  static constexpr bool kInterleaved = false;
  static HWY_INLINE void Store(V1 even, V1 odd, uint8_t* out) {
    const DI di;
    const hn::Rebind<uint16_t, DI> du16;
    const hn::Repartition<uint8_t, decltype(du16)> du8;
    const auto pairs =
        hn::Or(Rounding::InLowByte(even), hn::ShiftLeft<8>(Rounding::InLowByte(odd)));
    hn::StoreU(hn::BitCast(du8, hn::DemoteTo(du16, hn::BitCast(di, pairs))), du8, out);
  }
};

using EncodeF8E4M3Fn = Encode8<SmallRounding<DType::f8e4m3fn>>;
using EncodeF8E5M2 = Encode8<SmallRounding<DType::f8e5m2>>;

struct EncodeF32 {
  static constexpr size_t kBytes = 4;
  static constexpr bool kInterleaved = true;
  static HWY_INLINE void Store(V1 even, V1 odd, uint8_t* out) {
    const DF df;
    float* const to = reinterpret_cast<float*>(out);
    hn::StoreU(hn::InterleaveLower(df, even, odd), df, to);
    hn::StoreU(hn::InterleaveUpper(df, even, odd), df, to + hn::Lanes(df));
  }
};

struct EncodeF64 {
  static constexpr size_t kBytes = 8;
  static constexpr bool kInterleaved = true;
  static HWY_INLINE void StoreOne(V1 values, double* to) {
    const hn::ScalableTag<double> dd;
    const hn::Rebind<float, decltype(dd)> half;
    hn::StoreU(hn::PromoteTo(dd, hn::LowerHalf(half, values)), dd, to);
    hn::StoreU(hn::PromoteTo(dd, hn::UpperHalf(half, values)), dd, to + hn::Lanes(dd));
  }
  static HWY_INLINE void Store(V1 even, V1 odd, uint8_t* out) {
    const DF df;
    double* const to = reinterpret_cast<double*>(out);
    StoreOne(hn::InterleaveLower(df, even, odd), to);
    StoreOne(hn::InterleaveUpper(df, even, odd), to + hn::Lanes(df));
  }
};

template <class Encoder>
HWY_INLINE void StoreElements(VF even, VF odd, uint8_t* out) {
  Encoder::Store(wide::Part<0>(even), wide::Part<0>(odd), out);
  if constexpr (wide::kVectors == 2) {
    const size_t bytes = 2 * hn::Lanes(DF()) * Encoder::kBytes;
    Encoder::Store(wide::Part<1>(even), wide::Part<1>(odd), out + bytes);
  }
}

}  // namespace shardinit::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
