#include <gtest/gtest.h>

#include "base/error.h"
#include "graph/engines/engines.h"
#include "graph/stored/view.h"
#include "graph/validate.h"
#include "plan/plan.h"
#include "rng/engines.h"
#include "support/graph_text.h"
#include "support/random_plan.h"

namespace shardinit {
namespace {

Plan PlanOfTwoRanks() {
  InitGraph graph{.name = "small",
                  .engine = "philox4x32",
                  .seed = 7,
                  .mesh = {{"fsdp", "tensor"}, {2, 3}},
                  .tensors = {}};
  graph.tensors = {
      MakeTensor("a.w", DType::bf16, {5, 7}, Normal{0, 0.02}, {{0, 1}, {}}),
      MakeTensor("a.b", DType::f32, {}, Constant{1}),
      MakeTensor("c", DType::f64, {4}, TruncatedNormal{0.5, 1, -2, 3}, {{1}}),
  };
  graph.tensors[2].set_key(DrawPath{"old.c"});
  for (Tensor& tensor : graph.tensors) {
    if (!IsRandom(tensor.distribution())) continue;
    tensor.set_stream({.key = KeyOf(7, DrawPathOf(tensor))});
  }
  return MakePlan(std::move(graph));
}

constexpr char kPlanOfTwoRanks[] = R"({
 "format_version": 1,
 "contract_version": 1,
 "name": "small",
 "engine": "philox4x32",
 "seed": 7,
 "mesh": {"axes": ["fsdp", "tensor"], "shape": [2, 3]},
 "replicas": "dedupe",
 "tensors": [
  {"path": "a.w", "dtype": "bf16", "global_shape": [5, 7], "partition_spec": [["fsdp", "tensor"], []], "init": {"normal": {"mean": 0, "std": 0.02}}},
  {"path": "a.b", "dtype": "f32", "global_shape": [], "partition_spec": [], "init": {"constant": {"value": 1}}},
  {"path": "c", "dtype": "f64", "global_shape": [4], "partition_spec": [["tensor"]], "init": {"truncated_normal": {"mean": 0.5, "std": 1, "low": -2, "high": 3}}, "key": "old.c"}
 ]
}
)";

std::string PlanRefusal(const std::string& text) {
  try {
    ReadPlan(text, "plan.json");
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kRefused) << error.what();
    return error.what();
  }
  return "";
}

std::string Replaced(std::string text, const std::string& from, const std::string& to) {
  const size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return text.replace(at, from.size(), to);
}

std::string PlanWith(const std::string& from, const std::string& to) {
  return Replaced(kPlanOfTwoRanks, from, to);
}

TEST(WritePlan, WritePlanIsCanonical) { EXPECT_EQ(WritePlan(PlanOfTwoRanks()), kPlanOfTwoRanks); }

TEST(ReadPlan, ReadPlanInvertsWritePlan) {
  const Plan plan = ReadPlan(kPlanOfTwoRanks, "plan.json"), expected = PlanOfTwoRanks();
  EXPECT_EQ(Print(plan.graph), Print(expected.graph));
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(plan.graph.tensors[i].stream().key, expected.graph.tensors[i].stream().key);
    EXPECT_EQ(plan.graph.tensors[i].distribution(), expected.graph.tensors[i].distribution());
  }
  EXPECT_EQ(plan.parameters, 5 * 7 + 1 + 4);
  EXPECT_EQ(plan.bytes, 5 * 7 * 2 + 4 + 4 * 8);
  EXPECT_EQ(plan.boxes, 5 + 1 + 2);
  EXPECT_EQ(plan.max_rank_bytes, 7 * 2 + 4 + 2 * 8);
}

TEST(ReadPlan, ReadsPlansWithMatrices) {
  InitGraph graph{.name = "x", .engine = "philox4x32", .mesh = {}, .tensors = {}};
  graph.tensors = {MakeTensor("w", DType::f32, {3, 4, 5}, Orthogonal{-2, 5, 2})};
  graph.tensors[0].set_stream({.key = KeyOf(0, "w")});
  const std::string text = WritePlan(MakePlan(graph));
  const std::string orthogonal =
      R"("init": {"orthogonal": {"gain": -2, "rows": [0, 2], "columns": [1]}})";
  const size_t at = text.find(orthogonal);
  ASSERT_NE(at, std::string::npos) << text;
  const Plan back = ReadPlan(text, "plan.json");
  EXPECT_EQ(back.graph.tensors[0].distribution(), graph.tensors[0].distribution());
  EXPECT_EQ(back.graph.tensors[0].stream().key, graph.tensors[0].stream().key);
  for (const char* bad : {
           R"({"gain": 0, "rows": [0, 2], "columns": [1]})",
           R"({"gain": 1e40, "rows": [0, 2], "columns": [1]})",
           R"({"gain": 1, "rows": [1], "columns": [0]})",
           R"({"gain": 1, "rows": [0, 1], "columns": [1]})",
           R"({"gain": 1, "rows": [], "columns": [1]})",
           R"({"gain": 1, "rows": [0], "columns": []})",
           R"({"gain": 1, "rows": [0], "columns": [3]})",
           R"({"gain": 1, "rows": [0], "columns": [-1]})",
           R"({"gain": 1, "rows": [2, 0], "columns": [1]})",
           R"({"gain": 1, "rows": [0, 0], "columns": [1]})",
           R"({"gain": 1, "rows": 0, "columns": [1]})",
           R"({"gain": 1, "rows": [0]})",
           R"([])",
       }) {
    std::string changed = text;
    changed.replace(at, orthogonal.size(), std::string(R"("init": {"orthogonal": )") + bad + "}");
    EXPECT_NE(PlanRefusal(changed), "") << bad;
  }
  graph.tensors[0].Edit().shape = {1 << 15, 1, 1 << 15};
  EXPECT_EQ(PlanRefusal(WritePlan(MakePlan(graph))), "");
  graph.tensors[0].Edit().shape = {1 << 17, 1, 1 << 17};
  EXPECT_EQ(PlanRefusal(WritePlan(MakePlan(graph))),
            "`plan.json` is not a plan of this tool: the `init` of `w`: no orthogonal matrix of "
            "17179869184 × 1 with the gain -2 can be made");
}

