// Tests that a tensor's values do not depend on its sharding, nor on the pieces in which its boxes
// are made.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <fstream>
#include <memory>

#include "base/checked_file.h"
#include "base/sha256.h"
#include "generate/fill.h"
#include "graph/validate.h"
#include "support/random_plan.h"
#include "support/spec_text.h"
#include "tensor/encode.h"

namespace shardinit {
namespace {

using Bytes = std::vector<uint8_t>;

const Distribution kDistributions[] = {
    Constant{0},     Constant{1},  Constant{-2.71828},           Uniform{-0.5, 3},
    Normal{0, 0.02}, Normal{1, 0}, TruncatedNormal{0, 1, -2, 2}, TruncatedNormal{0.5, 0.02, 1, 6},
};

Bytes Fill(const Tensor& tensor, const Box& box) {
  const BoxFiller filler(tensor, box);
  Bytes bytes(static_cast<size_t>(filler.elements() * filler.element_bytes()));
  filler.Fill(0, filler.elements(), bytes.data());
  return bytes;
}

// Returns the same bytes, made in pieces of random lengths in random order.
Bytes FillInPieces(const Tensor& tensor, const Box& box, Random& random) {
  const BoxFiller filler(tensor, box);
  const int64_t size = filler.element_bytes();
  Bytes bytes(static_cast<size_t>(filler.elements() * size), 0xEE);
  std::vector<std::pair<int64_t, int64_t>> pieces;
  for (int64_t at = 0; at < filler.elements();) {
    const int64_t longest = random.Chance(2) ? 5 : filler.elements();
    const int64_t count = random.In(1, std::min(longest, filler.elements() - at));
    pieces.emplace_back(at, count);
    at += count;
  }
  for (size_t i = pieces.size(); i > 0; --i) {
    std::swap(pieces[i - 1],
              pieces[static_cast<size_t>(random.In(0, static_cast<int64_t>(i) - 1))]);
    const auto [first, count] = pieces[i - 1];
    filler.Fill(first, count, bytes.data() + first * size);
  }
  return bytes;
}

// Returns the linear indices in the tensor of a box's elements, in the box's order.
std::vector<int64_t> IndicesOf(const Shape& shape, const Box& box) {
  std::vector<int64_t> indices;
  const int64_t count = ElementCount(box.shape);
  for (int64_t i = 0; i < count; ++i) {
    int64_t rest = i, linear = 0, stride = 1;
    for (size_t d = shape.size(); d-- > 0;) {
      linear += (box.offset[d] + rest % box.shape[d]) * stride;
      rest /= box.shape[d];
      stride *= shape[d];
    }
    indices.push_back(linear);
  }
  return indices;
}

Box RandomBox(const Shape& shape, Random& random) {
  Box box{Shape(shape.size()), Shape(shape.size())};
  for (size_t d = 0; d < shape.size(); ++d) {
    box.shape[d] = random.Chance(3) ? shape[d] : random.In(1, shape[d]);
    box.offset[d] = random.In(0, shape[d] - box.shape[d]);
  }
  return box;
}

std::string Describe(const Tensor& tensor) {
  return fmt::format("{} [{}] distribution {}", InfoOf(tensor.dtype()).name,
                     fmt::join(tensor.shape(), ", "), tensor.distribution().index());
}

// Calls `check` with tensors of every distribution and dtype.
template <typename F>
void ForTensors(uint64_t seed, int each, F check) {
  Random random(seed);
  for (const Distribution& distribution : kDistributions) {
    for (const DTypeInfo& info : DTypes()) {
      if (!MisfitOf(distribution, info.dtype).what.empty()) continue;
      for (int i = 0; i < each && !testing::Test::HasFailure(); ++i) {
        const Tensor tensor = MakeTensor("t" + std::to_string(i), info.dtype,
                                         RandomShape(random, 3000), distribution);
        SCOPED_TRACE(Describe(tensor));
        check(tensor, random);
      }
    }
  }
}

TEST(Values, ShardsOfAnyMeshEqualTheTensor) {
  ForTensors(1, 8, [](const Tensor& whole, Random& random) {
    const Bytes expected = Fill(whole, WholeOf(whole.shape()));
    const Mesh mesh = RandomMesh(random, 24);
    Tensor tensor = whole;
    tensor.Edit().partition = RandomPartition(random, mesh, tensor.shape());
    const size_t size = static_cast<size_t>(InfoOf(tensor.dtype()).bytes);
    Bytes together(expected.size(), 0xEE);
    for (int64_t rank = 0; rank < mesh.world_size(); ++rank) {
      const Sharding sharding(mesh, Replicas::kDedupe, tensor.shape(), tensor.partition());
      for (const Box& box : sharding.BoxesOn(rank)) {
        const Bytes shard = FillInPieces(tensor, box, random);
        const std::vector<int64_t> indices = IndicesOf(tensor.shape(), box);
        for (size_t i = 0; i < indices.size(); ++i) {
          std::memcpy(&together[static_cast<size_t>(indices[i]) * size], &shard[i * size], size);
        }
      }
    }
    EXPECT_TRUE(together == expected);
  });
}

TEST(Values, BoxesEqualThatPartOfTheTensor) {
  ForTensors(2, 8, [](const Tensor& tensor, Random& random) {
    const Bytes whole = Fill(tensor, WholeOf(tensor.shape()));
    const size_t size = static_cast<size_t>(InfoOf(tensor.dtype()).bytes);
    for (int i = 0; i < 4; ++i) {
      const Box box = RandomBox(tensor.shape(), random);
      const Bytes made = Fill(tensor, box);
      EXPECT_TRUE(made == FillInPieces(tensor, box, random));
      const std::vector<int64_t> indices = IndicesOf(tensor.shape(), box);
      ASSERT_EQ(made.size(), indices.size() * size);
      for (size_t e = 0; e < indices.size(); ++e) {
        ASSERT_EQ(
            std::memcmp(&made[e * size], &whole[static_cast<size_t>(indices[e]) * size], size), 0)
            << "element " << e << " of the box at ["
            << fmt::format("{}", fmt::join(box.offset, ", ")) << "]";
      }
    }
  });
}

TEST(Values, SingleElementsCanBeGenerated) {
  ForTensors(3, 3, [](const Tensor& tensor, Random& random) {
    const BoxFiller filler(tensor, RandomBox(tensor.shape(), random));
    const size_t size = static_cast<size_t>(filler.element_bytes());
    Bytes all(static_cast<size_t>(filler.elements()) * size);
    filler.Fill(0, filler.elements(), all.data());
    for (int64_t i = 0; i < filler.elements(); ++i) {
      Bytes one(size + 8, 0xEE);  // Bytes after the element must not change.
      filler.Fill(i, 1, one.data());
      ASSERT_EQ(std::memcmp(one.data(), &all[static_cast<size_t>(i) * size], size), 0) << i;
      ASSERT_EQ(one[size], 0xEE);
    }
  });
}

TEST(Values, FillWritesOnlyTheRequestedElements) {
  ForTensors(4, 3, [](const Tensor& tensor, Random& random) {
    const BoxFiller filler(tensor, RandomBox(tensor.shape(), random));
    const int64_t size = filler.element_bytes();
    const int64_t first = random.In(0, filler.elements() - 1);
    const int64_t count = random.In(0, filler.elements() - first);
    // The buffer is aligned only to the element.
    Bytes out(static_cast<size_t>((count + 8) * size), 0xEE);
    filler.Fill(first, count, out.data() + size);
    for (int64_t i = 0; i < std::ssize(out); ++i) {
      const bool outside = i < size || i >= (count + 1) * size;
      ASSERT_TRUE(!outside || out[static_cast<size_t>(i)] == 0xEE) << i;
    }
  });
}

// A box beyond 2^32 elements, where 32-bit index arithmetic would wrap, has the right values.
TEST(Values, BoxesBeyond32BitIndicesHaveTheRightValues) {
  for (const DTypeInfo& info : DTypes()) {
    if (!info.is_float()) continue;
    const Tensor tensor = MakeTensor("big", info.dtype, {1 << 20, 1 << 20}, Normal{0, 1});
    const int64_t row = (1 << 20) - 3;
    const size_t size = static_cast<size_t>(info.bytes);
    const Bytes rows = Fill(tensor, {{row, 0}, {2, 1 << 20}});
    const Bytes tile = Fill(tensor, {{row, 1000}, {2, 77}});
    for (size_t r = 0; r < 2; ++r) {
      EXPECT_EQ(std::memcmp(&tile[r * 77 * size], &rows[((r << 20) + 1000) * size], 77 * size), 0);
    }
  }
}

TEST(Values, ConstantsEqualTheirEncoding) {
  for (const DTypeInfo& info : DTypes()) {
    if (!info.is_float()) continue;
    const Tensor tensor = MakeTensor("c", info.dtype, {7, 5}, Constant{0.1});
    const Bytes made = Fill(tensor, {{2, 1}, {3, 3}});
    const size_t size = static_cast<size_t>(info.bytes);
    ASSERT_EQ(made.size(), 9 * size);
    for (size_t i = 0; i < 9; ++i) {
      const double value = Decode(&made[i * size], info.dtype);
      // Half a unit in the last place; f64 holds the constant itself.
      const double unit = std::ldexp(0x1p-4, -info.mantissa_bits);
      EXPECT_LE(std::fabs(value - 0.1), info.dtype == DType::f64 ? 0 : unit / 2) << info.name;
    }
  }
}

TEST(Values, EveryDTypeRoundsTheSameNumbers) {
  for (const Distribution& distribution : kDistributions) {
    if (!IsRandom(distribution)) continue;
    const Tensor exact = MakeTensor("t", DType::f32, {50, 61}, distribution);
    const Box box{{3, 5}, {40, 50}};
    const Bytes values = Fill(exact, box);
    for (const DTypeInfo& info : DTypes()) {
      if (!info.is_float()) continue;
      const Tensor tensor = MakeTensor("t", info.dtype, {50, 61}, distribution);
      const size_t size = static_cast<size_t>(info.bytes);
      const Bytes made = Fill(tensor, box);
      for (size_t i = 0; i < values.size() / 4; ++i) {
        uint8_t expected[8];
        Encode(static_cast<float>(Decode(&values[4 * i], DType::f32)), info.dtype, expected);
        ASSERT_EQ(std::memcmp(&made[i * size], expected, size), 0) << info.name << " " << i;
      }
    }
  }
}

TEST(Values, ValuesDependOnlyOnTheKey) {
  const Tensor a = MakeTensor("a", DType::f32, {64}, Uniform{0, 1});
  const Tensor b = MakeTensor("b", DType::f32, {64}, Uniform{0, 1});
  Tensor c = b;
  c.set_stream(a.stream());
  EXPECT_FALSE(Fill(a, WholeOf(a.shape())) == Fill(b, WholeOf(b.shape())));
  EXPECT_TRUE(Fill(a, WholeOf(a.shape())) == Fill(c, WholeOf(c.shape())));
  // A tensor with another shape starts with the same elements.
  const Tensor longer = MakeTensor("a", DType::f32, {3, 50}, Uniform{0, 1});
  const Bytes short_bytes = Fill(a, WholeOf(a.shape())),
              long_bytes = Fill(longer, WholeOf(longer.shape()));
  EXPECT_TRUE(std::equal(short_bytes.begin(), short_bytes.end(), long_bytes.begin()));
}

TEST(Values, RunsEqualBruteForce) {
  Random random(5);
  for (int i = 0; i < 2000 && !testing::Test::HasFailure(); ++i) {
    const Shape shape = RandomShape(random);
    const Box box = RandomBox(shape, random);
    SCOPED_TRACE(fmt::format("[{}] of [{}] at [{}]", fmt::join(box.shape, ", "),
                             fmt::join(shape, ", "), fmt::join(box.offset, ", ")));
    const Runs runs(shape, box);
    std::vector<int64_t> indices, by_stride;
    for (int64_t run = 0; run < runs.count(); ++run) {
      for (int64_t e = 0; e < runs.length(); ++e) indices.push_back(runs.Start(run) + e);
    }
    EXPECT_EQ(indices, IndicesOf(shape, box));
    for (int64_t run = 0; run < runs.count();) {
      const int64_t end = runs.EndOfStride(run);
      ASSERT_GT(end, run);
      for (int64_t r = run; r < end; ++r) {
        ASSERT_EQ(runs.Start(r), runs.Start(run) + (r - run) * runs.stride());
      }
      run = end;
    }
  }
}

// Values from a file are its bytes, including NaN payloads, -0 and integers beyond 2^53. Boxes have
// short runs near one another and far apart, which are read in different ways.
TEST(Values, ValuesFromAFileAreItsBytes) {
  const WorkingFolder folder(std::map<std::string, std::string>{});
  Random random(7);
  for (int i = 0; i < 100 && !testing::Test::HasFailure(); ++i) {
    const DTypeInfo& info = DTypes()[static_cast<size_t>(random.In(0, std::ssize(DTypes()) - 1))];
    Tensor tensor;
    tensor.set_path("w");
    tensor.Edit().dtype = info.dtype;
    const int64_t rank = random.In(0, 4), longest = random.In(0, 3);
    for (int64_t d = 0; d < rank; ++d) {
      tensor.Edit().shape.push_back(random.In(1, d == longest ? 700 : 6));
    }
    std::string bytes(static_cast<size_t>(tensor.bytes()), 0);
    for (char& byte : bytes) {
      byte = static_cast<char>(random.In(0, info.dtype == DType::boolean ? 1 : 255));
    }
    std::ofstream("table", std::ios::binary) << bytes;
    const std::string sha256 = ToHex(Sha256Of(bytes));
    tensor.Edit().distribution = FromFile{
        sha256, std::make_shared<CheckedFile>("table", tensor.bytes(), sha256, "x.yaml:1:1")};
    for (int k = 0; k < 5; ++k) {
      const Box box = RandomBox(tensor.shape(), random);
      Bytes wanted;
      for (const int64_t index : IndicesOf(tensor.shape(), box)) {
        const char* const element = &bytes[static_cast<size_t>(index * info.bytes)];
        wanted.insert(wanted.end(), element, element + info.bytes);
      }
      EXPECT_EQ(Fill(tensor, box), wanted) << Describe(tensor);
      EXPECT_EQ(FillInPieces(tensor, box, random), wanted) << Describe(tensor);
    }
  }
}

}  // namespace
}  // namespace shardinit
