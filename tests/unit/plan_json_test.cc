#include <gtest/gtest.h>

#include "base/error.h"
#include "graph/validate.h"
#include "plan/plan.h"
#include "support/graph_text.h"
#include "support/random_plan.h"

namespace shardinit {
namespace {

Plan PlanOfTwoRanks() {
  InitGraph graph{.name = "small", .engine = "philox4x32", .seed = 7,
                  .mesh = {{"fsdp", "tensor"}, {2, 3}}, .tensors = {}};
  graph.tensors = {
      MakeTensor("a.w", DType::bf16, {5, 7}, Normal{0, 0.02}, {{0, 1}, {}}),
      MakeTensor("a.b", DType::f32, {}, Constant{1}),
      MakeTensor("c", DType::f64, {4}, TruncatedNormal{0.5, 1, -2, 3}, {{1}}),
  };
  graph.tensors[2].draw_path = "old.c";
  for (Tensor& tensor : graph.tensors) {
    if (!IsRandom(tensor.distribution)) continue;
    tensor.key = KeyOf(7, tensor.draw_path.empty() ? tensor.path : tensor.draw_path);
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

// kPlanOfTwoRanks with one text replaced.
std::string PlanWith(const std::string& from, const std::string& to) {
  std::string text = kPlanOfTwoRanks;
  const size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return text.replace(at, from.size(), to);
}

TEST(WritePlan, IsCanonical) { EXPECT_EQ(WritePlan(PlanOfTwoRanks()), kPlanOfTwoRanks); }

TEST(ReadPlan, IsTheInverseOfWritePlan) {
  const Plan plan = ReadPlan(kPlanOfTwoRanks, "plan.json"), expected = PlanOfTwoRanks();
  EXPECT_EQ(Print(plan.graph), Print(expected.graph));
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(plan.graph.tensors[i].key, expected.graph.tensors[i].key);
    EXPECT_EQ(plan.graph.tensors[i].distribution, expected.graph.tensors[i].distribution);
  }
  EXPECT_EQ(plan.parameters, 5 * 7 + 1 + 4);
  EXPECT_EQ(plan.bytes, 5 * 7 * 2 + 4 + 4 * 8);
  EXPECT_EQ(plan.boxes, 5 + 1 + 2);
  EXPECT_EQ(plan.max_rank_bytes, 7 * 2 + 4 + 2 * 8);
}

TEST(ReadPlan, ReadsMatrices) {
  InitGraph graph{.name = "x", .engine = "philox4x32", .mesh = {}, .tensors = {}};
  graph.tensors = {MakeTensor("w", DType::f32, {3, 4, 5}, Orthogonal{-2, 5, 2})};
  graph.tensors[0].key = KeyOf(0, "w");
  const std::string text = WritePlan(MakePlan(graph));
  const std::string orthogonal = R"("init": {"orthogonal": {"gain": -2, "rows": [0, 2], "columns": [1]}})";
  const size_t at = text.find(orthogonal);
  ASSERT_NE(at, std::string::npos) << text;
  const Plan back = ReadPlan(text, "plan.json");
  EXPECT_EQ(back.graph.tensors[0].distribution, graph.tensors[0].distribution);
  EXPECT_EQ(back.graph.tensors[0].key, graph.tensors[0].key);
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
  graph.tensors[0].shape = {1 << 15, 1, 1 << 15};
  EXPECT_EQ(PlanRefusal(WritePlan(MakePlan(graph))), "");
  graph.tensors[0].shape = {1 << 17, 1, 1 << 17};
  EXPECT_EQ(PlanRefusal(WritePlan(MakePlan(graph))),
            "`plan.json` is not a plan of this tool: an orthogonal matrix that is none");
}

TEST(ReadPlan, ReadsSparseAndNormalized) {
  const auto plan_of = [](Distribution distribution) {
    InitGraph graph{.name = "x", .engine = "philox4x32", .mesh = {}, .tensors = {}};
    graph.tensors = {MakeTensor("w", DType::f32, {4, 3}, distribution)};
    graph.tensors[0].key = KeyOf(0, "w");
    return WritePlan(MakePlan(graph));
  };
  for (const Distribution& good : {Distribution(Sparse{0.5, 0}), Distribution(Sparse{0, 4}),
                                   Distribution(Normalized{1, 2})}) {
    const Plan back = ReadPlan(plan_of(good), "plan.json");
    EXPECT_EQ(back.graph.tensors[0].distribution, good);
  }
  EXPECT_NE(plan_of(Sparse{0.5, 2}).find(R"({"sparse": {"std": 0.5, "zeros": 2}})"), std::string::npos);
  EXPECT_NE(plan_of(Normalized{1, 2}).find(R"({"normalized": {"axis": 1, "length": 2}})"),
            std::string::npos);
  for (const Distribution& bad :
       {Distribution(Sparse{0.5, 5}), Distribution(Sparse{0.5, -1}), Distribution(Sparse{-1, 1}),
        Distribution(Sparse{1e40, 1}), Distribution(Normalized{2, 1}), Distribution(Normalized{-1, 1}),
        Distribution(Normalized{0, 0}), Distribution(Normalized{0, -1})}) {
    EXPECT_NE(PlanRefusal(plan_of(bad)), "") << Print(bad);
  }
}

TEST(ReadPlan, ReadsAPlanOfNothing) {
  const Plan plan = MakePlan({.name = "x", .engine = "philox4x32", .mesh = {}, .tensors = {}});
  const std::string text = WritePlan(plan);
  EXPECT_EQ(WritePlan(ReadPlan(text, "plan.json")), text);
}

TEST(ReadPlan, ReadsWhatIsWrittenForRandomPlans) {
  Random random(1);
  const Distribution distributions[] = {
      Constant{-0.0}, Constant{1}, Constant{1e300}, Constant{0.1 + 0.2},         Uniform{-0.0, 0x1p-80},
      Uniform{-0.5, 0.25}, Normal{1.0 / 3, 0}, TruncatedNormal{0, 0.02, -1e6, 1.0 / 7}};
  for (int i = 0; i < 300 && !testing::Test::HasFailure(); ++i) {
    InitGraph graph{.name = "x", .engine = "philox4x32",
                    .seed = static_cast<int64_t>(random.Bits() >> 1), .mesh = RandomMesh(random),
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
      if (random.Chance(3)) tensor.draw_path = fmt::format("\"old\" ключ {}", t);
      if (IsRandom(tensor.distribution)) {
        tensor.key = KeyOf(static_cast<uint64_t>(graph.seed),
                           tensor.draw_path.empty() ? tensor.path : tensor.draw_path);
      }
      graph.tensors.push_back(std::move(tensor));
    }
    const Plan plan = MakePlan(std::move(graph));
    const std::string text = WritePlan(plan);
    const Plan back = ReadPlan(text, "plan.json");
    EXPECT_EQ(WritePlan(back), text);
    EXPECT_EQ(Print(back.graph), Print(plan.graph));
    for (size_t t = 0; t < plan.graph.tensors.size(); ++t) {
      EXPECT_EQ(back.graph.tensors[t].key, plan.graph.tensors[t].key);
    }
    EXPECT_EQ(back.boxes, plan.boxes);
    EXPECT_EQ(back.max_rank_bytes, plan.max_rank_bytes);
  }
}

TEST(ReadPlan, SaysWhichReleaseItNeeds) {
  EXPECT_EQ(PlanRefusal(PlanWith("\"format_version\": 1", "\"format_version\": 2")),
            "`plan.json` has format version 2 and contract version 1, but this tool knows 1 and 1");
  EXPECT_EQ(PlanRefusal(PlanWith("\"contract_version\": 1", "\"contract_version\": \"9\"")),
            "`plan.json` has format version 1 and contract version \"9\", but this tool knows 1 and 1");
}

struct Malformation {
  const char* from;
  const char* to;
  const char* message;  // Behind "`plan.json` is not a plan of this tool: "; null: any refusal.
};

class Hostile : public testing::TestWithParam<Malformation> {};

TEST_P(Hostile, IsRefused) {
  const Malformation& m = GetParam();
  const std::string message = PlanRefusal(PlanWith(m.from, m.to));
  if (m.message != nullptr) {
    EXPECT_EQ(message, std::string("`plan.json` is not a plan of this tool: ") + m.message);
  } else {
    EXPECT_NE(message, "") << m.to;
  }
}

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
        Malformation{"philox4x32", "philox", "unknown engine `philox`"},
        Malformation{"\"seed\": 7", "\"seed\": -1", "the seed"},
        Malformation{"\"seed\": 7", "\"seed\": 7.5", "it is not written as this tool writes"},
        Malformation{"\"seed\": 7", "\"seed\": 18446744073709551615", nullptr},
        Malformation{"\"seed\": 7", "\"seed\": \"7\"", nullptr},
        Malformation{"\"seed\": 7", "\"seed\": true", nullptr},
        Malformation{"\"seed\": 7", "\"seed\": 1e300", nullptr},
        Malformation{"dedupe", "none", "it is not written as this tool writes"},
        Malformation{"\"replicas\": \"dedupe\",", "", nullptr},
        Malformation{"\"seed\": 7", "\"seed\": 7, \"extra\": 1", "it is not written as this tool writes"},
        Malformation{"\"seed\": 7", "\"seed\": 7, \"seed\": 8", nullptr},
        Malformation{"\"seed\": 7", "\"seed\":  7", "it is not written as this tool writes"},
        Malformation{"\n}\n", "\n}", "it is not written as this tool writes"},
        Malformation{"\n}\n", "", nullptr}));

INSTANTIATE_TEST_SUITE_P(
    Mesh, Hostile,
    testing::Values(
        Malformation{"[2, 3]", "[2]", "the mesh"},
        Malformation{"[2, 3]", "[2, 3, 4]", "the mesh"},
        Malformation{"[2, 3]", "[0, 3]", "the shape of the mesh"},
        Malformation{"[2, 3]", "[-2, -3]", "the shape of the mesh"},
        Malformation{"[2, 3]", "[16777216, 3]", "the shape of the mesh"},
        Malformation{"[2, 3]", "[4294967296, 4294967296]", "the shape of the mesh"},
        Malformation{"[2, 3]", "[2, 3.5]", "it is not written as this tool writes"},
        Malformation{"[2, 3]", "{\"a\": 2, \"b\": 3}", nullptr},
        Malformation{"[2, 3]", "6", nullptr},
        Malformation{"\"axes\": [\"fsdp\", \"tensor\"]", "\"axes\": [\"fsdp\", \"fsdp\"]",
                     "the axes of the mesh"},
        Malformation{"\"axes\": [\"fsdp\", \"tensor\"]", "\"axes\": [\"fsdp\", \"\"]",
                     "the axes of the mesh"},
        Malformation{"\"axes\": [\"fsdp\", \"tensor\"]", "\"axes\": [\"fsdp\", \"\\u001b[2J\"]",
                     "the axes of the mesh"},
        Malformation{"\"axes\": [\"fsdp\", \"tensor\"]", "\"axes\": [\"fsdp\", 5]", nullptr}));

INSTANTIATE_TEST_SUITE_P(
    Tensor, Hostile,
    testing::Values(
        Malformation{"\"a.w\"", "\"a..w\"", "a tensor path with characters that paths cannot have"},
        Malformation{"\"a.w\"", "\"../w\"", "a tensor path with characters that paths cannot have"},
        Malformation{"\"a.w\"", "\"/a/w\"", "a tensor path with characters that paths cannot have"},
        Malformation{"\"a.w\"", "\".a\"", "a tensor path with characters that paths cannot have"},
        Malformation{"\"a.w\"", "\"a.\"", "a tensor path with characters that paths cannot have"},
        Malformation{"\"a.w\"", "\"\"", "a tensor path with characters that paths cannot have"},
        Malformation{"\"a.w\"", "\"a\\u0000w\"", "a tensor path with characters that paths cannot have"},
        Malformation{"\"a.w\"", "\"a.b\"", "two tensors have the path `a.b`"},
        Malformation{"\"a.w\"", "\"c.w\"", "`c` is a tensor and also the group of `c.w`"},
        Malformation{"bf16", "bf17", "unknown dtype \"bf17\""},
        Malformation{"\"bf16\"", "16", nullptr},
        Malformation{"[5, 7]", "[5, 0]", "the shape of `a.w` is not one"},
        Malformation{"[5, 7]", "[5, -7]", "the shape of `a.w` is not one"},
        Malformation{"[5, 7]", "[4294967296, 4294967296]", "the shape of `a.w` is not one"},
        Malformation{"[5, 7]", "[4611686018427387904, 1]", "the shape of `a.w` is not one"},
        Malformation{"[5, 7]", "[5, 7, 1]", "the partition of `a.w` has another rank than its shape"},
        Malformation{"[5, 7]", "[5, 7.5]", "it is not written as this tool writes"},
        Malformation{"[5, 7]", "[5, true]", nullptr},
        Malformation{"[5, 7]", "[1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1]",
                     "a tensor of more than 32 dimensions"},
        Malformation{"[5, 7]", "35", nullptr},
        Malformation{"[[\"fsdp\", \"tensor\"], []]", "[[\"fsdp\", \"fsdp\"], []]",
                     "the partition of `a.w`"},
        Malformation{"[[\"fsdp\", \"tensor\"], []]", "[[\"fsdp\"], [\"fsdp\"]]",
                     "the partition of `a.w`"},
        Malformation{"[[\"fsdp\", \"tensor\"], []]", "[[\"none\"], []]", "the partition of `a.w`"},
        Malformation{"[[\"fsdp\", \"tensor\"], []]", "[[0], []]", nullptr},
        Malformation{"[[\"fsdp\", \"tensor\"], []]", "[\"fsdp\", []]",
                     "it is not written as this tool writes"},
        Malformation{"[[\"fsdp\", \"tensor\"], []]", "[[\"fsdp\", \"tensor\"]]",
                     "the partition of `a.w` has another rank than its shape"},
        Malformation{"\"key\": \"old.c\"", "\"key\": \"a.w\"",
                     "`a.w` and `c` would be drawn from the same random stream"},
        Malformation{"\"key\": \"old.c\"", "\"key\": \"\"", "it is not written as this tool writes"},
        Malformation{"\"key\": \"old.c\"", "\"key\": 5", nullptr},
        Malformation{"\"tensors\": [", "\"tensors\": [5, ", nullptr}));

INSTANTIATE_TEST_SUITE_P(
    Init, Hostile,
    testing::Values(
        Malformation{"\"std\": 0.02", "\"std\": -0.02", "`std` is -0.02, but must not be negative"},
        Malformation{"\"std\": 0.02", "\"std\": 1e300", nullptr},
        Malformation{"\"std\": 0.02", "\"std\": 1e999", nullptr},
        Malformation{"\"std\": 0.02", "\"std\": \"0.02\"", nullptr},
        Malformation{"\"std\": 0.02", "\"std\": 0.020", "it is not written as this tool writes"},
        Malformation{"\"mean\": 0, \"std\": 0.02", "\"std\": 0.02", nullptr},
        Malformation{"\"normal\"", "\"gaussian\"", "an unknown initializer"},
        Malformation{"\"normal\"", "\"trunc_normal\"", nullptr},
        Malformation{"{\"constant\": {\"value\": 1}}", "{\"ones\": {}}",
                     "it is not written as this tool writes"},
        Malformation{"{\"constant\": {\"value\": 1}}", "{}", "an `init` that is no single initializer"},
        Malformation{"{\"constant\": {\"value\": 1}}", "\"ones\"",
                     "an `init` that is no single initializer"},
        Malformation{"{\"constant\": {\"value\": 1}}",
                     "{\"constant\": {\"value\": 1}, \"constant2\": {}}",
                     "an `init` that is no single initializer"},
        Malformation{"{\"constant\": {\"value\": 1}}", "{\"constant\": 1}", nullptr},
        Malformation{"\"low\": -2, \"high\": 3", "\"low\": 3, \"high\": -2",
                     "`high` is -2, but must be above `low`, which is 3"},
        Malformation{"\"low\": -2, \"high\": 3", "\"low\": 9, \"high\": 10", nullptr}));

TEST(ReadPlan, RefusesTensorsThatAreTooLargeTogether) {
  EXPECT_EQ(PlanRefusal(PlanWith("\"global_shape\": [4]", "\"global_shape\": [1152921504606846975]")),
            "`plan.json` is not a plan of this tool: more than 2^63 - 1 bytes");
}

TEST(ReadPlan, RefusesHundredsOfMistakesWithOneMessage) {
  std::string tensors;
  for (int i = 0; i < 500; ++i) {
    tensors += R"({"path": "z", "dtype": "f32", "global_shape": [], "partition_spec": [], "init": {"constant": {"value": 1}}},)";
  }
  EXPECT_EQ(PlanRefusal(PlanWith("\"tensors\": [", "\"tensors\": [" + tensors)),
            "`plan.json` is not a plan of this tool: two tensors have the path `z`");
}

// Every prefix, and every byte changed: refused or, where it is still a plan,
// a plan that is written back as it was read.
TEST(ReadPlan, SurvivesDamage) {
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

TEST(PlanNames, AreFixed) {
  EXPECT_EQ(RankFile(0), "ranks/rank-00000.h5");
  EXPECT_EQ(RankFile(123456), "ranks/rank-123456.h5");
  EXPECT_EQ(ReceiptFile(17), "ranks/rank-00017.json");
  EXPECT_EQ(DatasetPath(PlanOfTwoRanks().graph.tensors[0]), "/a/w");
}

TEST(PlanRank, HoldsFirstReplicasInTheOrderOfTheGraph) {
  const Plan plan = PlanOfTwoRanks();
  std::string out;
  for (int64_t rank = 0; rank < plan.world_size(); ++rank) {
    const RankPlan made = PlanRank(plan, rank);
    out += fmt::format("{} ({}) {} bytes:", rank, fmt::join(made.coordinate, ", "), made.bytes());
    for (const Shard& shard : made.shards) {
      out += fmt::format(" {} [{}] at [{}]", shard.tensor->path, fmt::join(shard.box.shape, ", "),
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

}  // namespace
}  // namespace shardinit