TEST(ReadPlan, ReadsSparseAndNormalized) {
  const auto plan_of = [](Distribution distribution) {
    InitGraph graph{.name = "x", .engine = "philox4x32", .mesh = {}, .tensors = {}};
    graph.tensors = {MakeTensor("w", DType::f32, {4, 3}, distribution)};
    graph.tensors[0].set_stream({.key = KeyOf(0, "w")});
    return WritePlan(MakePlan(graph));
  };
  for (const Distribution& good :
       {Distribution(Sparse{0.5, 0}), Distribution(Sparse{0, 4}), Distribution(Normalized{1, 2})}) {
    const Plan back = ReadPlan(plan_of(good), "plan.json");
    EXPECT_EQ(back.graph.tensors[0].distribution(), good);
  }
  EXPECT_NE(plan_of(Sparse{0.5, 2}).find(R"({"sparse": {"std": 0.5, "zeros": 2}})"),
            std::string::npos);
  EXPECT_NE(plan_of(Normalized{1, 2}).find(R"({"normalized": {"axis": 1, "length": 2}})"),
            std::string::npos);
  for (const Distribution& bad :
       {Distribution(Sparse{0.5, 5}), Distribution(Sparse{0.5, -1}), Distribution(Sparse{-1, 1}),
        Distribution(Sparse{1e40, 1}), Distribution(Normalized{2, 1}),
        Distribution(Normalized{-1, 1}), Distribution(Normalized{0, 0}),
        Distribution(Normalized{0, -1})}) {
    EXPECT_NE(PlanRefusal(plan_of(bad)), "") << Print(bad);
  }
}

TEST(ReadPlan, ReadsTorchStreamPositions) {
  InitGraph graph{
      .name = "small", .engine = std::string(kTorchCpu.name), .seed = 7, .mesh = {}, .tensors = {}};
  graph.tensors = {MakeTensor("a", DType::f32, {5}, Normal{0, 1}),
                   MakeTensor("b", DType::f32, {2}, Constant{1}),
                   MakeTensor("c", DType::bf16, {3}, Normal{0, 1}),
                   MakeTensor("d", DType::bf16, {3}, Uniform{0, 1})};
  graph.tensors[3].set_key(StreamPlace{1000, kNoSpare});
  graph.tensors[3].Edit().is_buffer = true;
  AssignStreams(kTorchCpu, 7, graph.tensors);
  const std::string text = WritePlan(MakePlan(std::move(graph)));
  EXPECT_NE(text.find(R"("key": {"position": 12, "spare": 8}})"), std::string::npos) << text;
  EXPECT_NE(text.find(R"("key": {"position": 1000}, "kind": "buffer"})"), std::string::npos)
      << text;
  EXPECT_EQ(WritePlan(ReadPlan(text, "plan.json")), text);

  const std::string key = R"(, "key": {"position": 12, "spare": 8})";
  for (const std::string& other :
       {std::string(), std::string(R"(, "key": "c")"), std::string(R"(, "key": {"position": -1})"),
        std::string(R"(, "key": {"position": 12, "spare": "8"})"),
        std::string(R"(, "key": {"words": [1, 2]})")}) {
    EXPECT_NE(PlanRefusal(Replaced(text, key, other)), "") << other;
  }
  // The engine cannot draw the first plan; the others have a position for another engine.
  EXPECT_NE(PlanRefusal(Replaced(
                text, R"("bf16", "global_shape": [3], "partition_spec": [[]], "init": {"normal")",
                R"("f64", "global_shape": [3], "partition_spec": [[]], "init": {"normal")")),
            "");
  EXPECT_NE(PlanRefusal(Replaced(text, "torch_cpu/2.13/avx2", "philox4x32")), "");
  EXPECT_NE(PlanRefusal(Replaced(text, "torch_cpu/2.13/avx2", "torch_cpu")), "");
}

// A plan contains the digest of a file, not its path: the same model gives the same plan wherever
// its spec is.
TEST(ReadPlan, ReadsTheDigestOfAFile) {
  const auto plan_of = [](const std::string& sha256) {
    InitGraph graph{.name = "x", .engine = "philox4x32", .mesh = {}, .tensors = {}};
    graph.tensors = {MakeTensor("w", DType::i8, {4, 3}, FromFile{sha256})};
    return WritePlan(MakePlan(graph));
  };
  const std::string sha256 = ToHex(Sha256Of("x"));
  EXPECT_NE(plan_of(sha256).find(R"("init": {"file": {"sha256": ")" + sha256 + "\"}}"),
            std::string::npos);
  EXPECT_EQ(ReadPlan(plan_of(sha256), "plan.json").graph.tensors[0].distribution(),
            Distribution(FromFile{sha256}));
  for (const std::string& bad :
       {std::string(), sha256.substr(1), sha256 + "0", "X" + sha256.substr(1)}) {
    EXPECT_EQ(PlanRefusal(plan_of(bad)),
              "`plan.json` is not a plan of this tool: the `init` of `w`: `sha256` must be 64 "
              "hexadecimal digits, not `" +
                  bad + "`");
  }
}

TEST(ReadPlan, ReadsAnEmptyPlan) {
  const Plan plan = MakePlan({.name = "x", .engine = "philox4x32", .mesh = {}, .tensors = {}});
  const std::string text = WritePlan(plan);
  EXPECT_EQ(WritePlan(ReadPlan(text, "plan.json")), text);
}

