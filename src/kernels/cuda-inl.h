// Does the work of one thread of a CUDA device: evaluates the formulas of rng/ and
// tensor/encode-inl.h for a few blocks of four elements at a time. Tests also compile it for CPUs.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <type_traits>

#include "base/number.h"
#include "kernels/cuda_fill.h"
#include "kernels/cuda_number.h"
#include "rng/coefficients.h"
#include "rng/jax-samplers-inl.h"
#include "rng/philox4x32.h"
#include "rng/sampler.h"
#include "rng/samplers-inl.h"
#include "rng/threefry2x32.h"
#include "tensor/dtype.h"
#include "tensor/encode-inl.h"

namespace shardinit::kernels::cuda {

inline constexpr int kBlocks = kCudaBlocks;

// The elements of the blocks in one turn.
struct Elements {
  float v[kBlocks][4];
};

// The numbers of blocks with the same high bits.
struct BlockNumbers {
  uint64_t high;  // the number of a block whose low bits are 0
  uint32_t low[kBlocks];
};

// With this many low bits, the high words of either engine's counters are constant.
inline constexpr int kLowBits = 30;

// Formulas that can skip work for some numbers get few numbers at once, because all threads of a
// warp do the work that one of them needs.
inline constexpr int kTogether = 2;

template <int n, class Make>
SHARDINIT_INLINE Floats<n> InParts(const Words<n>& words, const Make& make) {
  Floats<n> all;
  for (int part = 0; part < n; part += kTogether) {
    Words<kTogether> few;
    for (int i = 0; i < kTogether; ++i) few.v[i] = words.v[part + i];
    const Floats<kTogether> made = make(few);
    for (int i = 0; i < kTogether; ++i) all.v[part + i] = made.v[i];
  }
  return all;
}

// Each engine generates elements from a key.

struct Philox {
  // The words of the blocks, separately for elements with even and with odd numbers.
  struct Drawn {
    Words<2 * kBlocks> even, odd;
  };
  static SHARDINIT_INLINE Drawn Draw(const CudaFill& fill, const BlockNumbers& blocks) {
    Words<kBlocks> low;
    for (int b = 0; b < kBlocks; ++b) low.v[b] = static_cast<uint32_t>(blocks.high) | blocks.low[b];
    const auto words = philox4x32::Block<Words<kBlocks>>(
        {low, static_cast<uint32_t>(blocks.high >> 32), fill.draw, 0},
        {static_cast<uint32_t>(fill.key), static_cast<uint32_t>(fill.key >> 32)});
    Drawn drawn;
    for (int b = 0; b < kBlocks; ++b) {
      drawn.even.v[2 * b] = words[0].v[b], drawn.even.v[2 * b + 1] = words[2].v[b];
      drawn.odd.v[2 * b] = words[1].v[b], drawn.odd.v[2 * b + 1] = words[3].v[b];
    }
    return drawn;
  }

  template <class Sampler>
  static SHARDINIT_INLINE Elements Make(const CudaFill& fill, const Sampler& sampler,
                                        const BlockNumbers& blocks) {
    const Drawn drawn = Draw(fill, blocks);
    const Halves halves = HalvesOf(sampler, drawn.even, drawn.odd);
    Elements elements;
    for (int b = 0; b < kBlocks; ++b) {
      for (int i = 0; i < 4; ++i) {
        elements.v[b][i] = (i % 2 == 0 ? halves.even : halves.odd).v[2 * b + i / 2];
      }
    }
    return elements;
  }

