// Tests engines unlike Philox: the rest of the code needs only a row for each.
#include "rng/engines.h"

#include <gtest/gtest.h>

#include <vector>

#include "generate/fill.h"
#include "graph/engines/engines.h"

namespace shardinit {
namespace {

// This engine counts through all tensors, starting at the seed.
const Engine kCounting = {
    .name = "counting",
    .source = "here",
    .key = [](uint64_t seed, std::string_view) { return seed; },
    .sequential = true,
    .sample =
        [](const Sampler&, const Stream& stream, uint64_t first, size_t count, float* out) {
          for (size_t i = 0; i < count; ++i) {
            out[i] = static_cast<float>(stream.key + stream.position + first + i);
          }
        },
};

Tensor TensorOf(const Shape& shape, const Distribution& distribution) {
  Tensor tensor;
  tensor.set_path("t");
  tensor.Edit().shape = shape;
  tensor.Edit().distribution = distribution;
  return tensor;
}

std::vector<float> FloatsOf(const Tensor& tensor, const Box& box) {
  std::vector<float> out(static_cast<size_t>(ElementCount(box.shape)));
  FillBox(tensor, box, 1, out.data());
  return out;
}

TEST(Engine, SequentialEngineAdvancesItsStreamPosition) {
  std::vector<Tensor> tensors = {TensorOf({3, 4}, Normal{0, 1}), TensorOf({5}, Constant{2}),
                                 TensorOf({600}, Uniform{0, 1}), TensorOf({2, 2}, Sparse{1, 1}),
                                 TensorOf({}, Normal{0, 1})};
  AssignStreams(kCounting, 1000, tensors);
  EXPECT_EQ(tensors[0].stream().position, 0u);
  EXPECT_EQ(tensors[1].stream(), Stream());  // Constants draw nothing.
  EXPECT_EQ(tensors[2].stream().position, 12u);
  EXPECT_EQ(tensors[3].stream().position, 612u);
  EXPECT_EQ(tensors[4].stream().position, 620u);  // Each earlier element took a value and a place.

  EXPECT_EQ(FloatsOf(tensors[0], {.offset = {1, 1}, .shape = {2, 3}}),
            (std::vector<float>{1005, 1006, 1007, 1009, 1010, 1011}));
  const std::vector<float> row = FloatsOf(tensors[2], WholeOf(tensors[2].shape()));
  for (size_t i = 0; i < row.size(); ++i) ASSERT_EQ(row[i], 1012.0f + static_cast<float>(i));
  EXPECT_EQ(FloatsOf(tensors[4], WholeOf({})), std::vector<float>{1620});
}

TEST(Engine, PhiloxStreamDependsOnlyOnItsTensor) {
  std::vector<Tensor> two = {TensorOf({3, 4}, Normal{0, 1}), TensorOf({5}, Normal{0, 1})};
  std::vector<Tensor> one = {two[1]};
  AssignStreams(kPhilox4x32, 7, two);
  AssignStreams(kPhilox4x32, 7, one);
  EXPECT_EQ(two[1].stream(), one[0].stream());
  EXPECT_EQ(one[0].stream().key, KeyOf(7, "t"));
}

}  // namespace
}  // namespace shardinit
