// Tests that verification finds any changed byte of a checkpoint or an export. Flips one bit of one
// byte after another in each file. A stride skips most bytes unless the variable
// SHARDINIT_EVERY_BYTE is set.
#include <fcntl.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>

#include "base/error.h"
#include "base/file.h"
#include "checkpoint/verify.h"
#include "checkpoint/write.h"
#include "export/export.h"
#include "export/record.h"
#include "support/hdf5_once.h"
#include "support/random_plan.h"
#include "support/spec_text.h"

namespace shardinit {
namespace {

// The names suit every format: Keras has numbered variables of layers. `first` is a matrix.
Plan TinyPlan(const std::string& first = "layers.dense.vars.0") {
  InitGraph graph{.name = "tiny",
                  .engine = "philox4x32",
                  .seed = 1,
                  .mesh = {{"x"}, {2}},
                  .replicas = Replicas::kFull,
                  .tensors = {}};
  graph.tensors = {
      MakeTensor(first, DType::f32, {6, 5}, Normal{0, 0.5}, {{0}}),
      MakeTensor("layers.dense.vars.1", DType::f32, {5}, Constant{0}),
      MakeTensor("layers.dense_1.vars.0", DType::bf16, {5, 3}, Uniform{-1, 1}, {{}, {0}}),
  };
  return MakePlan(std::move(graph));
}

// Returns a plan of format version 2: with segments, nested axes, stages and devices.
Plan ExtendedPlan() {
  InitGraph graph{.name = "extended",
                  .engine = "philox4x32",
                  .seed = 1,
                  .mesh = {{"x", "y"}, {2, 2}},
                  .replicas = Replicas::kDedupe,
                  .tensors = {}};
  graph.mesh.devices.ids = std::make_shared<std::vector<int64_t>>(std::vector<int64_t>{3, 1, 0, 2});
  DimensionPartition segments = {0}, nested = {0, 1};
  segments.segments = 2;
  nested.nested = {1, 1};
  graph.tensors = {
      MakeTensor("fused", DType::f32, {8, 3}, Normal{0, 0.5}, {segments, {}}),
      MakeTensor("turns", DType::f32, {5}, Normal{0, 0.5}, {nested}),
      MakeTensor("placed", DType::bf16, {6}, Uniform{-1, 1}, {{0}}),
  };
  graph.tensors.back().Edit().partition.pins = {{1, {1}}};
  return MakePlan(std::move(graph));
}

bool IsFound(const std::string& folder, bool is_export) {
  try {
    const VerifyResult result = (is_export ? VerifyExport : Verify)(*Place::At(folder), 1, {});
    return !result.findings.empty();
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ExitCode::kRefused) << e.what();
    return true;
  }
}

void ChangeEveryByte(const std::string& folder, bool is_export) {
  ASSERT_FALSE(IsFound(folder, is_export));
  const bool every = std::getenv("SHARDINIT_EVERY_BYTE") != nullptr;
  int64_t changed = 0, unnoticed = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
    if (!entry.is_regular_file()) continue;
    const std::string path = entry.path().string();
    const Fd fd(open(path.c_str(), O_RDWR | O_CLOEXEC));
    ASSERT_TRUE(fd);
    const int64_t size = FileSize(path);
    // The stride is odd, to reach all columns of text and all fields of binary structures.
    const int64_t stride = every ? 1 : 1 + size / 300 / 2 * 2;
    for (int64_t at = 0; at < size; at += stride) {
      uint8_t byte = 0;
      ASSERT_TRUE(ReadAll(fd.get(), &byte, 1, at));
      const int bit = static_cast<int>(at % 8);
      const uint8_t other = static_cast<uint8_t>(byte ^ 1u << bit);
      ASSERT_TRUE(WriteAll(fd.get(), &other, 1, at));
      ++changed;
      if (!IsFound(folder, is_export) && ++unnoticed <= 5) {
        ADD_FAILURE() << path << ", bit " << bit << " of byte " << at;
      }
      ASSERT_TRUE(WriteAll(fd.get(), &byte, 1, at));
    }
  }
  ASSERT_FALSE(IsFound(folder, is_export));
  EXPECT_EQ(unnoticed, 0);
  printf("%s: %lld changes, %lld unnoticed\n", folder.c_str(), static_cast<long long>(changed),
         static_cast<long long>(unnoticed));
}

constexpr WorkerOptions kFew = {.jobs = 1, .writers = 1, .memory = 4 << 20};

void ChangeCheckpoint(const Plan& plan) {
  SetUpHdf5Once();
  const WorkingFolder folder(std::map<std::string, std::string>{});
  WorkCounters counters;
  GenerateRequest request;
  request.folder = "checkpoint";
  for (int64_t r = 0; r < plan.world_size(); ++r) request.ranks.push_back(r);
  request.workers = kFew;
  ASSERT_TRUE(Generate(plan, request, &counters).complete);
  ChangeEveryByte("checkpoint", false);
}

TEST(EveryByte, VerifyFindsAnyChangedByteOfACheckpoint) { ChangeCheckpoint(TinyPlan()); }

TEST(EveryByte, VerifyFindsAnyChangedByteOfVersion2) {
  const Plan plan = ExtendedPlan();
  ASSERT_EQ(plan.format_version, 2);
  ChangeCheckpoint(plan);
}

class EveryByteOfAnExport : public testing::TestWithParam<std::string> {};

TEST_P(EveryByteOfAnExport, VerifyFindsAnyChangedByteOfAnExport) {
  SetUpHdf5Once();
  const WorkingFolder folder(std::map<std::string, std::string>{});
  WorkCounters counters;
  ExportRequest request;
  request.format = FindFormat(GetParam());
  request.folder = GetParam();
  for (const FormatOption* option : request.format->options) request.options[option] = 100;
  request.workers = kFew;
  const bool is_megatron = request.format->name == "megatron";
  Export(is_megatron ? TinyPlan("decoder.layers.mlp.linear_fc1.weight") : TinyPlan(), request,
         &counters);
  ChangeEveryByte(GetParam(), true);
}

INSTANTIATE_TEST_SUITE_P(Formats, EveryByteOfAnExport, testing::ValuesIn(FormatNames()));

}  // namespace
}  // namespace shardinit
