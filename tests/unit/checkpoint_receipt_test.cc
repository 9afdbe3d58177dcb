#include <fcntl.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "base/file.h"
#include "checkpoint/manifest.h"
#include "checkpoint/receipt.h"
#include "checkpoint/write.h"
#include "generate/workers.h"
#include "support/hdf5_once.h"
#include "support/random_plan.h"
#include "support/spec_text.h"

namespace shardinit {
namespace {

using Contents = std::map<std::string, std::string>;

Plan SmallPlan() {
  InitGraph graph{
      .name = "small", .engine = "philox4x32", .seed = 1, .mesh = {{"x"}, {2}}, .tensors = {}};
  graph.tensors = {MakeTensor("a.w", DType::bf16, {5, 7}, Normal{0, 0.02}, {{0}}),
                   MakeTensor("b", DType::f32, {3}, Constant{1})};
  return MakePlan(std::move(graph));
}

Receipt SmallReceipt() {
  return {.size = 3000,
          .plan_sha256 = Sha256Of("plan"),
          .metadata_sha256 = Sha256Of("metadata"),
          .offsets = {2000, 2048},
          .digests = {Sha256Of("a.w"), Sha256Of("b")}};
}

std::string SmallText() {
  return "{\n"
         " \"format_version\": 1,\n"
         " \"rank\": 0,\n"
         " \"coordinate\": [0],\n"
         " \"file\": \"ranks/rank-00000.h5\",\n"
         " \"size\": 3000,\n"
         " \"plan_sha256\": \"" +
         ToHex(Sha256Of("plan")) +
         "\",\n"
         " \"metadata_sha256\": \"" +
         ToHex(Sha256Of("metadata")) +
         "\",\n"
         " \"boxes\": [\n"
         "  {\"path\": \"a.w\", \"offset\": [0, 0], \"shape\": [3, 7], \"dataset\": \"/a/w\", "
         "\"file_offset\": 2000, \"bytes\": 42, \"sha256\": \"" +
         ToHex(Sha256Of("a.w")) +
         "\"},\n"
         "  {\"path\": \"b\", \"offset\": [0], \"shape\": [3], \"dataset\": \"/b\", "
         "\"file_offset\": 2048, \"bytes\": 12, \"sha256\": \"" +
         ToHex(Sha256Of("b")) +
         "\"}\n"
         " ]\n"
         "}\n";
}

std::string ReceiptWith(const std::string& from, const std::string& to) {
  std::string text = SmallText();
  const size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return text.replace(at, from.size(), to);
}

std::string ReceiptRefusal(const std::string& text) {
  const Plan plan = SmallPlan();
  try {
    ReadReceipt(text, "r.json", PlanRank(plan, 0));
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kRefused) << error.what();
    return error.what();
  }
  return "";
}

TEST(WriteReceipt, WriteReceiptIsCanonical) {
  const Plan plan = SmallPlan();
  EXPECT_EQ(WriteReceipt(PlanRank(plan, 0), SmallReceipt()), SmallText());
}

TEST(ReadWritten, ReadWrittenInvertsWriteReceipt) {
  const Plan plan = SmallPlan();
  const auto receipt = ReadWritten(SmallText(), "r.json", PlanRank(plan, 0));
  const Receipt expected = SmallReceipt();
  ASSERT_TRUE(receipt.has_value());
  EXPECT_EQ(receipt->size, expected.size);
  EXPECT_EQ(receipt->plan_sha256, expected.plan_sha256);
  EXPECT_EQ(receipt->metadata_sha256, expected.metadata_sha256);
  EXPECT_EQ(receipt->offsets, expected.offsets);
  EXPECT_EQ(receipt->digests, expected.digests);
  EXPECT_EQ(receipt->sha256, Sha256Of(SmallText()));
  EXPECT_EQ(ReadReceipt(SmallText(), "r.json", PlanRank(plan, 0)).sha256, Sha256Of(SmallText()));
}

// ReadWritten() accepts only texts that WriteReceipt() writes, and reads them like ReadReceipt().
// Changes each byte of a receipt in several ways.
TEST(ReadWritten, ReadWrittenAcceptsOnlyCanonicalText) {
  const Plan plan = SmallPlan();
  const RankPlan rank = PlanRank(plan, 0);
  const std::string text = SmallText();
  int taken = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    for (const char c : {'0', '7', 'a', '"', ' ', static_cast<char>(text[i] ^ 1)}) {
      std::string other = text;
      other[i] = c;
      std::optional<Receipt> read, written;
      try {
        read = ReadReceipt(other, "r.json", rank);
      } catch (const Error&) {
      }
      try {
        written = ReadWritten(other, "r.json", rank);
      } catch (const Error&) {
      }
      const bool is_canonical = read && WriteReceipt(rank, *read) == other;
      ASSERT_EQ(written.has_value(), is_canonical) << other;
      if (!written) continue;
      ASSERT_EQ(WriteReceipt(rank, *written), other);
      ASSERT_EQ(written->sha256, Sha256Of(other));
      ++taken;
    }
  }
  EXPECT_GT(taken, 100);  // Other digests and offsets give other valid receipts.
}

