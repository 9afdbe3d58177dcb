// Stores even and odd elements in memory order, at any address. tensor/encode-inl.h rounds them.

HWY_BEFORE_NAMESPACE();
namespace shardinit::kernels::HWY_NAMESPACE {

HWY_INLINE wide::Words<U1> BitsOf(V1 values) { return hn::BitCast(D32(), values); }

// In 16-bit types, an even and an odd element share a 32-bit lane, so blocks keep the order of the
// lanes.
struct EncodeBf16 {
  static constexpr size_t kBytes = 2;
  static constexpr bool kInterleaved = false;
  static HWY_INLINE void Store(V1 even, V1 odd, uint8_t* out) {
    Join(ShiftRight<16>(encoding::UpperBf16(BitsOf(even))), encoding::UpperBf16(BitsOf(odd)), out);
  }
  // Stores the lower halves of `low` and the upper halves of `high`.
  static HWY_INLINE void Join(wide::Words<U1> low, wide::Words<U1> high, uint8_t* out) {
    const D32 du;
    const hn::Repartition<uint16_t, D32> du16;
    const auto both = hn::OddEven(hn::BitCast(du16, high.v), hn::BitCast(du16, low.v));
    hn::StoreU(hn::BitCast(du, both), du, reinterpret_cast<uint32_t*>(out));
  }
};

struct EncodeF16 {
  static constexpr size_t kBytes = 2;
  static constexpr bool kInterleaved = false;
  static HWY_INLINE void Store(V1 even, V1 odd, uint8_t* out) {
    const auto low = encoding::SmallFinite<DType::f16>(BitsOf(even));
    const auto high = encoding::SmallFinite<DType::f16>(BitsOf(odd));
    EncodeBf16::Join(low, ShiftLeft<16>(high), out);
  }
};

// In 8-bit types, an even and an odd element form the 16 bits that are kept from a lane.
template <DType dtype>
struct Encode8 {
  static constexpr size_t kBytes = 1;
  static constexpr bool kInterleaved = false;
  static HWY_INLINE void Store(V1 even, V1 odd, uint8_t* out) {
    const DI di;
    const hn::Rebind<uint16_t, DI> du16;
    const hn::Repartition<uint8_t, decltype(du16)> du8;
    const auto low = encoding::SmallFinite<dtype>(BitsOf(even));
    const auto high = encoding::SmallFinite<dtype>(BitsOf(odd));
    const auto pairs = low | ShiftLeft<8>(high);
    hn::StoreU(hn::BitCast(du8, hn::DemoteTo(du16, hn::BitCast(di, pairs.v))), du8, out);
  }
};

using EncodeF8E4M3Fn = Encode8<DType::f8e4m3fn>;
using EncodeF8E5M2 = Encode8<DType::f8e5m2>;

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
  Encoder::Store(even.v.a, odd.v.a, out);
  Encoder::Store(even.v.b, odd.v.b, out + 2 * hn::Lanes(DF()) * Encoder::kBytes);
}

}  // namespace shardinit::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