TEST(ReadPlan, RandomPlansSurviveARoundTrip) {
  Random random(1);
  const Distribution distributions[] = {
      Constant{-0.0},         Constant{1},
      Constant{1e300},        Constant{0.1 + 0.2},
      Uniform{-0.0, 0x1p-80}, Uniform{-0.5, 0.25},
      Normal{1.0 / 3, 0},     TruncatedNormal{0, 0.02, -1e6, 1.0 / 7}};
  for (int i = 0; i < 300 && !testing::Test::HasFailure(); ++i) {
    InitGraph graph{.name = "x",
                    .engine = "philox4x32",
                    .seed = random.Bits(),
                    .mesh = RandomMesh(random),
                    .replicas = random.Chance(2) ? Replicas::kFull : Replicas::kDedupe,
                    .tensors = {}};
    const int64_t tensors = random.In(0, 5);
    for (int64_t t = 0; t < tensors; ++t) {
      Shape shape = RandomShape(random);
      PartitionSpec partition = RandomPartition(random, graph.mesh, shape);
      const Distribution& distribution = distributions[random.In(0, 7)];
      DType dtype = DTypes()[static_cast<size_t>(random.In(0, std::ssize(DTypes()) - 1))].dtype;
      if (!MisfitOf(distribution, dtype).what.empty()) dtype = DType::f64;
      Tensor tensor = MakeTensor(fmt::format("g.{}-t_", t), dtype, std::move(shape), distribution,
                                 std::move(partition));
      tensor.Edit().is_buffer = random.Chance(3);
      if (random.Chance(3)) {
        tensor.set_key(DrawPath{fmt::format("\"old\" ключ {}", t)});
      } else if (random.Chance(3)) {
        tensor.set_key(KeyWords{0xFEDCBA9876543210 + static_cast<uint64_t>(t)});
      }
      if (IsRandom(tensor.distribution())) {
        const auto* const words = std::get_if<KeyWords>(&tensor.key());
        tensor.set_stream({.key = words ? words->key : KeyOf(graph.seed, DrawPathOf(tensor))});
      }
      graph.tensors.push_back(std::move(tensor));
    }
    const Plan plan = MakePlan(std::move(graph));
    const std::string text = WritePlan(plan);
    const Plan back = ReadPlan(text, "plan.json");
    EXPECT_EQ(WritePlan(back), text);
    EXPECT_EQ(Print(back.graph), Print(plan.graph));
    for (size_t t = 0; t < plan.graph.tensors.size(); ++t) {
      EXPECT_EQ(back.graph.tensors[t].stream().key, plan.graph.tensors[t].stream().key);
      EXPECT_EQ(back.graph.tensors[t].is_buffer(), plan.graph.tensors[t].is_buffer());
    }
    EXPECT_EQ(back.boxes, plan.boxes);
    EXPECT_EQ(back.max_rank_bytes, plan.max_rank_bytes);
  }
}

TEST(ReadPlan, NamesTheFormatVersionThatItNeeds) {
  EXPECT_EQ(
      PlanRefusal(PlanWith("\"format_version\": 1", "\"format_version\": 3")),
      "`plan.json` has format version 3 and contract version 1, but this tool knows 1 to 2, and 1");
  EXPECT_EQ(PlanRefusal(PlanWith("\"contract_version\": 1", "\"contract_version\": \"9\"")),
            "`plan.json` has format version 1 and contract version \"9\", but this tool knows 1 to "
            "2, and 1");
}

struct Malformation {
  const char* from;
  const char* to;
  const char* message;  // after "`plan.json` is not a plan of this tool: "; null accepts any
};

void ExpectRefused(const std::string& plan, const Malformation& m) {
  const std::string message = PlanRefusal(Replaced(plan, m.from, m.to));
  if (m.message != nullptr) {
    EXPECT_EQ(message, std::string("`plan.json` is not a plan of this tool: ") + m.message);
  } else {
    EXPECT_NE(message, "") << m.to;
  }
}

class Hostile : public testing::TestWithParam<Malformation> {};

TEST_P(Hostile, RejectsMalformedPlans) { ExpectRefused(kPlanOfTwoRanks, GetParam()); }

INSTANTIATE_TEST_SUITE_P(
    Top, Hostile,
    testing::Values(
        Malformation{"{\n \"format_version\": 1,", "[", nullptr},
        Malformation{"\"format_version\": 1,", "", nullptr},
        Malformation{"\"format_version\": 1", "\"format_version\": null", nullptr},
        Malformation{"\"format_version\": 1", "\"format_version\": 1.0",
                     "it is not written as this tool writes"},
        Malformation{"\"format_version\": 1", "\"format_version\": true", nullptr},
        Malformation{"\"name\": \"small\",", "", nullptr},
        Malformation{"\"name\": \"small\"", "\"name\": 3", nullptr},
        Malformation{"\"name\": \"small\"", "\"name\": \"\"", "no spec has the model name ``"},
        Malformation{"\"name\": \"small\"", "\"name\": \"../small\"",
                     "no spec has the model name `../small`"},
        Malformation{"\"name\": \"small\"", "\"name\": \"\\u001b[2J\"",
                     "no spec has the model name `\\x1b[2J`"},
        Malformation{"philox4x32", "philox", "unknown engine `philox`"},
        Malformation{"\"seed\": 7", "\"seed\": -1",
                     "`seed` must be a whole number from 0 on, not -1"},
        Malformation{"\"seed\": 7", "\"seed\": 7.5",
                     "`seed` must be a whole number from 0 on, not 7.5"},
        Malformation{"\"seed\": 7", "\"seed\": 18446744073709551616",
                     "`seed` must be a whole number from 0 on, not 1.8446744073709552e+19"},
        Malformation{"\"seed\": 7", "\"seed\": \"7\"", nullptr},
        Malformation{"\"seed\": 7", "\"seed\": true", nullptr},
        Malformation{"\"seed\": 7", "\"seed\": 1e300", nullptr},
        Malformation{"dedupe", "none", "it is not written as this tool writes"},
        Malformation{"\"replicas\": \"dedupe\",", "", nullptr},
        Malformation{"\"seed\": 7", "\"seed\": 7, \"extra\": 1",
                     "it is not written as this tool writes"},
        Malformation{"\"seed\": 7", "\"seed\": 7, \"seed\": 8", nullptr},
        Malformation{"\"seed\": 7", "\"seed\":  7", "it is not written as this tool writes"},
        Malformation{"\n}\n", "\n}", "it is not written as this tool writes"},
        Malformation{"\n}\n", "", nullptr}));