TEST(ReadWritten, ReadWrittenIsNotMisledByTensorNames) {
  InitGraph graph{.name = "x", .engine = "philox4x32", .mesh = {}, .tensors = {}};
  for (const char* path : {"\"file_offset\": 9", "\"sha256\": \"0", "b", "\n \"boxes\": ["}) {
    graph.tensors.push_back(MakeTensor(path, DType::f32, {4}, Constant{1}));
  }
  const Plan plan = MakePlan(std::move(graph));
  const RankPlan rank = PlanRank(plan, 0);
  Receipt receipt{.size = 4096, .offsets = {2048, 2064, 2080, 2096}, .digests = {}};
  for (const char* box : {"a", "b", "c", "d"}) receipt.digests.push_back(Sha256Of(box));
  const std::string text = WriteReceipt(rank, receipt);
  const auto written = ReadWritten(text, "r.json", rank);
  ASSERT_TRUE(written.has_value());
  EXPECT_EQ(written->offsets, receipt.offsets);
  EXPECT_EQ(written->digests, receipt.digests);
}

TEST(WriteReceipt, WritesReceiptsOfManyBoxesInPieces) {
  InitGraph graph{.name = "x", .engine = "philox4x32", .mesh = {}, .tensors = {}};
  for (int i = 0; i < 20'000; ++i) {
    graph.tensors.push_back(MakeTensor("t" + std::to_string(i), DType::f32, {}, Constant{1}));
  }
  const Plan plan = MakePlan(std::move(graph));
  const RankPlan rank = PlanRank(plan, 0);
  Receipt receipt;
  receipt.size = 1 << 20;
  for (int i = 0; i < 20'000; ++i) {
    receipt.offsets.push_back(4 * i);
    receipt.digests.push_back(Sha256Of(std::to_string(i)));
  }
  size_t pieces = 0, longest = 0;
  std::string text;
  WriteReceipt(rank, receipt, [&](std::string_view piece) {
    ++pieces;
    longest = std::max(longest, piece.size());
    text += piece;
  });
  EXPECT_GT(text.size(), size_t{3} << 20);
  EXPECT_LT(longest, size_t{2} << 20);
  EXPECT_GT(pieces, 2u);
  const auto written = ReadWritten(text, "r.json", rank);
  ASSERT_TRUE(written.has_value());
  EXPECT_EQ(written->digests, receipt.digests);
  text[text.size() / 2] ^= 1;  // A text that differs in any piece is not accepted.
  try {
    const auto other = ReadWritten(text, "r.json", rank);
    EXPECT_TRUE(!other || WriteReceipt(rank, *other) == text);
  } catch (const Error&) {
  }
}

TEST(ReadReceipt, ReadReceiptInvertsWriteReceipt) {
  const Plan plan = SmallPlan();
  const Receipt receipt = ReadReceipt(SmallText(), "r.json", PlanRank(plan, 0));
  const Receipt expected = SmallReceipt();
  EXPECT_EQ(receipt.size, expected.size);
  EXPECT_EQ(receipt.plan_sha256, expected.plan_sha256);
  EXPECT_EQ(receipt.metadata_sha256, expected.metadata_sha256);
  EXPECT_EQ(receipt.offsets, expected.offsets);
  EXPECT_EQ(receipt.digests, expected.digests);
}

