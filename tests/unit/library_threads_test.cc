// Tests concurrent calls of the C interface, on one spec and on several, as shardinit.h allows.
#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "library/shardinit.h"

namespace shardinit {
namespace {

constexpr int kCallers = 4;

// Each kind of filler, and two tensors that share their preparation.
constexpr char kSpec[] = R"(
shardinit: 1
name: shared
engine: ENGINE
dtype: f32
fans: out_in
mesh: {axes: {a: 2}}
modules:
  normal: {shape: [64, 96], shard: [a], init: {normal: {std: 0.5}}}
  cut: {shape: [3000], dtype: bf16, init: {truncated_normal: {std: 0.02}}}
  formula: {shape: [40, 50], init: {expr: "sin(i0) * i1"}}
  orthogonal: {shape: [48, 32], init: orthogonal}
  one: {shape: [5000], init: ones}
)";

std::string SpecOf(const std::string& engine) {
  std::string text = kSpec;
  return text.replace(text.find("ENGINE"), 6, engine);
}

shardinit_status Open(const std::string& text, shardinit_spec** spec, char** message) {
  shardinit_source source = {};
  source.struct_size = sizeof source;
  source.text = text.data();
  source.text_size = text.size();
  return shardinit_open(&source, spec, message);
}

shardinit_spec* Open(const std::string& text) {
  shardinit_spec* spec = nullptr;
  char* message = nullptr;
  EXPECT_EQ(Open(text, &spec, &message), SHARDINIT_OK) << message;
  shardinit_free(message);
  return spec;
}

std::vector<std::vector<char>> FillAll(const shardinit_spec* spec, int first, int threads) {
  const int count = static_cast<int>(shardinit_describe(spec)->tensor_count);
  std::vector<std::vector<char>> values(count);
  for (int i = 0; i < count; ++i) {
    const int index = (first + i) % count;
    const shardinit_tensor& tensor = *shardinit_tensor_at(spec, index);
    EXPECT_EQ(shardinit_find(spec, tensor.path), index);
    values[index].resize(tensor.bytes);
    char* message = nullptr;
    EXPECT_EQ(shardinit_fill(spec, index, nullptr, nullptr, values[index].data(), tensor.bytes,
                             threads, &message),
              SHARDINIT_OK)
        << message;
    int64_t boxes = 0;
    EXPECT_EQ(shardinit_boxes(spec, index, 1, nullptr, nullptr, 0, &boxes, &message), SHARDINIT_OK)
        << message;
  }
  return values;
}

void RunAtOnce(const std::function<void(int)>& work) {
  std::vector<std::thread> threads;
  for (int i = 0; i < kCallers; ++i) threads.emplace_back(work, i);
  for (std::thread& thread : threads) thread.join();
}

class LibraryThreads : public testing::TestWithParam<const char*> {};

TEST_P(LibraryThreads, ThreadsFillFromOneSpec) {
  shardinit_spec* const spec = Open(SpecOf(GetParam()));
  const auto expected = FillAll(spec, 0, 1);
  RunAtOnce([&](int i) { EXPECT_EQ(FillAll(spec, i, 1 + i % 3), expected); });
  shardinit_close(spec);
}

TEST_P(LibraryThreads, ThreadsOpenAndCloseTheirOwnSpecs) {
  const std::string text = SpecOf(GetParam());
  shardinit_spec* const spec = Open(text);
  const auto expected = FillAll(spec, 0, 1);
  shardinit_close(spec);
  RunAtOnce([&](int i) {
    for (int round = 0; round < 3; ++round) {
      shardinit_spec* const own = Open(text);
      EXPECT_EQ(FillAll(own, i, 2), expected);
      shardinit_close(own);
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Engines, LibraryThreads,
                         testing::Values("philox4x32", "torch_cpu", "jax_threefry"),
                         [](const auto& engine) { return std::string(engine.param); });

TEST(LibraryThreadsTest, ThreadsGetTheirOwnMessages) {
  RunAtOnce([](int i) {
    const std::string text =
        "shardinit: 1\nname: wrong\nmodules: {w" + std::to_string(i) + ": 3}\n";
    for (int round = 0; round < 20; ++round) {
      shardinit_spec* spec = nullptr;
      char* message = nullptr;
      ASSERT_EQ(Open(text, &spec, &message), SHARDINIT_ERROR_USAGE);
      ASSERT_NE(message, nullptr);
      EXPECT_NE(std::string(message).find("w" + std::to_string(i)), std::string::npos) << message;
      shardinit_free(message);
    }
  });
}

}  // namespace
}  // namespace shardinit