INSTANTIATE_TEST_SUITE_P(
    Mesh, Hostile,
    testing::Values(
        Malformation{"[2, 3]", "[2]", "`axes` and `shape` of the mesh have 2 and 1 entries"},
        Malformation{"[2, 3]", "[2, 3, 4]", "`axes` and `shape` of the mesh have 2 and 3 entries"},
        Malformation{"[2, 3]", "[0, 3]",
                     "the mesh [0, 3] has an axis below 1 or more than 16777216 ranks"},
        Malformation{"[2, 3]", "[-2, -3]",
                     "the mesh [-2, -3] has an axis below 1 or more than 16777216 ranks"},
        Malformation{"[2, 3]", "[16777216, 3]",
                     "the mesh [16777216, 3] has an axis below 1 or more than 16777216 ranks"},
        Malformation{
            "[2, 3]", "[4294967296, 4294967296]",
            "the mesh [4294967296, 4294967296] has an axis below 1 or more than 16777216 ranks"},
        Malformation{"[2, 3]", "[2, 3.5]",
                     "the value must be a whole number from -9223372036854775808 to "
                     "9223372036854775807, not 3.5"},
        Malformation{"[2, 3]", "{\"a\": 2, \"b\": 3}", nullptr},
        Malformation{"[2, 3]", "6", nullptr},
        Malformation{"\"axes\": [\"fsdp\", \"tensor\"]", "\"axes\": [\"fsdp\", \"fsdp\"]",
                     "the mesh has the axis `fsdp` twice, or no spec has such a name"},
        Malformation{"\"axes\": [\"fsdp\", \"tensor\"]", "\"axes\": [\"fsdp\", \"\"]",
                     "the mesh has the axis `` twice, or no spec has such a name"},
        Malformation{"\"axes\": [\"fsdp\", \"tensor\"]", "\"axes\": [\"fsdp\", \"\\u001b[2J\"]",
                     "the mesh has the axis `\\x1b[2J` twice, or no spec has such a name"},
        Malformation{"\"axes\": [\"fsdp\", \"tensor\"]", "\"axes\": [\"fsdp\", 5]", nullptr}));

INSTANTIATE_TEST_SUITE_P(
    Tensor, Hostile,
    testing::Values(
        Malformation{"\"a.w\"", "\"a..w\"", "no spec has the tensor path `a..w`"},
        Malformation{"\"a.w\"", "\"../w\"", "no spec has the tensor path `../w`"},
        Malformation{"\"a.w\"", "\"/a/w\"", "no spec has the tensor path `/a/w`"},
        Malformation{"\"a.w\"", "\".a\"", "no spec has the tensor path `.a`"},
        Malformation{"\"a.w\"", "\"a.\"", "no spec has the tensor path `a.`"},
        Malformation{"\"a.w\"", "\"\"", "no spec has the tensor path ``"},
        Malformation{"\"a.w\"", "\"a\\u0000w\"", nullptr},
        Malformation{"\"a.w\"", "\"a.b\"", "two tensors have the path `a.b`"},
        Malformation{"\"a.w\"", "\"c.w\"", "`c` is a tensor and also the group of `c.w`"},
        Malformation{"bf16", "bf17", "unknown dtype \"bf17\""},
        Malformation{"\"bf16\"", "16", nullptr},
        Malformation{"[5, 7]", "[5, 0]", "`a.w` cannot have the shape [5, 0]"},
        Malformation{"[5, 7]", "[5, -7]", "`a.w` cannot have the shape [5, -7]"},
        Malformation{"[5, 7]", "[4294967296, 4294967296]",
                     "`a.w` cannot have the shape [4294967296, 4294967296]"},
        Malformation{"[5, 7]", "[4611686018427387904, 1]",
                     "`a.w` cannot have the shape [4611686018427387904, 1]"},
        Malformation{"[5, 7]", "[5, 7, 1]",
                     "the partition of `a.w` has 2 dimensions, but its shape 3"},
        Malformation{"[5, 7]", "[5, 7.5]",
                     "the value must be a whole number from -9223372036854775808 to "
                     "9223372036854775807, not 7.5"},
        Malformation{"[5, 7]", "[5, true]", nullptr},
        Malformation{"[5, 7]",
                     "[1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1]",
                     "`a.w` has 33 dimensions, but at most 32 are allowed"},
        Malformation{"[5, 7]", "35", nullptr},
        Malformation{"[[\"fsdp\", \"tensor\"], []]", "[[\"fsdp\", \"fsdp\"], []]",
                     "`a.w` has a mesh axis twice, or one that is not in the mesh"},
        Malformation{"[[\"fsdp\", \"tensor\"], []]", "[[\"fsdp\"], [\"fsdp\"]]",
                     "`a.w` has a mesh axis twice, or one that is not in the mesh"},
        Malformation{"[[\"fsdp\", \"tensor\"], []]", "[[\"none\"], []]",
                     "`a.w` has a mesh axis twice, or one that is not in the mesh"},
        Malformation{"[[\"fsdp\", \"tensor\"], []]", "[[0], []]", nullptr},
        Malformation{"[[\"fsdp\", \"tensor\"], []]", "[\"fsdp\", []]",
                     "it is not written as this tool writes"},
        Malformation{"[[\"fsdp\", \"tensor\"], []]", "[[\"fsdp\", \"tensor\"]]",
                     "the partition of `a.w` has 1 dimension, but its shape 2"},
        Malformation{"\"key\": \"old.c\"", "\"key\": \"a.w\"",
                     "`a.w` and `c` would be drawn from the same random stream"},
        Malformation{"\"key\": \"old.c\"", "\"key\": \"\"",
                     "it is not written as this tool writes"},
        Malformation{"\"key\": \"old.c\"", "\"key\": 5", nullptr},
        Malformation{"\"key\": \"old.c\"", "\"key\": \"\\u001b[2J\"",
                     "the engine cannot draw `c` with this key"},
        Malformation{"\"tensors\": [", "\"tensors\": [5, ", nullptr}));

constexpr char kPlanWithStages[] = R"({
 "format_version": 2,
 "contract_version": 1,
 "name": "small",
 "engine": "philox4x32",
 "seed": 7,
 "mesh": {"axes": ["pipe", "tensor"], "shape": [3, 2]},
 "replicas": "dedupe",
 "tensors": [
  {"path": "w", "dtype": "bf16", "global_shape": [8, 7], "partition_spec": [["tensor"], []], "segments": [2, 1], "stage": {"pipe": [0, 2]}, "init": {"normal": {"mean": 0, "std": 0.02}}}
 ]
}
)";

TEST(ReadPlan, ReadsSegmentsAndStages) {
  const Plan plan = ReadPlan(kPlanWithStages, "plan.json");
  EXPECT_EQ(WritePlan(plan), kPlanWithStages);
  const PartitionSpec& partition = plan.graph.tensors[0].partition();
  EXPECT_EQ(partition.segments(), (std::vector<int64_t>{2, 1}));
  EXPECT_EQ(partition.pins, (std::vector<Pin>{{0, {0, 2}}}));
  EXPECT_EQ(plan.boxes, 4);
  EXPECT_EQ(PlanRank(plan, 0).shards.size(), 2u);
  EXPECT_EQ(PlanRank(plan, 2).shards.size(), 0u);
  EXPECT_EQ(PlanRank(plan, 4).shards.size(), 0u);  // Rank 0 stores its boxes.
  EXPECT_EQ(DatasetPath(*PlanRank(plan, 1).shards[1].tensor, 1), "/w@1");
}

