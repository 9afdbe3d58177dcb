// Tests that every instruction set gives the reference's bits, for each sampler and dtype and any
// start, length and rows.
#include "kernels/kernels.h"

#include <gtest/gtest.h>

#if defined(__SSE2__)
#include <xmmintrin.h>
#endif

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <set>
#include <stdexcept>
#include <variant>

#include "rng/engines.h"
#include "support/cases.h"
#include "support/forced_target.h"
#include "tensor/encode.h"

namespace shardinit {
namespace {

const Stream kStream{0x0123456789abcdef, 3};
// Philox's 62-bit counter counts groups of four elements; its low 32 bits are about to overflow.
constexpr uint64_t kCarry = uint64_t{4} << 32, kFarCarry = uint64_t{4} << 61;
// The same for Threefry's counter, which counts elements.
constexpr uint64_t kElementCarry = uint64_t{1} << 32;
// The number of values of each sampler that are compared in one row.
constexpr size_t kMany = Cases(200'000);

// Returns a stream of each engine that has kernels.
std::vector<Stream> Streams() {
  std::vector<Stream> streams;
  for (const Engine* engine : Engines()) {
    if (engine->sample == nullptr) continue;
    streams.push_back({.key = kStream.key, .draw = kStream.draw, .engine = engine});
  }
  return streams;
}

struct NamedSampler {
  const char* name;
  Sampler sampler;
};

std::vector<NamedSampler> Samplers() {
  return {
      {"bits", BitsSampler{}},
      {"uniform", MakeUniform(-0.05, 0.05)},
      {"uniform below zero", MakeUniform(-3, 0)},
      {"normal", MakeNormal(0, 0.02)},
      {"normal about a mean", MakeNormal(-1.5, 0.3)},
      {"normal without spread", MakeNormal(0, 0)},
      {"smallest normal", MakeNormal(0, kMinScale)},
      {"largest normal", MakeNormal(0, kMaxScale)},
      {"normal beyond f16", MakeNormal(0, 30000)},
      {"normal among f16's subnormals", MakeNormal(0, 1e-6)},
      {"truncated, symmetric", MakeTruncatedNormal(0, 0.02, -2, 2)},
      {"truncated, both tails", MakeTruncatedNormal(0, 1, -100, 100)},
      {"truncated, crooked", MakeTruncatedNormal(1, 0.5, -1, 3)},
      {"truncated, half", MakeTruncatedNormal(0, 1, 0, 5)},
      {"truncated, far tail", MakeTruncatedNormal(0, 1, 5, 6)},
      {"truncated, lower tail", MakeTruncatedNormal(0, 1, -20, -9.5)},
      {"truncated, narrow", MakeTruncatedNormal(0, 1, 1.9, 2.0)},
  };
}

TEST(Kernels, KernelTestsCoverEverySampler) {
  std::set<size_t> kinds;
  for (const NamedSampler& named : Samplers()) kinds.insert(named.sampler.index());
  EXPECT_EQ(kinds.size(), std::variant_size_v<Sampler>);
}

std::vector<uint8_t> Reference(const Sampler& sampler, const Stream& stream, uint64_t first,
                               uint64_t stride, size_t rows, size_t count, DType dtype) {
  const size_t bytes = static_cast<size_t>(InfoOf(dtype).bytes);
  std::vector<uint8_t> out(rows * count * bytes);
  uint8_t* to = out.data();
  for (size_t row = 0; row < rows; ++row) {
    for (size_t i = 0; i < count; ++i, to += bytes) {
      float value;
      stream.engine->sample(sampler, stream, first + row * stride + i, 1, &value);
      Encode(value, dtype, to);
    }
  }
  return out;
}

// Calls `test` with each instruction set and dtype that the sampler supports.
template <typename Test>
void ForEach(const NamedSampler& sampler, Test test) {
  for (const DTypeInfo& info : DTypes()) {
    if (!info.is_float()) continue;
    if (std::holds_alternative<BitsSampler>(sampler.sampler) && info.dtype != DType::f32) continue;
    for (const std::string& target : kernels::Targets()) {
      SCOPED_TRACE(std::string(sampler.name) + ", " + std::string(info.name) + ", " + target);
      const ForcedTarget forced(target);
      test(info.dtype);
    }
  }
}

void ExpectRows(const Sampler& sampler, const Stream& stream, uint64_t first, uint64_t stride,
                size_t rows, size_t count, DType dtype, const std::vector<uint8_t>& expected) {
  constexpr size_t kGuard = 64;
  std::vector<uint8_t> out(expected.size() + kGuard, 0xEE);
  kernels::FillRows(sampler, stream, first, stride, rows, count, dtype, out.data());
  EXPECT_EQ(std::memcmp(out.data(), expected.data(), expected.size()), 0)
      << stream.engine->name << ", draw " << stream.draw << ": " << rows << " rows of " << count
      << " from " << first << ", stride " << stride;
  const std::vector<uint8_t> guard(kGuard, 0xEE);
  EXPECT_EQ(std::memcmp(out.data() + expected.size(), guard.data(), kGuard), 0);
}

TEST(Kernels, KernelRunsEqualReference) {
  for (const Stream& stream : Streams()) {
    for (const NamedSampler& sampler : Samplers()) {
      for (const uint64_t first : {uint64_t{0}, uint64_t{1}, uint64_t{7}, kElementCarry - 302,
                                   kCarry - 301, kFarCarry - 64}) {
        constexpr size_t kLongest = 1100;  // More than two batches.
        std::vector<std::vector<uint8_t>> whole;
        for (const DTypeInfo& info : DTypes()) {
          if (!info.is_float()) break;  // Float types come first.
          whole.push_back(Reference(sampler.sampler, stream, first, 0, 1, kLongest, info.dtype));
        }
        ForEach(sampler, [&](DType dtype) {
          for (const size_t count : {0,  1,  3,  4,  5,  7,   8,   9,   15,  16,  17,  31,
                                     32, 33, 63, 64, 65, 127, 128, 129, 511, 512, 513, 1100}) {
            auto expected = whole[static_cast<size_t>(dtype)];
            expected.resize(count * static_cast<size_t>(InfoOf(dtype).bytes));
            ExpectRows(sampler.sampler, stream, first, 0, 1, count, dtype, expected);
          }
        });
      }
    }
  }
}

TEST(Kernels, KernelRowsEqualReference) {
  std::mt19937 random(1);  // The standard defines its output, so the shapes never change.
  for (const Stream& stream : Streams()) {
    for (const NamedSampler& sampler : Samplers()) {
      for (int shape = 0; shape < 6; ++shape) {
        const size_t rows = 1 + random() % 40, count = 1 + random() % (shape < 3 ? 12 : 150);
        const uint64_t stride = count + random() % 3 * (random() % 5000);
        const uint64_t carry = shape == 1 ? kElementCarry : kCarry;
        const uint64_t first = (shape % 2 ? carry : 1000) - random() % 1000;
        std::vector<std::vector<uint8_t>> expected;
        for (const DTypeInfo& info : DTypes()) {
          if (!info.is_float()) break;
          expected.push_back(
              Reference(sampler.sampler, stream, first, stride, rows, count, info.dtype));
        }
        ForEach(sampler, [&](DType dtype) {
          ExpectRows(sampler.sampler, stream, first, stride, rows, count, dtype,
                     expected[static_cast<size_t>(dtype)]);
        });
      }
    }
  }
}

// Rows whose counters have different high words equal the reference.
TEST(Kernels, KernelRowsFarApartEqualReference) {
  const NamedSampler sampler{"normal", MakeNormal(0, 1)};
  for (const Stream& stream : Streams()) {
    for (const uint64_t carry : {kElementCarry, kCarry}) {
      const auto expected =
          Reference(sampler.sampler, stream, carry - 10, carry / 2 + 1, 5, 19, DType::f32);
      ForEach(sampler, [&](DType dtype) {
        if (dtype != DType::f32) return;
        ExpectRows(sampler.sampler, stream, carry - 10, carry / 2 + 1, 5, 19, dtype, expected);
      });
    }
  }
}

// Values that a comparison or a carry in the sampler could treat differently are rare, so this test
// looks at many.
TEST(Kernels, KernelsEqualReferenceForManyValues) {
  for (const Stream& stream : Streams()) {
    for (const NamedSampler& sampler : Samplers()) {
      const auto expected = Reference(sampler.sampler, stream, 0, 0, 1, kMany, DType::f32);
      ForEach(sampler, [&](DType dtype) {
        if (dtype != DType::f32) return;
        ExpectRows(sampler.sampler, stream, 0, 0, 1, kMany, dtype, expected);
      });
    }
  }
}

#if defined(__SSE2__)
// A library in the same process can set these flags (crtfastmath.o does).
TEST(Kernels, FlushingSubnormalsDoesNotChangeValues) {
  for (const Stream& stream : Streams()) {
    for (const NamedSampler& sampler : Samplers()) {
      const auto expected = Reference(sampler.sampler, stream, 0, 0, 1, kMany, DType::f32);
      const unsigned int mode = _mm_getcsr();
      _mm_setcsr(mode | 0x8040);  // Flush to zero, denormals are zero.
      ForEach(sampler, [&](DType dtype) {
        const bool is_bits = std::holds_alternative<BitsSampler>(sampler.sampler);
        if (dtype == DType::f32 && !is_bits) {
          ExpectRows(sampler.sampler, stream, 0, 0, 1, kMany, dtype, expected);
        }
      });
      _mm_setcsr(mode);
    }
  }
}
#endif

// The kernels round all 2^16 upper halves of an f32 like the reference. Finite values are reached
// as low + 0 * span.
TEST(Kernels, KernelEncodingsEqualReference) {
  const float infinity = std::numeric_limits<float>::infinity();
  for (const std::string& target : kernels::Targets()) {
    const ForcedTarget forced(target);
    for (uint32_t bits = 0; bits < 0x10000; bits += 0x10000 / Cases(9362)) {
      for (const uint32_t low : {0x0000u, 0x7FFFu, 0x8000u, 0x8001u, 0xFFFFu}) {
        const float value = std::bit_cast<float>(bits << 16 | low) + 0.0f;
        if (!std::isfinite(value)) continue;
        for (const DType dtype : {DType::bf16, DType::f16, DType::f8e4m3fn, DType::f8e5m2}) {
          const size_t bytes = static_cast<size_t>(InfoOf(dtype).bytes);
          uint8_t out[64 * 2], expected[2];
          kernels::Fill(UniformSampler{value, 0, infinity}, kStream, 0, 64, dtype, out);
          Encode(value, dtype, expected);
          for (const size_t i : {0, 63}) {
            ASSERT_EQ(std::memcmp(out + i * bytes, expected, bytes), 0) << value << " " << target;
          }
        }
      }
    }
  }
}

// A test that fails while a target is forced leaves the best target for the tests after it.
TEST(Targets, ForcedTargetEndsWithItsTest) {
  const std::string best = kernels::ActiveTarget();
  const auto leave_early = [] {
    const ForcedTarget forced("SCALAR");
    EXPECT_EQ(kernels::ActiveTarget(), "SCALAR");
    throw std::runtime_error("as an assertion leaves a test");
  };
  EXPECT_THROW(leave_early(), std::runtime_error);
  EXPECT_EQ(kernels::ActiveTarget(), best);
}

TEST(Targets, TargetsAreSupportedByThisCpu) {
  const auto targets = kernels::Targets();
  ASSERT_FALSE(targets.empty());
  EXPECT_EQ(targets.back(), "SCALAR");
  EXPECT_EQ(kernels::ActiveTarget(), targets.front());
  EXPECT_FALSE(kernels::ForceTarget("avx9"));
  EXPECT_EQ(kernels::ActiveTarget(), targets.front());
  for (const std::string& target : targets) {
    EXPECT_TRUE(kernels::ForceTarget(target));
    EXPECT_EQ(kernels::ActiveTarget(), target);
  }
  EXPECT_TRUE(kernels::ForceTarget(""));
  EXPECT_EQ(kernels::ActiveTarget(), targets.front());
}

}  // namespace
}  // namespace shardinit
