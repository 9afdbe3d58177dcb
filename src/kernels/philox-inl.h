// Computes Philox4x32-10, one block per 64-bit lane. The -inl.h files of kernels have no include
// guard: each instruction set includes them once.
//
// A round multiplies two of the four words x0…x3 by constants, 32 x 32 → 64 bits, and mixes the
// high halves with the other two words. Each word has its own vector with 64-bit lanes. So MulEven,
// which multiplies the low halves of the lanes and which every instruction set has, returns whole
// products. The products are directly the new x1 and x3, because nothing reads the high half of a
// lane. Only the high halves of products need a shift. At the end x0, x2 and x1, x3 share vectors:
//
//   even = x0 x2 | x0 x2 | …      odd = x1 x3 | x1 x3 | …
//
// Interleaving the two inside 128-bit blocks then gives words in the order of elements, if Slot
// assigned the blocks' counters to the lanes.

HWY_BEFORE_NAMESPACE();
namespace shardinit::kernels::HWY_NAMESPACE {

// The number of blocks generated at a time. There are enough to hide that each round waits for the
// last, and few enough that the words stay in the L1 cache. It is a multiple of all lane counts.
inline constexpr size_t kBatch = 128;

struct Counters {
  HWY_ALIGN uint64_t block[kBatch];
};
struct Words {
  HWY_ALIGN uint32_t even[2 * kBatch];
  HWY_ALIGN uint32_t odd[2 * kBatch];
};

// Precomputed values for the blocks of a stream whose counters have the same high word. Then three
// of the counter's four words are constants. So are the words that only they determine, until round
// 3: x0 and x1 after round 1, x3 after round 2. Each is folded into the next key that it meets.
struct PhiloxKeys {
  static constexpr uint64_t kElementsPerHigh = uint64_t{4} << 32;

  PhiloxKeys(Stream stream, uint32_t high) {
    using namespace philox4x32;
    uint32_t key0 = static_cast<uint32_t>(stream.key);
    uint32_t key1 = static_cast<uint32_t>(stream.key >> 32);
    for (int round = 0; round < kRounds; ++round) {
      keys[round][0] = key0;
      keys[round][1] = key1;
      key0 += kWeyl0;
      key1 += kWeyl1;
    }
    const uint64_t product1 = uint64_t{kMultiplier1} * stream.draw;
    const uint64_t x0 = (product1 >> 32) ^ high ^ keys[0][0];
    const uint64_t product0 = uint64_t{kMultiplier0} * x0;
    keys[1][0] ^= product1 & 0xFFFFFFFF;
    keys[1][1] ^= product0 >> 32;
    keys[2][1] ^= product0 & 0xFFFFFFFF;
    keys[kRounds - 1][1] <<= 32;  // MakeWords needs the last x2 in the high half.
  }
  uint64_t keys[philox4x32::kRounds][2];
};

HWY_INLINE size_t BlocksAtOnce() { return 2 * hn::Lanes(D64()); }

// Returns the lane, within a vector of blocks, of its k-th block in memory order. Interleaving
// yields the low 64-bit lanes of all 128-bit blocks first, then the high ones.
HWY_INLINE size_t Slot(size_t k, bool interleaved) {
  const size_t n = hn::Lanes(D64());
  const size_t vector = k / n * n, i = k % n;
  return vector + (interleaved ? 2 * (i % (n / 2)) + i / (n / 2) : i);
}

// Generates `words` from the counters of the first `blocks` blocks, a multiple of BlocksAtOnce().
// Advances the counters to the next batch, so a long run sets them once.
HWY_INLINE void MakeWords(const PhiloxKeys& philox, size_t blocks, Counters& counters,
                          Words& words) {
  using namespace philox4x32;
  const D32 d32;
  const D64 d64;
  const auto& keys = philox.keys;
  const auto multiplier0 = wide::Set(d32, kMultiplier0);
  const auto multiplier1 = wide::Set(d32, kMultiplier1);
  for (size_t i = 0; i < blocks; i += BlocksAtOnce()) {
    // Rounds 1 to 3 omit the parts that the keys already contain.
    const auto counter = wide::Load(d64, counters.block + i);
    wide::Store(wide::Add(counter, wide::Set(d64, kBatch)), d64, counters.block + i);
    auto product0 = wide::MulEven(wide::BitCast(d32, counter), multiplier0);
    auto x2 = wide::Xor(wide::ShiftRight<32>(product0), wide::Set(d64, keys[0][1]));
    auto product1 = wide::MulEven(wide::BitCast(d32, x2), multiplier1);
    auto x0 = wide::Xor(wide::ShiftRight<32>(product1), wide::Set(d64, keys[1][0]));
    x2 = wide::Xor(product0, wide::Set(d64, keys[1][1]));
    auto x1 = product1;
    product0 = wide::MulEven(wide::BitCast(d32, x0), multiplier0);
    product1 = wide::MulEven(wide::BitCast(d32, x2), multiplier1);
    x0 = wide::Xor3(wide::ShiftRight<32>(product1), x1, wide::Set(d64, keys[2][0]));
    x2 = wide::Xor(wide::ShiftRight<32>(product0), wide::Set(d64, keys[2][1]));
    x1 = product1;
    auto x3 = product0;

    HWY_UNROLL(6)
    for (int round = 3; round < kRounds - 1; ++round) {
      product0 = wide::MulEven(wide::BitCast(d32, x0), multiplier0);
      product1 = wide::MulEven(wide::BitCast(d32, x2), multiplier1);
      x0 = wide::Xor3(wide::ShiftRight<32>(product1), x1, wide::Set(d64, keys[round][0]));
      x2 = wide::Xor3(wide::ShiftRight<32>(product0), x3, wide::Set(d64, keys[round][1]));
      x1 = product1;
      x3 = product0;
    }

    // Round 10 leaves x2 in the high halves. Shifting x3 up avoids shifting the product down and
    // the sum up.
    product0 = wide::MulEven(wide::BitCast(d32, x0), multiplier0);
    product1 = wide::MulEven(wide::BitCast(d32, x2), multiplier1);
    x0 = wide::Xor3(wide::ShiftRight<32>(product1), x1, wide::Set(d64, keys[kRounds - 1][0]));
    x2 = wide::Xor3(product0, wide::ShiftLeft<32>(x3), wide::Set(d64, keys[kRounds - 1][1]));
    x3 = wide::ShiftLeft<32>(product0);
    const auto even = wide::OddEven(wide::BitCast(d32, x2), wide::BitCast(d32, x0));
    const auto odd = wide::OddEven(wide::BitCast(d32, x3), wide::BitCast(d32, product1));
    wide::Store(even, d32, words.even + 2 * i);
    wide::Store(odd, d32, words.odd + 2 * i);
  }
}

}  // namespace shardinit::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