constexpr char kPlanWithNested[] = R"({
 "format_version": 2,
 "contract_version": 1,
 "name": "small",
 "engine": "philox4x32",
 "seed": 7,
 "mesh": {"axes": ["x", "y"], "shape": [2, 2]},
 "replicas": "dedupe",
 "tensors": [
  {"path": "w", "dtype": "bf16", "global_shape": [10, 7], "partition_spec": [["x", "y"], []], "nested": [[1, 1], []], "init": {"normal": {"mean": 0, "std": 0.02}}}
 ]
}
)";

TEST(ReadPlan, ReadsNestedAxes) {
  const Plan plan = ReadPlan(kPlanWithNested, "plan.json");
  EXPECT_EQ(WritePlan(plan), kPlanWithNested);
  EXPECT_EQ(PlanRank(plan, 2).shards[0].box, (Box{{5, 0}, {3, 7}}));
  EXPECT_EQ(plan.max_rank_bytes, 3 * 7 * 2);
  const std::string none = "`plan.json` is not a plan of this tool: ";
  for (const char* nested : {"[[1, 1]]", "[[1], []]", "[[0, 1], []]", "[[1, -1], []]",
                             "[[1, 0], []]", "[[], [1]]", "[[65536, 2], []]", "[[], [], []]"}) {
    EXPECT_EQ(PlanRefusal(Replaced(kPlanWithNested, "[[1, 1], []]", nested)),
              none + "the `nested` axes of `w` do not fit its shape and partition")
        << nested;
  }
  // The borders equal the borders of both axes as one.
  EXPECT_EQ(PlanRefusal(Replaced(kPlanWithNested, "[10, 7]", "[12, 7]")),
            none + "the `nested` axes of `w` do not fit its shape and partition");
}

TEST(ReadPlan, RejectsTooManySegments) {
  constexpr char kText[] = R"({
 "format_version": 2,
 "contract_version": 1,
 "name": "x",
 "engine": "philox4x32",
 "seed": 7,
 "mesh": {"axes": ["x", "y"], "shape": [2, 2]},
 "replicas": "dedupe",
 "tensors": [
  {"path": "w", "dtype": "bf16", "global_shape": [1024, 1024], "partition_spec": [["x"], ["y"]], "segments": [256, 256], "init": {"constant": {"value": 0}}}
 ]
}
)";
  EXPECT_EQ(WritePlan(ReadPlan(kText, "plan.json")), kText);
  for (const char* segments : {"[512, 256]", "[256, 512]", "[512, 512]"}) {
    EXPECT_EQ(PlanRefusal(Replaced(kText, "[256, 256]", segments)),
              "`plan.json` is not a plan of this tool: the `segments` of `w` do not fit its shape "
              "and partition");
  }
}

TEST(ReadPlan, RejectsInvalidSegmentsAndStages) {
  const auto refusal = [](const std::string& from, const std::string& to) {
    return PlanRefusal(Replaced(kPlanWithStages, from, to));
  };
  const std::string none = "`plan.json` is not a plan of this tool: ";
  for (const char* segments : {"[2]", "[0, 1]", "[-2, 1]", "[9, 1]", "[2, 2]", "[2, 1, 1]", "[]",
                               "[4611686018427387904, 1]"}) {
    EXPECT_EQ(refusal("[2, 1]", segments),
              none + "the `segments` of `w` do not fit its shape and partition")
        << segments;
  }
  for (const char* stage : {"{\"pipe\": []}", "{\"pipe\": [2, 0]}", "{\"pipe\": [0, 0]}",
                            "{\"pipe\": [0, 3]}", "{\"pipe\": [-1]}", "{\"pipe\": [0, 1, 2]}",
                            "{\"tensor\": [0]}", "{\"x\": [0]}", "{\"pipe\": [0], \"x\": [0]}"}) {
    EXPECT_EQ(refusal("{\"pipe\": [0, 2]}", stage),
              none + "the `stage` of `w` does not fit the mesh")
        << stage;
  }
  for (const auto& [from, to] : {std::pair{"\"format_version\": 2", "\"format_version\": 1"},
                                 {"[2, 1]", "[1, 1]"},
                                 {"{\"pipe\": [0, 2]}", "{}"},
                                 {"{\"pipe\": [0, 2]}", "[]"}}) {
    EXPECT_EQ(refusal(from, to), none + "it is not written as this tool writes") << to;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Init, Hostile,
    testing::Values(
        Malformation{"\"std\": 0.02", "\"std\": -0.02",
                     "the `init` of `a.w`: `std` is -0.02, but must not be negative"},
        Malformation{"\"std\": 0.02", "\"std\": 1e300", nullptr},
        Malformation{"\"std\": 0.02", "\"std\": 1e999", nullptr},
        Malformation{"\"std\": 0.02", "\"std\": \"0.02\"", nullptr},
        Malformation{"\"std\": 0.02", "\"std\": 0.020", "it is not written as this tool writes"},
        Malformation{"\"mean\": 0, \"std\": 0.02", "\"std\": 0.02", nullptr},
        Malformation{"\"normal\"", "\"gaussian\"",
                     "the `init` of `a.w`: unknown initializer `gaussian`"},
        Malformation{"\"normal\"", "\"trunc_normal\"", nullptr},
        Malformation{"{\"constant\": {\"value\": 1}}", "{\"ones\": {}}",
                     "the `init` of `a.b`: unknown initializer `ones`"},
        Malformation{"{\"constant\": {\"value\": 1}}", "{}",
                     "the `init` of `a.b`: it does not name one initializer"},
        Malformation{"{\"constant\": {\"value\": 1}}", "\"ones\"",
                     "the `init` of `a.b`: it does not name one initializer"},
        Malformation{"{\"constant\": {\"value\": 1}}",
                     "{\"constant\": {\"value\": 1}, \"constant2\": {}}",
                     "the `init` of `a.b`: it does not name one initializer"},
        Malformation{"{\"constant\": {\"value\": 1}}", "{\"constant\": 1}", nullptr},
        Malformation{"\"low\": -2, \"high\": 3", "\"low\": 3, \"high\": -2",
                     "the `init` of `c`: `high` is -2, but must be above `low`, which is 3"},
        Malformation{"\"low\": -2, \"high\": 3", "\"low\": 9, \"high\": 10", nullptr}));

// Views.

constexpr char kPlanOfViews[] = R"({
 "format_version": 1,
 "contract_version": 1,
 "name": "x",
 "engine": "philox4x32",
 "seed": 7,
 "mesh": {"axes": ["a"], "shape": [2]},
 "replicas": "dedupe",
 "layout": "l",
 "logical": [
  {"path": "q", "dtype": "f32", "global_shape": [4, 6], "init": {"normal": {"mean": 0, "std": 1}}},
  {"path": "k", "dtype": "f32", "global_shape": [2, 6], "init": {"constant": {"value": 1}}},
  {"path": "n", "dtype": "bf16", "global_shape": [6], "init": {"constant": {"value": 1}}}
 ],
 "tensors": [
  {"path": "qk", "dtype": "f32", "global_shape": [6, 6], "partition_spec": [["a"], []], "view": {"concat": {"axis": 0, "of": ["q", "k"]}}},
  {"path": "n", "dtype": "bf16", "global_shape": [8], "partition_spec": [[]], "view": {"pad": {"axis": 0, "to": 8, "value": 0.5, "of": "n"}}}
 ]
}
)";