TEST(ReadReceipt, ReadReceiptReportsTheReason) {
  const std::string head = "`r.json` is not the receipt of rank 0 of this plan: ";
  EXPECT_EQ(ReceiptRefusal(ReceiptWith("\"rank\": 0", "\"rank\": 1")),
            head + "it is the receipt of rank 1");
  EXPECT_EQ(ReceiptRefusal(ReceiptWith("\"size\": 3000", "\"size\": -1")),
            head + "its `size` is -1, but must not be negative");
  EXPECT_EQ(ReceiptRefusal(ReceiptWith("\"size\": 3000", "\"size\": -9223372036854775808")),
            head + "its `size` is -9223372036854775808, but must not be negative");
  EXPECT_EQ(ReceiptRefusal(ReceiptWith("\"path\": \"a.w\"", "\"path\": \"b\"")),
            head + "box 0 is not the plan's shard of `a.w`");
  EXPECT_EQ(ReceiptRefusal(ReceiptWith("2000", "-1")),
            head + "box 0 is not the plan's shard of `a.w`");
  EXPECT_EQ(ReceiptRefusal(ReceiptWith("2000", "2959")),
            head + "box 0 is not the plan's shard of `a.w`");
  EXPECT_EQ(ReceiptRefusal(ReceiptWith("2000", "9223372036854775807")),
            head + "box 0 is not the plan's shard of `a.w`");
  EXPECT_EQ(ReceiptRefusal(ReceiptWith("2000", "2958")), "");  // The box ends with the file.
  const std::string text = SmallText();
  const size_t second = text.find(",\n  {\"path\": \"b\"");
  EXPECT_EQ(ReceiptRefusal(text.substr(0, second) + "\n ]\n}\n"),
            head + "it has 1 boxes instead of 2");
  const std::string digest = ToHex(Sha256Of("b"));
  EXPECT_EQ(ReceiptRefusal(ReceiptWith(digest, digest.substr(1))),
            head + "a digest must be 64 hexadecimal digits, not `" + digest.substr(1) + "`");
  EXPECT_EQ(ReceiptRefusal(ReceiptWith(digest, "X" + digest.substr(1))),
            head + "a digest must be 64 hexadecimal digits, not `X" + digest.substr(1) + "`");
}

TEST(ReadReceipt, ReadReceiptRejectsOtherTypes) {
  for (const auto& [from, to] : std::vector<std::pair<std::string, std::string>>{
           {"3000", "\"3000\""},
           {"3000", "null"},
           {"\"boxes\"", "\"box\""},
           {"\"size\"", "\"rank\""},
           {"2048", "[2048]"},
           {"\"" + ToHex(Sha256Of("b")) + "\"", "7"},
           {"\"" + ToHex(Sha256Of("plan")) + "\"", "null"},
           {"{\n \"format", "[{\n \"format"}}) {
    EXPECT_NE(ReceiptRefusal(ReceiptWith(from, to)), "") << to;
  }
  EXPECT_NE(ReceiptRefusal(""), "");
  EXPECT_NE(ReceiptRefusal("[]"), "");
  EXPECT_NE(ReceiptRefusal("{}"), "");
  EXPECT_NE(ReceiptRefusal("null"), "");
}

// Returns a folder with the two files of rank 0, where FindReceipt looks for them.
Contents Files(const std::string& receipt, size_t size = 3000) {
  return {{"ranks/rank-00000.json", receipt}, {"ranks/rank-00000.h5", std::string(size, 'x')}};
}

bool Finds(const Contents& files, const Digest& plan_sha256) {
  const WorkingFolder folder(files);
  const Plan plan = SmallPlan();
  return FindReceipt(CheckpointFolder(".").place(), PlanRank(plan, 0), plan_sha256).has_value();
}

TEST(FindReceipt, FindReceiptNeedsAMatchingFile) {
  const Digest plan = Sha256Of("plan");
  EXPECT_TRUE(Finds(Files(SmallText()), plan));
  EXPECT_FALSE(Finds({}, plan));
  EXPECT_FALSE(Finds(Files(SmallText()), Sha256Of("another plan")));
  EXPECT_FALSE(Finds(Files(SmallText(), 2999), plan));
  EXPECT_FALSE(Finds({{"ranks/rank-00000.json", SmallText()}}, plan));
  EXPECT_FALSE(Finds({{"ranks/rank-00000.h5", std::string(3000, 'x')}}, plan));
}

TEST(FindReceipt, FindReceiptTreatsDamageAsMissing) {
  const Digest plan = Sha256Of("plan");
  EXPECT_FALSE(Finds(Files(""), plan));
  EXPECT_FALSE(Finds(Files(SmallText().substr(0, 400)), plan));
  EXPECT_FALSE(Finds(Files(SmallText() + "\n"), plan));
  // All values that are read are right, but this tool would write the text differently.
  EXPECT_FALSE(Finds(Files(ReceiptWith("\"coordinate\": [0]", "\"coordinate\": [1]")), plan));
  EXPECT_FALSE(Finds(Files(ReceiptWith("\"bytes\": 42", "\"bytes\": 43")), plan));
  EXPECT_FALSE(Finds(Files(ReceiptWith("3000", "3000.0")), plan));
  EXPECT_FALSE(Finds(Files(std::string(2 << 20, ' ') + SmallText()), plan));
}