 private:
  using F = Floats<2 * kBlocks>;
  using U = Words<2 * kBlocks>;
  struct Halves {
    F even, odd;
  };
  static SHARDINIT_INLINE Halves HalvesOf(const UniformSampler& s, const U& even, const U& odd) {
    return {samplers::Uniform<F>(s, even), samplers::Uniform<F>(s, odd)};
  }
  static SHARDINIT_INLINE Halves HalvesOf(const NormalSampler& s, const U& even, const U& odd) {
    return {samplers::Normal<F>(s, even, odd, false), samplers::Normal<F>(s, even, odd, true)};
  }
  static SHARDINIT_INLINE Halves HalvesOf(const TruncatedNormalSampler& s, const U& even,
                                          const U& odd) {
    const auto make = [&](const auto& few) {
      return samplers::TruncatedNormal<Floats<kTogether>>(s, few);
    };
    return {InParts(even, make), InParts(odd, make)};
  }
};

// The key is the key of the draw.
struct Threefry {
  template <class Sampler>
  static SHARDINIT_INLINE Elements Make(const CudaFill& fill, const Sampler& sampler,
                                        const BlockNumbers& blocks) {
    Words<4 * kBlocks> drawn;
    for (int b = 0; b < kBlocks; ++b) {
      for (int i = 0; i < 4; ++i) {
        const auto words = threefry2x32::Block<uint32_t>(
            {static_cast<uint32_t>(blocks.high >> kLowBits), 4 * blocks.low[b] + i},
            {static_cast<uint32_t>(fill.key), static_cast<uint32_t>(fill.key >> 32)});
        drawn.v[4 * b + i] = words[0] ^ words[1];
      }
    }
    const auto made = InParts(
        drawn, [&](const auto& few) { return samplers::Jax<Floats<kTogether>>(sampler, few); });
    Elements elements;
    for (int b = 0; b < kBlocks; ++b) {
      for (int i = 0; i < 4; ++i) elements.v[b][i] = made.v[4 * b + i];
    }
    return elements;
  }
};

// Returns two encoded numbers, the first in the low half.
#ifdef __CUDA_ARCH__
// A device rounds both in one instruction, with the same result as the formulas.
SHARDINIT_INLINE uint32_t Bf16Pair(float first, float second) {
  uint32_t pair;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(second), "f"(first));
  return pair;
}
SHARDINIT_INLINE uint32_t F16Pair(float first, float second) {
  uint32_t pair;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(second), "f"(first));
  return pair;
}
#else
SHARDINIT_INLINE uint32_t Bf16Pair(float first, float second) {
  return encoding::UpperBf16(std::bit_cast<uint32_t>(first)) >> 16 |
         (encoding::UpperBf16(std::bit_cast<uint32_t>(second)) & 0xFFFF0000u);
}
SHARDINIT_INLINE uint32_t F16Pair(float first, float second) {
  return encoding::SmallFinite<DType::f16>(std::bit_cast<uint32_t>(first)) |
         encoding::SmallFinite<DType::f16>(std::bit_cast<uint32_t>(second)) << 16;
}
#endif

// Generates pairs of normal numbers with mean 0 in bf16, which has 8 bits of precision, not 24 as
// f32. Faster operations compute most pairs so accurately that both ends of the range of possible
// f32 numbers round to the same bf16. Only the other pairs are computed exactly.
//
// The bound on the relative error of the fast numbers, kOfAll + kOfLogarithm / -log2(u), is the sum
// of these errors. tests/device/words.cu checks all radius words and all angle words on a device.
// - PTX promises that lg2.approx is off by 2^-22, relative outside of (1/2, 2), and rsqrt.approx by
//   2^-22.9.
// - The logarithm of the exact numbers is off by 2^-22.4 (rng/coefficients.h) and uses u one unit
//   smaller, 2^-24.
// - The other operations round by 2^-24 each, in both computations.
inline constexpr float kOfAll = 0x1.2p-20f, kOfLogarithm = 0x1p-22f;

struct NearNormals {
  float even, odd, error;  // `error` is relative.
};