std::string PlanOfViewsWith(const std::string& from, const std::string& to) {
  return Replaced(kPlanOfViews, from, to);
}

class HostileViews : public testing::TestWithParam<Malformation> {};

TEST_P(HostileViews, RejectsMalformedViews) { ExpectRefused(kPlanOfViews, GetParam()); }

TEST(ReadPlan, ReadsViews) {
  const Plan plan = ReadPlan(kPlanOfViews, "plan.json");
  EXPECT_EQ(WritePlan(plan), kPlanOfViews);
  EXPECT_EQ(plan.graph.tensors[0].view()->pieces.size(), 2u);
  EXPECT_EQ(plan.parameters, 24 + 12 + 6);
  EXPECT_EQ(plan.bytes, 36 * 4 + 8 * 2);
}

TEST(ReadPlan, CountsBytesOfALayoutSeparately) {
  // Each of the two lists has three quarters of the maximum number of bytes.
  std::string text = Replaced(kPlanOfViews, "[4, 6]", "[4, 288230376151711744]");
  text = Replaced(text, "[2, 6]", "[2, 288230376151711744]");
  text = Replaced(text, "[6, 6]", "[6, 288230376151711744]");
  const Plan plan = ReadPlan(text, "plan.json");
  EXPECT_EQ(plan.bytes, (int64_t{3} << 61) + 16);
  EXPECT_EQ(WritePlan(plan), text);
}

constexpr char kWhole[] = R"({"concat": {"axis": 0, "of": ["q", "k"]}})";
constexpr char kPad[] = R"({"pad": {"axis": 0, "to": 8, "value": 0.5, "of": "n"}})";
constexpr char kCanonical[] = "it is not written as this tool writes";
constexpr char kNoOperation[] =
    "the `view` of `qk` has no single operation, or more than 8 nested ones";
constexpr char kTooLarge[] = "this tensor has more than 2^63 - 1 elements";

INSTANTIATE_TEST_SUITE_P(
    Trees, HostileViews,
    testing::Values(
        // Views of a missing tensor, of itself, of another dtype, of nothing.
        Malformation{kWhole, R"("z")",
                     "the `view` of `qk` has `z`, which is unknown or of another dtype"},
        Malformation{kWhole, R"("qk")",
                     "the `view` of `qk` has `qk`, which is unknown or of another dtype"},
        Malformation{kWhole, R"("n")",
                     "the `view` of `qk` has `n`, which is unknown or of another dtype"},
        Malformation{kWhole, R"("q")",
                     "the `view` of `qk` gives the shape [4, 6] instead of [6, 6]"},
        Malformation{kWhole, R"({"concat": {"axis": 0, "of": []}})",
                     "the `view` of `qk` has an operation without inputs"},
        Malformation{kWhole, R"({"concat": {"axis": 0, "of": "q"}})",
                     "the `view` of `qk` has an operation without inputs"},
        Malformation{kWhole, R"({"concat": {"axis": 0, "of": {"q": "k"}}})",
                     "the `view` of `qk` has an operation without inputs"},
        Malformation{kWhole, R"({"concat": {"axis": 0}})", nullptr},
        Malformation{kWhole, R"({"concat": {"of": ["q", "k"]}})", nullptr},
        Malformation{kWhole, R"({"concat": ["q", "k"]})", nullptr},
        Malformation{kWhole, R"({})", kNoOperation}, Malformation{kWhole, R"([])", kNoOperation},
        Malformation{kWhole, R"(null)", kNoOperation},
        Malformation{kWhole, R"({"concat": {"axis": 0, "of": ["q", 5]}})", kNoOperation},
        Malformation{kWhole, R"({"join": {"axis": 0, "of": ["q", "k"]}})",
                     "unknown view operation `join`"},
        Malformation{kWhole, R"({"concat": {"axis": 0, "of": ["q", "k"]}, "stack": {}})",
                     kNoOperation},
        Malformation{kWhole, R"({"concat": {"axis": 0, "extra": 1, "of": ["q", "k"]}})",
                     kCanonical},
        Malformation{kWhole, R"({"concat": {"of": ["q", "k"], "axis": 0}})", kCanonical},
        Malformation{kPad, R"({"pad": {"axis": 0, "to": 8, "value": 0.5, "of": ["n"]}})",
                     "the `view` of `n` has no single operation, or more than 8 nested ones"},
        // Nesting.
        Malformation{kWhole,
                     R"({"transpose": {"axes": [0, 1], "of": {"transpose": {"axes": [0, 1], "of": )"
                     R"({"transpose": {"axes": [0, 1], "of": {"transpose": {"axes": [0, 1], "of": )"
                     R"({"transpose": {"axes": [0, 1], "of": {"transpose": {"axes": [0, 1], "of": )"
                     R"({"transpose": {"axes": [0, 1], "of": {"transpose": {"axes": [0, 1], "of": )"
                     R"({"concat": {"axis": 0, "of": ["q", "k"]}}}}}}}}}}}}}}}}}})",
                     kNoOperation},
        // The rest of the file.
        Malformation{R"("layout": "l")", R"("layout": "")", "no spec has the layout name ``"},
        Malformation{R"("layout": "l")", R"("layout": "../l")",
                     "no spec has the layout name `../l`"},
        Malformation{R"( "layout": "l",
)",
                     "", nullptr},
        Malformation{R"("logical": [)", R"("other": [)", nullptr},
        Malformation{R"("view": {"concat")", R"("init": {"concat")", nullptr},
        Malformation{R"("path": "k")", R"("path": "q")", "two tensors have the path `q`"},
        Malformation{R"("global_shape": [6, 6])", R"("global_shape": [6, 7])",
                     "the `view` of `qk` gives the shape [6, 6] instead of [6, 7]"},
        Malformation{R"("global_shape": [6, 6])", R"("global_shape": [36])", nullptr},
        Malformation{R"("global_shape": [4, 6])", R"("global_shape": [4, 7])", nullptr},
        Malformation{R"("global_shape": [4, 6])", R"("global_shape": [9223372036854775807, 6])",
                     "`q` cannot have the shape [9223372036854775807, 6]"},
        Malformation{R"("global_shape": [2, 6])", R"("global_shape": [2, 0])",
                     "`k` cannot have the shape [2, 0]"}));