// Follows a rank's file through its whole life, as a verifier sees it.
TEST(Generate, GenerateLeavesAFileWithAReceipt) {
  SetUpHdf5Once();
  const Plan plan = SmallPlan();
  const Digest plan_sha256 = Sha256Of(WritePlan(plan));
  const WorkingFolder scratch(Contents{});
  GenerateRequest request;
  request.folder = ".";
  request.ranks = {0};
  request.workers = {.jobs = 1, .writers = 1, .memory = 1};
  WorkCounters counters;
  EXPECT_FALSE(Generate(plan, request, &counters).complete);
  const CheckpointFolder folder(".");
  const RankPlan rank = PlanRank(plan, 0);
  const auto receipt = FindReceipt(folder.place(), rank, plan_sha256);
  ASSERT_TRUE(receipt.has_value());
  const std::string file = ReadFile(RankFile(0));
  EXPECT_EQ(std::ssize(file), receipt->size);
  FileOutline outline = {.path = "", .size = receipt->size, .boxes = {}};
  for (size_t i = 0; i < rank.shards.size(); ++i) {
    outline.boxes.push_back({receipt->offsets[i], rank.shards[i].bytes()});
  }
  outline.texts = [&] { return std::make_shared<FileTexts>(FileTexts{{{0, file}}}); };
  EXPECT_EQ(HashGaps(outline), receipt->metadata_sha256);
  for (size_t i = 0; i < rank.shards.size(); ++i) {
    const auto bytes = std::string_view(file).substr(static_cast<size_t>(receipt->offsets[i]),
                                                     static_cast<size_t>(rank.shards[i].bytes()));
    EXPECT_EQ(Sha256Of(bytes), receipt->digests[i]);
  }
  EXPECT_EQ(MissingRanks(folder.place(), plan, plan_sha256, {0, 1}), std::vector<int64_t>{1});
  // A missing rank prevents finalizing.
  EXPECT_EQ(Finalize(folder, plan, plan_sha256, IndexMode::kAuto).missing, std::vector<int64_t>{1});
  EXPECT_FALSE(Exists(kManifestName));
}

TEST(WriteManifest, ManifestFollowsFromPlanAndReceipts) {
  const Plan plan = SmallPlan();
  const Digest d0 = Sha256Of("0"), d1 = Sha256Of("1"), d2 = Sha256Of("2"), index = Sha256Of("i");
  const std::vector<ReceiptEntry> ranks = {{100, Sha256Of("r0"), {0, 1}, {d0, d1}},
                                           {200, Sha256Of("r1"), {0}, {d2}}};
  std::string text;
  WriteManifest(plan, Sha256Of("p"), ranks, FileEntry{300, index},
                [&](std::string_view piece) { text += piece; });
  EXPECT_EQ(
      text,
      "{\n"
      " \"format_version\": 1,\n"
      " \"contract_version\": 1,\n"
      " \"name\": \"small\",\n"
      " \"engine\": \"philox4x32\",\n"
      " \"seed\": 1,\n"
      " \"mesh\": {\"axes\": [\"x\"], \"shape\": [2]},\n"
      " \"world_size\": 2,\n"
      " \"replicas\": \"dedupe\",\n"
      " \"parameters\": 38,\n"
      " \"bytes\": 82,\n"
      " \"plan_sha256\": \"" +
          ToHex(Sha256Of("p")) +
          "\",\n"
          " \"index\": {\"file\": \"index.h5\", \"size\": 300, \"sha256\": \"" +
          ToHex(index) +
          "\"},\n"
          " \"ranks\": [\n"
          "  {\"rank\": 0, \"file\": \"ranks/rank-00000.h5\", \"size\": 100, \"receipt\": "
          "\"ranks/rank-00000.json\", \"receipt_sha256\": \"" +
          ToHex(Sha256Of("r0")) +
          "\"},\n"
          "  {\"rank\": 1, \"file\": \"ranks/rank-00001.h5\", \"size\": 200, \"receipt\": "
          "\"ranks/rank-00001.json\", \"receipt_sha256\": \"" +
          ToHex(Sha256Of("r1")) +
          "\"}\n"
          " ],\n"
          " \"tensors\": [\n"
          "  {\"path\": \"a.w\", \"dtype\": \"bf16\", \"global_shape\": [5, 7], \"dataset\": "
          "\"/a/w\", "
          "\"shards\": [\n"
          "    {\"rank\": 0, \"offset\": [0, 0], \"shape\": [3, 7], \"sha256\": \"" +
          ToHex(d0) +
          "\"},\n"
          "    {\"rank\": 1, \"offset\": [3, 0], \"shape\": [2, 7], \"sha256\": \"" +
          ToHex(d2) +
          "\"}\n"
          "   ]},\n"
          "  {\"path\": \"b\", \"dtype\": \"f32\", \"global_shape\": [3], \"dataset\": \"/b\", "
          "\"shards\": [\n"
          "    {\"rank\": 0, \"offset\": [0], \"shape\": [3], \"sha256\": \"" +
          ToHex(d1) +
          "\"}\n"
          "   ]}\n"
          " ]\n"
          "}\n");
}

}  // namespace
}  // namespace shardinit