#ifdef __CUDA_ARCH__
SHARDINIT_INLINE float NearLog2(float x) {
  float y;
  asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
SHARDINIT_INLINE float NearInverseRoot(float x) {
  float y;
  asm("rsqrt.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
#else
SHARDINIT_INLINE float NearLog2(float x) { return std::log2(x); }
SHARDINIT_INLINE float NearInverseRoot(float x) { return 1 / std::sqrt(x); }
#endif

SHARDINIT_INLINE NearNormals NearNormalsOf(float scale, uint32_t radius_word, uint32_t angle_word) {
  const float u = std::fma(shardinit::SignedToF32(radius_word), 0x1p-31f, 0x1p-33f);
  const float square = std::fmax(-NearLog2(std::fabs(u)), 0x1p-25f);
  const float inverse = NearInverseRoot(square);
  const float radius = square * inverse * scale;

  const float x = shardinit::SignedToF32(angle_word) * 0x1p-31f;
  const float y = x * x;
  const auto polynomial = [y](const float(&c)[4]) {
    return std::fma(std::fma(std::fma(c[3], y, c[2]), y, c[1]), y, c[0]);
  };
  const float sine = x * polynomial(coefficients::kSin);
  const float cosine = polynomial(coefficients::kCos);
  const float turned = shardinit::NegateIfSet<1>(angle_word, cosine);
  const bool swapped = shardinit::IsSet<0>(angle_word);
  return {radius * (swapped ? sine : turned), radius * (swapped ? turned : sine),
          std::fma(inverse * inverse, kOfLogarithm, kOfAll)};
}

template <int n>
SHARDINIT_INLINE Words<n> NormalBf16(const NormalSampler& sampler, const Words<n>& radius_words,
                                     const Words<n>& angle_words) {
  Words<n> low, high;
  uint32_t different = 0;
  for (int i = 0; i < n; ++i) {
    const NearNormals near = NearNormalsOf(sampler.scale, radius_words.v[i], angle_words.v[i]);
    const auto end = [&](float error) {
      return Bf16Pair(std::fma(error, near.even, near.even), std::fma(error, near.odd, near.odd));
    };
    low.v[i] = end(-near.error);
    high.v[i] = end(near.error);
    different |= low.v[i] ^ high.v[i];
  }
  if (__builtin_expect(different != 0, 0)) {
    for (int i = 0; i < n; ++i) {
      if (low.v[i] == high.v[i]) continue;
      const Words<1> radius = radius_words.v[i], angle = angle_words.v[i];
      low.v[i] = Bf16Pair(samplers::Normal<Floats<1>>(sampler, radius, angle, false).v[0],
                          samplers::Normal<Floats<1>>(sampler, radius, angle, true).v[0]);
    }
  }
  return low;
}

// A block's four elements in their stored form.
template <int bytes>
struct alignas(bytes == 8 ? 16 : 4 * bytes) Stored {
  uint32_t words[bytes];
};

SHARDINIT_INLINE void Encode(const float (&from)[4], Stored<8>* to) {
  for (int i = 0; i < 4; ++i) {
    const auto bits = std::bit_cast<uint64_t>(static_cast<double>(from[i]));
    to->words[2 * i] = static_cast<uint32_t>(bits);
    to->words[2 * i + 1] = static_cast<uint32_t>(bits >> 32);
  }
}
SHARDINIT_INLINE void Encode(const float (&from)[4], Stored<4>* to) {
  for (int i = 0; i < 4; ++i) to->words[i] = std::bit_cast<uint32_t>(from[i]);
}
template <DType dtype>
SHARDINIT_INLINE void Encode(const float (&from)[4], Stored<2>* to) {
  constexpr auto kPair = dtype == DType::bf16 ? Bf16Pair : F16Pair;
  for (int i = 0; i < 2; ++i) to->words[i] = kPair(from[2 * i], from[2 * i + 1]);
}
template <DType dtype>
SHARDINIT_INLINE void Encode(const float (&from)[4], Stored<1>* to) {
  Words<4> bits;
  for (int i = 0; i < 4; ++i) bits.v[i] = std::bit_cast<uint32_t>(from[i]);
  const Words<4> encoded = encoding::SmallFinite<dtype>(bits);
  to->words[0] = encoded.v[0] | encoded.v[1] << 8 | encoded.v[2] << 16 | encoded.v[3] << 24;
}

// Where the blocks of a turn are stored, and which of their elements belong to the run.
struct Places {
  bool whole;  // All elements do.
  uint8_t* to[kBlocks];
  int begin[kBlocks], end[kBlocks];  // otherwise those from `begin` to `end`
};

template <int bytes>
SHARDINIT_INLINE void Store(const Stored<bytes> (&stored)[kBlocks], const Places& places) {
  if (places.whole) {
    for (int b = 0; b < kBlocks; ++b) *reinterpret_cast<Stored<bytes>*>(places.to[b]) = stored[b];
    return;
  }
  using Element = std::conditional_t<
      bytes == 1, uint8_t,
      std::conditional_t<bytes == 2, uint16_t, std::conditional_t<bytes == 4, uint32_t, uint64_t>>>;
  for (int b = 0; b < kBlocks; ++b) {
    for (int i = 0; i < 4; ++i) {
      Element element;
      if constexpr (bytes == 8) {
        element = uint64_t{stored[b].words[2 * i + 1]} << 32 | stored[b].words[2 * i];
      } else {
        element = static_cast<Element>(stored[b].words[i * bytes / 4] >> (i * bytes % 4 * 8));
      }
      if (places.begin[b] <= i && i < places.end[b]) {
        reinterpret_cast<Element*>(places.to[b])[i] = element;
      }
    }
  }
}

SHARDINIT_INLINE void EncodeAndStore(const Elements& elements, DType dtype, const Places& places) {
  const auto store = [&]<int bytes>(Stored<bytes>(&stored)[kBlocks], auto encode) {
    for (int b = 0; b < kBlocks; ++b) encode(elements.v[b], &stored[b]);
    Store(stored, places);
  };
  Stored<1> bytes1[kBlocks];
  Stored<2> bytes2[kBlocks];
  Stored<4> bytes4[kBlocks];
  Stored<8> bytes8[kBlocks];
  switch (dtype) {
    case DType::f32:
      return store(bytes4, [](auto& from, auto* to) { Encode(from, to); });
    case DType::f64:
      return store(bytes8, [](auto& from, auto* to) { Encode(from, to); });
    case DType::bf16:
      return store(bytes2, [](auto& from, auto* to) { Encode<DType::bf16>(from, to); });
    case DType::f16:
      return store(bytes2, [](auto& from, auto* to) { Encode<DType::f16>(from, to); });
    case DType::f8e4m3fn:
      return store(bytes1, [](auto& from, auto* to) { Encode<DType::f8e4m3fn>(from, to); });
    case DType::f8e5m2:
      return store(bytes1, [](auto& from, auto* to) { Encode<DType::f8e5m2>(from, to); });
    default:
      return;  // The host requests only floats.
  }
}

// Generates the elements of a turn and writes them. Engines have faster ways for some of them.
template <class Engine, class Sampler>
SHARDINIT_INLINE void FillBlocks(const Engine&, const CudaFill& fill, const Sampler& sampler,
                                 const BlockNumbers& blocks, const Places& places) {
  EncodeAndStore(Engine::Make(fill, sampler, blocks), fill.dtype, places);
}

SHARDINIT_INLINE void FillBlocks(const Philox&, const CudaFill& fill, const NormalSampler& sampler,
                                 const BlockNumbers& blocks, const Places& places) {
  if (fill.dtype == DType::bf16 && sampler.mean == 0 && sampler.scale > 0) {
    const Philox::Drawn drawn = Philox::Draw(fill, blocks);
    const Words<2 * kBlocks> pairs = NormalBf16(sampler, drawn.even, drawn.odd);
    Stored<2> stored[kBlocks];
    for (int b = 0; b < kBlocks; ++b) {
      for (int i = 0; i < 2; ++i) stored[b].words[i] = pairs.v[2 * b + i];
    }
    Store(stored, places);
  } else {
    EncodeAndStore(Philox::Make(fill, sampler, blocks), fill.dtype, places);
  }
}

// InfoOf()'s table contains names, which would become variables of a kernel, in unspecified order.
SHARDINIT_INLINE int BytesOf(DType dtype) {
  switch (dtype) {
    case DType::f64:
      return 8;
    case DType::f32:
      return 4;
    case DType::bf16:
    case DType::f16:
      return 2;
    default:
      return 1;
  }
}

SHARDINIT_INLINE uint64_t StartOf(const CudaFill& fill, uint64_t run) {
  if (fill.runs == 1) return fill.first;
  if (fill.inner == fill.runs) return fill.first + run * fill.inner_stride;
  return fill.first + run / fill.inner * fill.outer_stride + run % fill.inner * fill.inner_stride;
}

// Does the share of one of `threads` threads.
template <class Engine, class Sampler>
SHARDINIT_INLINE void Fill(const CudaFill& fill, const Sampler& sampler, uint64_t thread,
                           uint64_t threads) {
  const int bytes = BytesOf(fill.dtype);
  const auto lanes = static_cast<uint32_t>(fill.lanes);
  const uint64_t together = threads / lanes;
  const auto lane = static_cast<uint32_t>(thread % lanes);
  for (uint64_t run = thread / lanes; run < fill.runs; run += together) {
    const uint64_t start = StartOf(fill, run), stop = start + fill.length;
    // Element e of the tensor is stored at origin + e * bytes.
    uint8_t* const origin = fill.out + (run * fill.length - start) * bytes;
    const bool aligned = reinterpret_cast<uintptr_t>(origin) % (bytes == 8 ? 16 : 4 * bytes) == 0;
    // Goes through groups of blocks with the same high bits.
    for (uint64_t block = start / 4, end = 0; block * 4 < stop; block = end) {
      const uint64_t high = block >> kLowBits << kLowBits;
      const uint64_t last = (stop + 3) / 4, same = high + (uint64_t{1} << kLowBits);
      end = last < same ? last : same;
      uint8_t* const base = origin + high * 4 * bytes;
      // The low bits of whole blocks, each of which can be stored at once.
      const uint64_t first_whole = high * 4 < start ? (start + 3) / 4 - high : 0;
      const uint64_t whole = stop / 4 - high < end - high ? stop / 4 - high : end - high;
      const uint64_t reach = first_whole + (kBlocks - 1) * lanes;  // of a turn of only whole blocks
      const auto begin32 = static_cast<uint32_t>(first_whole);
      const auto turns32 = aligned && whole > reach ? static_cast<uint32_t>(whole - reach) : 0u;
      const auto end32 = static_cast<uint32_t>(end - high);
      auto low = static_cast<uint32_t>(block - high) + lane;
      uint8_t* to = base + uint64_t{low} * 4 * bytes;
      const uint64_t stride = uint64_t{lanes} * 4 * bytes;
      for (; low < end32; low += kBlocks * lanes, to += kBlocks * stride) {
        BlockNumbers blocks{high, {}};
        Places places;
        places.whole = low - begin32 < turns32;
        for (int b = 0; b < kBlocks; ++b) {
          blocks.low[b] = low + b * lanes;
          places.to[b] = to + b * stride;
          if (!places.whole) {
            const uint64_t element = (high + blocks.low[b]) * 4;
            places.begin[b] = element < start ? static_cast<int>(start - element) : 0;
            places.end[b] = blocks.low[b] >= end32 ? 0
                            : stop - element < 4   ? static_cast<int>(stop - element)
                                                   : 4;
          }
        }
        FillBlocks(Engine(), fill, sampler, blocks, places);
      }
    }
  }
}

}  // namespace shardinit::kernels::cuda