INSTANTIATE_TEST_SUITE_P(
    Arguments, HostileViews,
    testing::Values(
        Malformation{R"("axis": 0, "of")", R"("axis": 2, "of")",
                     "axis 2 is out of range: the shape is [4, 6]"},
        Malformation{R"("axis": 0, "of")", R"("axis": -3, "of")",
                     "axis -3 is out of range: the shape is [4, 6]"},
        Malformation{R"("axis": 0, "of")", R"("axis": -2, "of")", kCanonical},
        Malformation{R"("axis": 0, "of")", R"("axis": 9223372036854775807, "of")", nullptr},
        Malformation{R"("axis": 0, "of")", R"("axis": -9223372036854775808, "of")", nullptr},
        Malformation{R"("axis": 0, "of")", R"("axis": 18446744073709551615, "of")", nullptr},
        Malformation{R"("axis": 0, "of")", R"("axis": 0.5, "of")",
                     "the value must be a whole number from -9223372036854775808 to "
                     "9223372036854775807, not 0.5"},
        Malformation{R"("axis": 0, "of")", R"("axis": "0", "of")", nullptr},
        Malformation{R"("axis": 0, "of")", R"("axis": [0], "of")", nullptr},
        Malformation{R"("axis": 0, "of")", R"("axis": null, "of")", nullptr},
        Malformation{kWhole, R"({"stack": {"axis": 0, "of": ["q", "k"]}})", nullptr},
        Malformation{kWhole, R"({"stack": {"axis": 3, "of": ["q", "q"]}})", nullptr},
        Malformation{kWhole, R"({"interleave": {"axis": 0, "groups": 0, "of": ["q", "k"]}})",
                     nullptr},
        Malformation{kWhole, R"({"interleave": {"axis": 0, "groups": -1, "of": ["q", "k"]}})",
                     nullptr},
        Malformation{kWhole, R"({"interleave": {"axis": 0, "groups": 4, "of": ["q", "k"]}})",
                     nullptr},
        Malformation{
            kWhole,
            R"({"interleave": {"axis": 0, "groups": 4611686018427387904, "of": ["q", "k"]}})",
            nullptr},
        Malformation{kWhole, R"({"transpose": {"axes": [0], "of": "q"}})", nullptr},
        Malformation{kWhole, R"({"transpose": {"axes": [0, 0], "of": "q"}})", nullptr},
        Malformation{kWhole, R"({"transpose": {"axes": [0, 2], "of": "q"}})", nullptr},
        Malformation{kWhole, R"({"transpose": {"axes": [0, 9223372036854775807], "of": "q"}})",
                     nullptr},
        Malformation{kWhole, R"({"transpose": {"axes": 1, "of": "q"}})", nullptr},
        Malformation{kWhole, R"({"reshape": {"shape": [-4, -6], "of": "q"}})", nullptr},
        Malformation{kWhole, R"({"reshape": {"shape": [0], "of": "q"}})", nullptr},
        // 2^64 + 24 elements: a wrapped product would be 24.
        Malformation{kWhole, R"({"reshape": {"shape": [3, 6148914691236517208], "of": "q"}})",
                     nullptr},
        Malformation{kWhole, R"({"slice": {"axis": 0, "start": -1, "stop": 2, "of": "q"}})",
                     nullptr},
        Malformation{kWhole, R"({"slice": {"axis": 0, "start": 2, "stop": 2, "of": "q"}})",
                     nullptr},
        Malformation{kWhole, R"({"slice": {"axis": 0, "start": 3, "stop": 5, "of": "q"}})",
                     nullptr},
        Malformation{
            kWhole,
            R"({"slice": {"axis": 0, "start": -9223372036854775808, "stop": 9223372036854775807, "of": "q"}})",
            nullptr},
        Malformation{R"("to": 8)", R"("to": 5)",
                     "`to` is 5, but axis 0 of `n`, which is [6], is longer"},
        Malformation{R"("to": 8)", R"("to": -8)", nullptr},
        Malformation{R"("to": 8)", R"("to": 9)",
                     "the `view` of `n` gives the shape [9] instead of [8]"},
        Malformation{R"("to": 8)", R"("to": 9223372036854775807)",
                     "the `view` of `n` gives the shape [9223372036854775807] instead of [8]"},
        Malformation{R"("value": 0.5)", R"("value": 1e300)",
                     "the padding of `n` is 1e+300, which its dtype cannot hold"},
        Malformation{R"("value": 0.5)", R"("value": 1e999)", nullptr},
        Malformation{R"("value": 0.5)", R"("value": 0.50)", kCanonical},
        Malformation{R"("value": 0.5)", R"("value": null)", nullptr},
        // An intermediate shape is wrong, but the last one would be right.
        Malformation{kWhole,
                     R"({"slice": {"axis": 0, "start": 0, "stop": 6, "of": {"pad": {"axis": 0, )"
                     R"("to": 2000000000000000000, "value": 0, "of": "q"}}}})",
                     kTooLarge},
        Malformation{
            kWhole,
            R"({"concat": {"axis": 0, "of": [{"pad": {"axis": 0, "to": 1000000000000000000, )"
            R"("value": 0, "of": "q"}}, {"pad": {"axis": 0, "to": 1000000000000000000, "value": 0, )"
            R"("of": "q"}}]}})",
            kTooLarge},
        Malformation{
            kWhole,
            R"({"stack": {"axis": 0, "of": [{"pad": {"axis": 0, "to": 1000000000000000000, )"
            R"("value": 0, "of": "q"}}, {"pad": {"axis": 0, "to": 1000000000000000000, "value": 0, )"
            R"("of": "q"}}]}})",
            kTooLarge},
        Malformation{
            kWhole,
            R"({"stack": {"axis": 0, "of": [{"reshape": {"shape": [)"
            R"(1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,4,6], "of": "q"}}]}})",
            "more than 32 dimensions"}));

