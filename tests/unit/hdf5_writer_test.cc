#include <fcntl.h>
#include <gtest/gtest.h>
#include <hdf5.h>

#include <cerrno>
#include <cmath>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "checkpoint/file_tasks.h"
#include "formats/hdf5/descriptor_file.h"
#include "formats/hdf5/layout.h"
#include "formats/hdf5/reader.h"
#include "formats/hdf5/writer.h"
#include "generate/fill.h"
#include "place/place.h"
#include "support/hdf5_once.h"
#include "support/random_plan.h"
#include "support/spec_text.h"
#include "tensor/encode.h"

namespace shardinit {
namespace {

using Contents = std::map<std::string, std::string>;

class Hdf5 : public testing::Test {
 protected:
  static void SetUpTestSuite() { SetUpHdf5Once(); }
};

Plan SamplePlan() {
  InitGraph graph{.name = "sample",
                  .engine = "philox4x32",
                  .seed = 42,
                  .mesh = {{"fsdp", "tp"}, {2, 2}},
                  .tensors = {}};
  graph.tensors = {
      MakeTensor("model.layers.0.w", DType::bf16, {100, 40}, Normal{0, 0.02}, {{0}, {1}}),
      MakeTensor("model.layers.0.big", DType::f32, {300, 200}, Uniform{0, 1}, {{0}}),
      MakeTensor("model.layers.1.w", DType::f16, {7, 3}, Normal{0, 1}, {{0, 1}}),
      MakeTensor("model.scale", DType::f64, {}, Constant{0.5}),
      MakeTensor("model.layers.0.late", DType::f64, {9}, Normal{1, 0.1}, {{1}}),
      MakeTensor("top", DType::f32, {5}, TruncatedNormal{0, 1, -2, 2}),
  };
  return MakePlan(std::move(graph));
}

struct Written {
  std::vector<int64_t> offsets;
  std::string bytes;
};

// Overwrites an existing file.
void WriteLayout(const FileLayout& layout, const std::string& path) {
  std::filesystem::remove(path);
  FileOutline outline = OutlineFile(layout);
  outline.path = path;
  Place::At(".")->Begin(outline)->Complete();
}

Written WriteRankFile(const Plan& plan, int64_t rank, const std::string& path) {
  const RankPlan made = PlanRank(plan, rank);
  const FileLayout layout = hdf5::LayOutRank(plan, made, Sha256Of("plan"));
  WriteLayout(layout, path);
  Written written{{}, ReadFile(path)};
  for (const FileBox& box : layout.boxes) written.offsets.push_back(box.offset);
  return written;
}

// Writes the shards' values at the offsets in the metadata.
void FillIn(const std::string& path, const Plan& plan, int64_t rank,
            const std::vector<int64_t>& offsets) {
  const Fd fd(open(path.c_str(), O_RDWR));
  const RankPlan made = PlanRank(plan, rank);
  for (size_t i = 0; i < made.shards.size(); ++i) {
    const Shard& shard = made.shards[i];
    const BoxFiller filler(*shard.tensor, shard.box);
    std::string bytes(static_cast<size_t>(shard.bytes()), '\0');
    filler.Fill(0, filler.elements(), bytes.data());
    ASSERT_TRUE(WriteAll(fd.get(), bytes.data(), bytes.size(), offsets[i]));
  }
}

// Reads a dataset as doubles, converted by HDF5 itself.
std::vector<double> ReadDoubles(const std::string& file, const std::string& dataset, Shape* shape) {
  const hid_t f = H5Fopen(file.c_str(), H5F_ACC_RDONLY, H5P_DEFAULT);
  EXPECT_GE(f, 0);
  const hid_t d = H5Dopen2(f, dataset.c_str(), H5P_DEFAULT);
  EXPECT_GE(d, 0) << dataset;
  const hid_t space = H5Dget_space(d);
  hsize_t extents[32];
  const int rank = H5Sget_simple_extent_dims(space, extents, nullptr);
  shape->assign(extents, extents + rank);
  std::vector<double> values(static_cast<size_t>(H5Sget_simple_extent_npoints(space)));
  EXPECT_GE(H5Dread(d, H5T_NATIVE_DOUBLE, H5S_ALL, H5S_ALL, H5P_DEFAULT, values.data()), 0);
  H5Sclose(space);
  H5Dclose(d);
  H5Fclose(f);
  return values;
}

std::vector<double> ExpectedDoubles(const Tensor& tensor, const Box& box) {
  const BoxFiller filler(tensor, box);
  const size_t size = static_cast<size_t>(filler.element_bytes());
  std::vector<uint8_t> bytes(static_cast<size_t>(filler.elements()) * size);
  filler.Fill(0, filler.elements(), bytes.data());
  std::vector<double> values;
  for (size_t at = 0; at < bytes.size(); at += size)
    values.push_back(Decode(&bytes[at], tensor.dtype()));
  return values;
}

TEST_F(Hdf5, EqualPlansGiveEqualHdf5Files) {
  const Plan plan = SamplePlan();
  const WorkingFolder folder(Contents{});
  for (int64_t rank = 0; rank < plan.world_size(); ++rank) {
    const Written first = WriteRankFile(plan, rank, "a.h5");
    const Written second = WriteRankFile(plan, rank, "another-name.h5");
    EXPECT_EQ(first.offsets, second.offsets);
    EXPECT_TRUE(first.bytes == second.bytes) << "rank " << rank;
  }
}

TEST_F(Hdf5, BoxesAreDisjointAndInsideTheFile) {
  const Plan plan = SamplePlan();
  const WorkingFolder folder(Contents{});
  for (int64_t rank = 0; rank < plan.world_size(); ++rank) {
    const Written written = WriteRankFile(plan, rank, "a.h5");
    const RankPlan made = PlanRank(plan, rank);
    ASSERT_EQ(written.offsets.size(), made.shards.size());
    std::vector<std::pair<int64_t, int64_t>> ranges;
    for (size_t i = 0; i < made.shards.size(); ++i) {
      ranges.emplace_back(written.offsets[i], written.offsets[i] + made.shards[i].bytes());
      if (made.shards[i].bytes() >= hdf5::kAlignFrom) {
        EXPECT_EQ(written.offsets[i] % hdf5::kAlignment, 0) << made.shards[i].tensor->path();
      }
    }
    std::sort(ranges.begin(), ranges.end());
    for (size_t i = 1; i < ranges.size(); ++i) EXPECT_LE(ranges[i - 1].second, ranges[i].first);
    EXPECT_GT(ranges.front().first, 0);
    EXPECT_LE(ranges.back().second, std::ssize(written.bytes));
  }
}

TEST_F(Hdf5, AlignsEveryLargeBox) {
  InitGraph graph{.name = "x", .engine = "philox4x32", .mesh = {}, .tensors = {}};
  for (int i = 0; i < 20; ++i) {
    graph.tensors.push_back(
        MakeTensor("small" + std::to_string(i), DType::bf16, {i + 1}, Constant{1}));
    graph.tensors.push_back(
        MakeTensor("large" + std::to_string(i), DType::f32, {16384 + i}, Constant{1}));
  }
  const Plan plan = MakePlan(std::move(graph));
  const WorkingFolder folder(Contents{});
  const Written written = WriteRankFile(plan, 0, "a.h5");
  for (size_t i = 1; i < written.offsets.size(); i += 2)
    EXPECT_EQ(written.offsets[i] % 4096, 0) << i;
}

TEST_F(Hdf5, DescribeFileListsEverything) {
  const Plan plan = SamplePlan();
  const WorkingFolder folder(Contents{});
  const Written written = WriteRankFile(plan, 3, "a.h5");
  const auto in = nlohmann::json::parse(hdf5::DescribeFile("a.h5"));
  EXPECT_EQ(in.at("format_version"), kFormatVersion);
  EXPECT_EQ(in.at("contract_version"), kContractVersion);
  EXPECT_EQ(in.at("seed"), 42);
  EXPECT_EQ(in.at("engine"), "philox4x32");
  EXPECT_EQ(in.at("rank"), 3);
  EXPECT_EQ(in.at("world_size"), 4);
  EXPECT_EQ(in.at("mesh_shape"), (std::vector<int64_t>{2, 2}));
  EXPECT_EQ(in.at("coordinate"), (std::vector<int64_t>{1, 1}));
  EXPECT_EQ(in.at("plan_sha256"), ToHex(Sha256Of("plan")));
  const RankPlan made = PlanRank(plan, 3);
  ASSERT_EQ(in.at("datasets").size(), made.shards.size());
  for (size_t i = 0; i < made.shards.size(); ++i) {
    const Shard& shard = made.shards[i];
    bool found = false;
    for (const auto& dataset : in.at("datasets")) {
      if (dataset.at("path") != shard.tensor->path()) continue;
      found = true;
      EXPECT_EQ(dataset.at("dataset"), DatasetPath(*shard.tensor));
      EXPECT_EQ(dataset.at("dtype"), std::string(InfoOf(shard.tensor->dtype()).name));
      EXPECT_EQ(dataset.at("global_shape"), shard.tensor->shape());
      EXPECT_EQ(dataset.at("offset"), shard.box.offset);
      EXPECT_EQ(dataset.at("shape"), shard.box.shape);
      EXPECT_EQ(dataset.at("layout"), "contiguous");
      EXPECT_EQ(dataset.at("file_offset"), written.offsets[i]);
    }
    EXPECT_TRUE(found) << shard.tensor->path();
  }
}

TEST_F(Hdf5, ReadsBoxesWrittenWithoutHdf5) {
  const Plan plan = SamplePlan();
  const WorkingFolder folder(Contents{});
  for (int64_t rank = 0; rank < plan.world_size(); ++rank) {
    const Written written = WriteRankFile(plan, rank, "a.h5");
    FillIn("a.h5", plan, rank, written.offsets);
    const RankPlan made = PlanRank(plan, rank);
    for (const Shard& shard : made.shards) {
      Shape shape;
      const auto values = ReadDoubles("a.h5", DatasetPath(*shard.tensor), &shape);
      EXPECT_EQ(shape, shard.box.shape);
      EXPECT_TRUE(values == ExpectedDoubles(*shard.tensor, shard.box)) << shard.tensor->path();
    }
  }
}

TEST_F(Hdf5, IndexShowsWholeTensors) {
  const Plan plan = SamplePlan();
  const WorkingFolder folder(Contents{{"ranks/.keep", ""}});
  for (int64_t rank = 0; rank < plan.world_size(); ++rank) {
    const Written written = WriteRankFile(plan, rank, RankFile(rank));
    FillIn(RankFile(rank), plan, rank, written.offsets);
  }
  std::string bytes[2];
  for (std::string& text : bytes) {
    WriteLayout(hdf5::LayOutIndex("index.h5", plan, Sha256Of("plan")), "index.h5");
    text = ReadFile("index.h5");
  }
  EXPECT_TRUE(bytes[0] == bytes[1]);
  Shape shape;
  for (const Tensor& tensor : plan.graph.tensors) {
    const auto values = ReadDoubles("index.h5", DatasetPath(tensor), &shape);
    EXPECT_EQ(shape, tensor.shape());
    EXPECT_TRUE(values == ExpectedDoubles(tensor, WholeOf(tensor.shape()))) << tensor.path();
  }
  // A missing piece must not look like numbers.
  std::filesystem::remove(RankFile(3));
  const Tensor& w = plan.graph.tensors[0];
  const auto values = ReadDoubles("index.h5", DatasetPath(w), &shape);
  const auto expected = ExpectedDoubles(w, WholeOf(w.shape()));
  const Box gone = plan.ShardingOf(w).BoxesOn(3)[0];
  for (int64_t i = 0; i < 100; ++i) {
    for (int64_t j = 0; j < 40; ++j) {
      const size_t at = static_cast<size_t>(i * 40 + j);
      const bool missing = i >= gone.offset[0] && j >= gone.offset[1];
      if (missing) {
        ASSERT_TRUE(std::isnan(values[at])) << i << ", " << j;
      } else {
        ASSERT_EQ(values[at], expected[at]) << i << ", " << j;
      }
    }
  }
}

TEST_F(Hdf5, RankWithoutBoxesHasAFile) {
  InitGraph graph{.name = "x", .engine = "philox4x32", .mesh = {{"x"}, {4}}, .tensors = {}};
  graph.tensors = {MakeTensor("w", DType::f32, {2}, Constant{1}, {{0}})};
  const Plan plan = MakePlan(std::move(graph));
  const WorkingFolder folder(Contents{});
  EXPECT_EQ(WriteRankFile(plan, 3, "a.h5").offsets, std::vector<int64_t>{});
  const auto in = nlohmann::json::parse(hdf5::DescribeFile("a.h5"));
  EXPECT_EQ(in.at("datasets").size(), 0u);
  EXPECT_EQ(in.at("rank"), 3);
}

TEST_F(Hdf5, OneRankWithoutAxesHasEmptyAttributes) {
  InitGraph graph{.name = "x", .engine = "philox4x32", .mesh = {}, .tensors = {}};
  graph.tensors = {MakeTensor("w", DType::f32, {}, Constant{1})};
  const Plan plan = MakePlan(std::move(graph));
  const WorkingFolder folder(Contents{});
  WriteRankFile(plan, 0, "a.h5");
  const auto in = nlohmann::json::parse(hdf5::DescribeFile("a.h5"));
  EXPECT_EQ(in.at("mesh_shape"), std::vector<int64_t>{});
  EXPECT_EQ(in.at("datasets").at(0).at("global_shape"), std::vector<int64_t>{});
}

// The element types equal HDF5's own types field by field.
TEST_F(Hdf5, ElementTypesEqualHdf5Types) {
  InitGraph graph{.name = "x", .engine = "philox4x32", .mesh = {}, .tensors = {}};
  for (const DTypeInfo& info : DTypes()) {
    if (info.kind == DTypeKind::kCarried) continue;
    graph.tensors.push_back(MakeTensor(std::string(info.name), info.dtype, {2}, Constant{1}));
  }
  const Plan plan = MakePlan(std::move(graph));
  const WorkingFolder folder(Contents{});
  WriteRankFile(plan, 0, "a.h5");
  const hid_t file = H5Fopen("a.h5", H5F_ACC_RDONLY, H5P_DEFAULT);
  for (const DTypeInfo& info : DTypes()) {
    if (info.kind == DTypeKind::kCarried) continue;
    const hid_t dataset = H5Dopen2(file, std::string(info.name).c_str(), H5P_DEFAULT);
    const hid_t type = H5Dget_type(dataset);
    EXPECT_EQ(H5Tget_size(type), static_cast<size_t>(info.bytes));
    EXPECT_EQ(H5Tget_order(type), H5T_ORDER_LE);
    if (!info.is_float()) {
      EXPECT_EQ(H5Tget_class(type), H5T_INTEGER);
      EXPECT_EQ(H5Tget_precision(type), static_cast<size_t>(8 * info.bytes));
      EXPECT_EQ(H5Tget_sign(type), info.kind == DTypeKind::kSigned ? H5T_SGN_2 : H5T_SGN_NONE);
      H5Tclose(type);
      H5Dclose(dataset);
      continue;
    }
    size_t sign, exponent_at, exponent, mantissa_at, mantissa;
    H5Tget_fields(type, &sign, &exponent_at, &exponent, &mantissa_at, &mantissa);
    EXPECT_EQ(H5Tget_class(type), H5T_FLOAT);
    EXPECT_EQ(sign, static_cast<size_t>(8 * info.bytes - 1));
    EXPECT_EQ(exponent, static_cast<size_t>(info.exponent_bits));
    EXPECT_EQ(exponent_at, static_cast<size_t>(info.mantissa_bits));
    EXPECT_EQ(mantissa, static_cast<size_t>(info.mantissa_bits));
    EXPECT_EQ(mantissa_at, 0u);
    EXPECT_EQ(H5Tget_ebias(type), (size_t{1} << (info.exponent_bits - 1)) - 1);
    EXPECT_EQ(H5Tget_norm(type), H5T_NORM_IMPLIED);
    H5Tclose(type);
    H5Dclose(dataset);
  }
  H5Fclose(file);
}

std::string Failure(ExitCode code, const std::string& path,
                    std::chrono::milliseconds time = std::chrono::minutes(1)) {
  try {
    hdf5::DescribeFile(path, time);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code) << error.what();
    return error.what();
  }
  return "";
}

TEST_F(Hdf5, RejectsFilesThatAreNotHdf5) {
  const WorkingFolder folder(Contents{{"text", "hello"}, {"empty", ""}});
  EXPECT_EQ(Failure(ExitCode::kWorld, "none"), "cannot read `none`: No such file or directory");
  EXPECT_TRUE(Failure(ExitCode::kRefused, "text").starts_with("`text` is refused: "));
  EXPECT_TRUE(Failure(ExitCode::kRefused, "empty").starts_with("`empty` is refused: "));
}

TEST_F(Hdf5, ReadingHdf5HasATimeLimit) {
  const WorkingFolder folder(Contents{});
  WriteRankFile(SamplePlan(), 0, "a.h5");
  EXPECT_EQ(Failure(ExitCode::kRefused, "a.h5"), "");
  EXPECT_EQ(Failure(ExitCode::kRefused, "a.h5", std::chrono::milliseconds(0)),
            "`a.h5` is refused: reading its structure crashed HDF5 or took too much");
}

TEST_F(Hdf5, RejectsLinksToOtherFiles) {
  const WorkingFolder folder(Contents{});
  for (const bool external : {false, true}) {
    const hid_t file = H5Fcreate("a.h5", H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT);
    if (external) {
      H5Lcreate_external("/etc/passwd", "/x", file, "link", H5P_DEFAULT, H5P_DEFAULT);
    } else {
      H5Lcreate_soft("/x", file, "link", H5P_DEFAULT, H5P_DEFAULT);
    }
    H5Fclose(file);
    EXPECT_EQ(Failure(ExitCode::kRefused, "a.h5"),
              "`a.h5` is refused: `/link` is a link to elsewhere");
  }
}

// Damage anywhere in the metadata ends in an answer or a refusal, never in a crash or a hang of
// this process.
TEST_F(Hdf5, SurvivesDamagedHdf5) {
  const Plan plan = SamplePlan();
  const WorkingFolder folder(Contents{});
  const std::string good = WriteRankFile(plan, 0, "a.h5").bytes;
  Random random(1);
  for (int i = 0; i < 60; ++i) {
    std::string bad = good;
    for (int k = 0; k < 4; ++k) {
      bad[static_cast<size_t>(random.In(0, 6000))] = static_cast<char>(random.Bits());
    }
    if (i % 10 == 0) bad.resize(static_cast<size_t>(random.In(0, std::ssize(bad))));
    const std::string path = testing::TempDir() + "/shardinit-bad.h5";
    std::ofstream(path, std::ios::binary) << bad;
    try {
      EXPECT_TRUE(nlohmann::json::accept(hdf5::DescribeFile(path)));
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::kRefused) << error.what();
    }
  }
}

// A file that shrinks while it is read is not damaged: the disk lacks its bytes.
TEST_F(Hdf5, ShrunkenFileIsASystemError) {
  const Fd empty(open("/dev/null", O_RDONLY | O_CLOEXEC));
  hdf5::DescriptorFile file(empty.get(), 4096);
  EXPECT_THROW(file.Open(), std::exception);
  EXPECT_EQ(file.error(), EIO);
}

}  // namespace
}  // namespace shardinit
