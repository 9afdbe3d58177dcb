// Computes Threefry2x32-20 with JAX's counters: each element has its own counter, and its word is
// the XOR of the generator's two words. Blocks of four elements are in 64-bit lanes, as in
// philox-inl.h: elements 0 and 2 of a block share a lane of `even`, 1 and 3 a lane of `odd`.

HWY_BEFORE_NAMESPACE();
namespace shardinit::kernels::HWY_NAMESPACE {

using Pair32 = wide::VectorPair<hn::Vec<D32>>;

// Precomputed values for the elements of a draw whose counters have the same high word.
struct ThreefryKeys {
  static constexpr uint64_t kElementsPerHigh = uint64_t{1} << 32;

  ThreefryKeys(Stream stream, uint32_t high) {
    using namespace threefry2x32;
    const uint64_t key = jax_threefry::KeyOfDraw(stream);
    const uint32_t key0 = static_cast<uint32_t>(key), key1 = static_cast<uint32_t>(key >> 32);
    const uint32_t words[3] = {key0, key1, key0 ^ key1 ^ kParity};
    x0 = high + key0;
    const auto pair = [&](uint32_t of_low, uint32_t of_high) {
      return uint64_t{key1 + of_high} << 32 | (key1 + of_low);
    };
    even = pair(0, 2);
    odd = pair(1, 3);
    for (uint32_t group = 0; group < kGroups; ++group) {
      keys[group][0] = words[(group + 1) % 3];
      keys[group][1] = words[(group + 2) % 3] + group + 1;
    }
  }

  uint32_t x0;                              // the same for all counters, with the key added
  uint64_t even, odd;                       // added to the numbers of blocks' first elements
  uint32_t keys[threefry2x32::kGroups][2];  // added at the ends of groups
};

// Computes a round for two counters at a time, because the operations for one form a chain.
template <int rotation>
HWY_INLINE void ThreefryRound(Pair32& x0, Pair32& x1, Pair32& y0, Pair32& y1) {
  x0 = wide::Add(x0, x1);
  y0 = wide::Add(y0, y1);
  x1 = wide::Xor(wide::RotateRight<32 - rotation>(x1), x0);
  y1 = wide::Xor(wide::RotateRight<32 - rotation>(y1), y0);
}

template <int which>
HWY_INLINE void ThreefryGroup(const uint32_t (&key)[2], Pair32& x0, Pair32& x1, Pair32& y0,
                              Pair32& y1) {
  using threefry2x32::kRotations;
  ThreefryRound<kRotations[which][0]>(x0, x1, y0, y1);
  ThreefryRound<kRotations[which][1]>(x0, x1, y0, y1);
  ThreefryRound<kRotations[which][2]>(x0, x1, y0, y1);
  ThreefryRound<kRotations[which][3]>(x0, x1, y0, y1);
  const D32 d;
  x0 = wide::Add(x0, wide::Set(d, key[0]));
  y0 = wide::Add(y0, wide::Set(d, key[0]));
  x1 = wide::Add(x1, wide::Set(d, key[1]));
  y1 = wide::Add(y1, wide::Set(d, key[1]));
}

// Generates words as the overload for PhiloxKeys does (philox-inl.h).
HWY_INLINE void MakeWords(const ThreefryKeys& threefry, size_t blocks, Counters& counters,
                          Words& words) {
  const D32 d32;
  const D64 d64;
  const auto& keys = threefry.keys;
  for (size_t i = 0; i < blocks; i += BlocksAtOnce()) {
    const auto counter = wide::Load(d64, counters.block + i);
    wide::Store(wide::Add(counter, wide::Set(d64, kBatch)), d64, counters.block + i);
    // `first` contains the low half of the first element's number, twice.
    const auto first = wide::DupEven(wide::BitCast(d32, wide::ShiftLeft<2>(counter)));
    Pair32 x0 = wide::Set(d32, threefry.x0), y0 = x0;
    Pair32 x1 = wide::Add(first, wide::BitCast(d32, wide::Set(d64, threefry.even)));
    Pair32 y1 = wide::Add(first, wide::BitCast(d32, wide::Set(d64, threefry.odd)));
    ThreefryGroup<0>(keys[0], x0, x1, y0, y1);
    ThreefryGroup<1>(keys[1], x0, x1, y0, y1);
    ThreefryGroup<0>(keys[2], x0, x1, y0, y1);
    ThreefryGroup<1>(keys[3], x0, x1, y0, y1);
    ThreefryGroup<0>(keys[4], x0, x1, y0, y1);
    wide::Store(wide::Xor(x0, x1), d32, words.even + 2 * i);
    wide::Store(wide::Xor(y0, y1), d32, words.odd + 2 * i);
  }
}

}  // namespace shardinit::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
