// Compares PyTorch's generator with the standard library's, its jumps with each other, and kernels
// with the readable reference. tests/python/test_torch_cpu.py compares with PyTorch itself.
#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

#include "kernels/kernels.h"
#include "kernels/torch_cpu.h"
#include "rng/engines.h"
#include "rng/mt19937.h"
#include "rng/torch_cpu.h"

namespace shardinit {
namespace {

using torch_cpu::Drawn;

Stream StreamAt(uint64_t position) {
  return {.key = 7, .position = position, .engine = &kTorchCpu};
}

TEST(Mt19937, Mt19937EqualsTheStandardLibrary) {
  std::mt19937 expected(7);
  Mt19937 words(7, mt19937::Extend);
  for (uint64_t p = 0; p < 20000; ++p) {
    size_t count;
    ASSERT_EQ(mt19937::Temper(*words.At(p, &count)), expected()) << p;
    ASSERT_GE(count, 1u);
  }
}

TEST(Mt19937, JumpEqualsDiscardingWords) {
  std::mt19937 expected(7);
  expected.discard(50'000'000);
  Mt19937 words(7, mt19937::Extend);
  size_t count;
  const uint32_t* x = words.At(50'000'000, &count);
  ASSERT_GE(count, 624u);
  for (int i = 0; i < 624; ++i) ASSERT_EQ(mt19937::Temper(x[i]), expected()) << i;
  // It also jumps back.
  expected.seed(7);
  expected.discard(12345);
  EXPECT_EQ(mt19937::Temper(*words.At(12345, &count)), expected());
}

TEST(Mt19937, JumpsCanBeDivided) {
  const auto jump = [](const mt19937::State& state, uint64_t distance) {
    return mt19937::Jump(mt19937::PowerOfT(distance), state, mt19937::Extend);
  };
  const mt19937::State seeded = mt19937::Seeded(42);
  const uint64_t far = (uint64_t{1} << 40) + 12345;
  mt19937::State once = jump(seeded, far);
  mt19937::State thrice =
      jump(jump(jump(seeded, uint64_t{1} << 39), (uint64_t{1} << 39) - 1000), 13345);
  // Only the upper bit of the first word is part of the state.
  once[0] &= 0x80000000, thrice[0] &= 0x80000000;
  EXPECT_EQ(once, thrice);
}

TEST(TorchCpu, CountsTheWordsOfATensor) {
  const auto after = [](torch_cpu::Draw draw, uint64_t elements, DType dtype, Stream stream) {
    return torch_cpu::StreamAfter(Drawn{draw, stream, elements, dtype});
  };
  const torch_cpu::Normal normal{0, 1};
  const torch_cpu::Uniform uniform{0, 1};
  EXPECT_EQ(after(normal, 32, DType::f32, StreamAt(5)), StreamAt(37));
  EXPECT_EQ(after(normal, 35, DType::f32, StreamAt(0)), StreamAt(51));
  // Smaller types draw no words for the elements that the last group replaces.
  EXPECT_EQ(after(normal, 35, DType::bf16, StreamAt(0)), StreamAt(48));
  EXPECT_EQ(after(uniform, 35, DType::f32, StreamAt(0)), StreamAt(35));
  EXPECT_EQ(after(uniform, 35, DType::f64, StreamAt(0)), StreamAt(70));
  Stream odd = after(normal, 3, DType::f32, StreamAt(100));
  EXPECT_EQ(odd.position, 108u);
  EXPECT_EQ(odd.spare, 104u);
  odd = after(normal, 20, DType::f32, odd);
  EXPECT_EQ(odd.position, 144u);
  EXPECT_EQ(odd.spare, 104u);  // A group neither takes nor leaves a spare.
  odd = after(normal, 1, DType::f32, odd);
  EXPECT_EQ(odd, StreamAt(144));
}

TEST(TorchCpu, RoundedToFindsAllNumbersThatRoundAlike) {
  for (const DType dtype : {DType::bf16, DType::f16}) {
    for (const double bound : {1.0, -0.04, 0.3, 0.0, 2.0, -2.0}) {
      const auto [first, last] = torch_cpu::RoundedTo(dtype, bound);
      EXPECT_LE(first, bound);
      EXPECT_GE(last, bound);
      EXPECT_LT(last - first, 0.02);
    }
  }
  EXPECT_EQ(torch_cpu::RoundedTo(DType::bf16, 1).last, 0x1.01p+0f);
  EXPECT_EQ(torch_cpu::RoundedTo(DType::f32, 0.1).first, 0.1f);
}

TEST(TorchCpu, TorchKernelsEqualTheReference) {
  const torch_cpu::Draw draws[] = {torch_cpu::Uniform{-0.1, 0.3},
                                   torch_cpu::Uniform{-1, 0},
                                   torch_cpu::Normal{0, 0.02},
                                   torch_cpu::Normal{0.5, 1},
                                   torch_cpu::TruncatedNormal{0, 1, -2, 2},
                                   torch_cpu::TruncatedNormal{0.25, 0.5, -0.5, 2}};
  std::mt19937 random(1);
  for (const std::string& target : kernels::Targets()) {
    ASSERT_TRUE(kernels::ForceTarget(target));
    for (const torch_cpu::Draw& draw : draws) {
      for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
        for (const uint64_t elements : {3, 16, 17, 31, 48, 100, 4097, 6000}) {
          const Drawn drawn{draw, StreamAt(random() % 10000), elements, dtype};
          const uint64_t first = random() % elements, count = 1 + random() % (elements - first);
          const auto bytes = static_cast<size_t>(InfoOf(dtype).bytes);
          std::vector<uint8_t> made(count * bytes + 1, 0xAB), expected = made;
          const int rounds = kernels::FillTorch(drawn, first, count, made.data());
          EXPECT_EQ(rounds, kernels::RunTorchReference({drawn, first, count, expected.data()}));
          ASSERT_EQ(made, expected) << target << " " << elements << " from " << first;
        }
      }
    }
  }
  kernels::ForceTarget("");
}

}  // namespace
}  // namespace shardinit