// Rows of 7 are reshaped to rows of 10, so each row becomes several pieces.
TEST(ReadPlan, RejectsViewsOfMillionsOfPieces) {
  std::string text = PlanOfViewsWith("[4, 6]", "[10000000, 3]");
  const std::string view =
      R"({"transpose": {"axes": [1, 0], "of": {"reshape": {"shape": [7000000, 10], )"
      R"("of": {"pad": {"axis": 1, "to": 7, "value": 0, "of": "q"}}}}}})";
  text.replace(text.find(kWhole), std::string(kWhole).size(), view);
  EXPECT_EQ(
      PlanRefusal(text),
      "`plan.json` is not a plan of this tool: the layout falls into more than 4194304 pieces");
}

// As in SurvivesDamagedPlans; damage that leaves valid views may be accepted.
TEST(ReadPlan, SurvivesDamagedViews) {
  const std::string good = kPlanOfViews;
  for (size_t i = good.find("\"logical\""); i < good.size(); ++i) {
    for (const char c : {'0', '9', '-', '"', ']', '{', 'q'}) {
      std::string bad = good;
      bad[i] = c;
      try {
        EXPECT_EQ(WritePlan(ReadPlan(bad, "plan.json")), bad);
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ExitCode::kRefused);
      }
    }
  }
}

TEST(ReadPlan, RejectsTooLargeModels) {
  EXPECT_EQ(
      PlanRefusal(PlanWith("\"global_shape\": [4]", "\"global_shape\": [1152921504606846975]")),
      "`plan.json` is not a plan of this tool: the model has more than 2^63 - 1 bytes");
}

TEST(ReadPlan, ReportsHundredsOfMistakesInOneMessage) {
  std::string tensors;
  for (int i = 0; i < 500; ++i) {
    tensors +=
        R"({"path": "z", "dtype": "f32", "global_shape": [], "partition_spec": [], "init": {"constant": {"value": 1}}},)";
  }
  EXPECT_EQ(PlanRefusal(PlanWith("\"tensors\": [", "\"tensors\": [" + tensors)),
            "`plan.json` is not a plan of this tool: two tensors have the path `z`");
}

// Every prefix is refused. A plan with a changed byte is refused or, if still valid, written as it
// was read.
TEST(ReadPlan, SurvivesDamagedPlans) {
  const std::string good = kPlanOfTwoRanks;
  for (size_t n = 0; n < good.size(); ++n) EXPECT_NE(PlanRefusal(good.substr(0, n)), "") << n;
  for (size_t i = 0; i < good.size(); ++i) {
    for (const char c : {'\0', '9', '-', '"', ']', 'z', '\xff'}) {
      std::string bad = good;
      bad[i] = c;
      try {
        EXPECT_EQ(WritePlan(ReadPlan(bad, "plan.json")), bad);
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ExitCode::kRefused);
      }
    }
  }
}

TEST(PlanNames, FileNamesAreFixed) {
  EXPECT_EQ(RankFile(0), "ranks/rank-00000.h5");
  EXPECT_EQ(RankFile(123456), "ranks/rank-123456.h5");
  EXPECT_EQ(ReceiptFile(17), "ranks/rank-00017.json");
  EXPECT_EQ(DatasetPath(PlanOfTwoRanks().graph.tensors[0]), "/a/w");
}

TEST(PlanRank, RankPlanHoldsFirstReplicasInGraphOrder) {
  const Plan plan = PlanOfTwoRanks();
  std::string out;
  for (int64_t rank = 0; rank < plan.world_size(); ++rank) {
    const RankPlan made = PlanRank(plan, rank);
    out += fmt::format("{} ({}) {} bytes:", rank, fmt::join(made.coordinate, ", "), made.bytes());
    for (const Shard& shard : made.shards) {
      out += fmt::format(" {} [{}] at [{}]", shard.tensor->path(), fmt::join(shard.box.shape, ", "),
                         fmt::join(shard.box.offset, ", "));
    }
    out += '\n';
  }
  EXPECT_EQ(out,
            "0 (0, 0) 34 bytes: a.w [1, 7] at [0, 0] a.b [] at [] c [2] at [0]\n"
            "1 (0, 1) 30 bytes: a.w [1, 7] at [1, 0] c [2] at [2]\n"
            "2 (0, 2) 14 bytes: a.w [1, 7] at [2, 0]\n"
            "3 (1, 0) 14 bytes: a.w [1, 7] at [3, 0]\n"
            "4 (1, 1) 14 bytes: a.w [1, 7] at [4, 0]\n"
            "5 (1, 2) 0 bytes:\n");
}

// A total over all ranks is the sum over their plans, for random meshes and shardings, some uneven.
TEST(BytesIn, TotalBytesAreTheSumOverRanks) {
  Random random(24);
  for (int trial = 0; trial < 300; ++trial) {
    InitGraph graph{.name = "x", .engine = "philox4x32", .seed = 0, .mesh = {}, .tensors = {}};
    graph.mesh = RandomMesh(random);
    graph.replicas = random.Chance(2) ? Replicas::kFull : Replicas::kDedupe;
    for (const char* path : {"a", "b"}) {
      const Shape shape = RandomShape(random);
      const PartitionSpec partition = RandomPartition(random, graph.mesh, shape);
      graph.tensors.push_back(MakeTensor(path, DType::bf16, shape, Normal{0, 1}, partition));
    }
    const Plan plan = MakePlan(std::move(graph));
    std::vector<int64_t> ranks;
    int64_t sum = 0;
    for (int64_t rank = 0; rank < plan.world_size(); ++rank) {
      EXPECT_EQ(BytesIn(plan, {rank}), PlanRank(plan, rank).bytes());
      sum += PlanRank(plan, rank).bytes();
      ranks.push_back(rank);
    }
    EXPECT_EQ(BytesIn(plan, ranks), sum);
  }
}

}  // namespace
}  // namespace shardinit
