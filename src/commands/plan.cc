#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <optional>

#include "autoshard/cost.h"
#include "base/result_file.h"
#include "commands/command.h"
#include "commands/options.h"
#include "commands/plan_page.h"
#include "commands/tensor_facts.h"
#include "graph/languages/write_map.h"
#include "graph/stored/view.h"
#include "plan/balance.h"
#include "report/text.h"

namespace shardinit {
namespace {

struct PlanOptions {
  explicit PlanOptions(CLI::App& app) {
    spec.AddAllTo(app);
    AddText(app, "--write", "FILE", &write,
            "Also write the sharding to this file, for use with --sharding");
    AddRank(app, &rank, "Also list the boxes of this rank");
    AddPart(app, &ranks.part, "Also show part I (from 0) of the ranks in N parts of equal bytes");
    app.add_flag("--devices", devices, "Also list the device of each rank");
    work.AddJobsTo(app, "would generate");
    work.AddMemoryTo(app);
    AddText(app, "--html", "FILE", &html, "Also write a page of pictures: mesh, ranks, boxes");
    AddForce(app, &force);
    AddJson(app, &json);
  }

  SpecOptions spec;
  WorkOptions work;
  RankOptions ranks;  // only --part
  int64_t rank = -1;
  bool devices = false, force = false, json = false;
  std::string write;
  std::string html;  // a file; empty: no page
};

int64_t Memory(const PlanOptions& options) {
  const BlockLayout blocks = BlocksFor(options.work.Workers(true));
  return blocks.count * blocks.bytes;
}

// Counts the matrices that are generated whole, whichever part a rank holds.
struct WholeMatrices {
  int64_t count = 0;
  double operations = 0;  // sum over all matrices
  OrthogonalSize largest{0, 0, 0, 0};
};

WholeMatrices FindWholeMatrices(const Plan& plan) {
  WholeMatrices found;
  for (const Tensor& tensor : plan.graph.logical()) {
    const auto* orthogonal = std::get_if<Orthogonal>(&tensor.distribution());
    if (orthogonal == nullptr) continue;
    const OrthogonalSize size = SizeOf(*orthogonal, tensor.shape());
    ++found.count;
    found.operations += size.operations;
    if (size.bytes > found.largest.bytes) found.largest = size;
  }
  return found;
}

// The order of the rows for people.
enum PlanSection { kModel, kTensors, kSizes, kFiles };

Fact FactOfMesh(const Mesh& mesh) {
  FactList axes;
  for (const std::string& axis : mesh.axes) axes.items.push_back({"", axis});
  return {"mesh", Facts{{"axes", axes}, {"shape", mesh.shape}}};
}

Fact FactOfMatrices(const WholeMatrices& whole) {
  const OrthogonalSize& largest = whole.largest;
  const auto memory = static_cast<int64_t>(largest.bytes);
  return {"orthogonal",
          Facts{{"tensors", whole.count},
                {"operations", whole.operations},
                {"largest", Shape{largest.rows, largest.columns}},
                {"largest_operations", largest.operations},
                {"largest_memory", memory}},
          {.label = "orthogonal",
           .text = fmt::format("{}, {:.2g} operations; the largest, {} × {}: {:.2g} and {}",
                               Count(whole.count, "matrix", "matrices"), whole.operations,
                               largest.rows, largest.columns, largest.operations, InBytes(memory)),
           .section = kFiles}};
}

double ImbalanceOf(const Plan& plan, const Balance& balance) {
  const double mean = static_cast<double>(balance.held) / static_cast<double>(plan.world_size());
  return mean > 0 ? static_cast<double>(plan.max_rank_bytes) / mean : 1;
}

Fact FactOfLargestRank(const Plan& plan, const Balance& balance) {
  const std::string least = balance.ranks.empty()
                                ? "the smallest is not known: too many tensors differ"
                                : "the smallest " + InBytes(balance.ranks.begin()->first);
  return {"max_rank_bytes",
          plan.max_rank_bytes,
          {.label = "largest rank",
           .text = fmt::format("{}, {:.3f} × the mean; {}", InBytes(plan.max_rank_bytes),
                               ImbalanceOf(plan, balance), least),
           .section = kSizes}};
}

std::string InSeconds(double seconds) {
  if (seconds >= 1 || seconds == 0) return fmt::format("{:.3g} s", seconds);
  if (seconds >= 1e-3) return fmt::format("{:.3g} ms", seconds * 1e3);
  return seconds >= 1e-6 ? fmt::format("{:.3g} µs", seconds * 1e6)
                         : fmt::format("{:.3g} ns", seconds * 1e9);
}

// Uses the terms of shardinit-auto(7).
Fact FactOfCost(const Mesh& mesh, const StepCost& cost) {
  Facts members;
  std::string sent;
  for (size_t a = 0; a < cost.bytes.size(); ++a) {
    const double bytes = std::min(cost.bytes[a], 9e18);
    members.push_back({mesh.axes[a], static_cast<int64_t>(std::llround(bytes))});
    if (bytes == 0) continue;
    sent += fmt::format("{}{} {}", sent.empty() ? ": " : ", ", mesh.axes[a],
                        InBytes(static_cast<int64_t>(bytes)));
  }
  const auto memory = static_cast<int64_t>(std::min(cost.memory, 9e18));
  return {"cost",
          Facts{{"seconds", cost.seconds()},
                {"communication_seconds", cost.communication},
                {"computation_seconds", cost.computation},
                {"bytes", std::move(members)},
                {"memory", memory},
                {"recompute", cost.options.recompute},
                {"sequence_parallel", cost.options.sequence_parallel},
                {"cut_otherwise", static_cast<int64_t>(cost.sharded_otherwise)}},
          {.label = "step",
           .text = fmt::format("{} of communication{}; {} of computation; {} on a rank{}{}",
                               InSeconds(cost.communication), sent, InSeconds(cost.computation),
                               InBytes(memory), cost.options.recompute ? ", recomputed" : "",
                               cost.options.sequence_parallel ? ", sequence parallel" : "") +
                   (cost.sharded_otherwise == 0
                        ? ""
                        : fmt::format("; {} sharded as auto never does",
                                      Count(static_cast<int64_t>(cost.sharded_otherwise), "matrix",
                                            "matrices"))),
           .section = kFiles}};
}

// Adds how evenly the ranks are filled, and the contents of files.
void AddFactsOfBalance(const Plan& plan, const Balance& balance, int64_t stored_padding,
                       Facts* facts) {
  const bool full = plan.graph.replicas == Replicas::kFull;
  const int64_t file_bytes = full ? balance.held : plan.bytes;
  facts->push_back({"min_rank_bytes", balance.ranks.empty()
                                          ? FactScalar(nullptr)
                                          : FactScalar(balance.ranks.begin()->first)});
  facts->push_back({"imbalance", ImbalanceOf(plan, balance)});
  facts->push_back({"held_bytes", balance.held});
  const std::string more = stored_padding == 0 ? "" : " but what is stored";
  facts->push_back(
      {"padding_bytes",
       balance.padding,
       {.label = "padding",
        .text = balance.padding == 0
                    ? fmt::format("none{}: all shards of a tensor are equal", more)
                    : InBytes(balance.padding) + " if all shards of a tensor were equal",
        .section = kSizes}});
  facts->push_back({"file_bytes",
                    file_bytes,
                    {.label = "files",
                     .text = fmt::format(
                         "{}, {} in all; ranks hold {}, {}", Count(plan.world_size(), "rank file"),
                         InBytes(file_bytes), InBytes(balance.held),
                         full ? "replicas in each one's file" : "replicas are stored once"),
                     .section = kFiles}});
}

// A process that generates all values reads each tensor of a source once to hash it, and then takes
// elements from it.
Fact FactOfSources(const InitGraph& graph) {
  std::map<std::pair<std::string, std::string>, int64_t> bytes;
  for (const Tensor& tensor : graph.logical()) {
    ForEachSource(tensor.distribution(), [&](const std::string& source, const std::string& name,
                                             const SourceTensorPtr& data) {
      if (data != nullptr) bytes[{source, name}] = data->elements() * InfoOf(data->dtype()).bytes;
    });
  }
  int64_t all = 0;
  for (const auto& [name, each] : bytes) all += each;
  return {"source_bytes",
          all,
          {.label = "sources",
           .text = fmt::format("{} of {}, {} to be read", Count(std::ssize(bytes), "tensor"),
                               Count(std::ssize(graph.sources), "source"), InBytes(all)),
           .section = kFiles}};
}

// Returns the bytes of padding, which is stored but not drawn.
int64_t PaddingIn(const InitGraph& graph) {
  int64_t bytes = 0;
  for (const Tensor& tensor : graph.tensors) {
    if (!tensor.view()) continue;
    for (const Piece& piece : tensor.view()->pieces) {
      if (piece.source == Piece::kPadding) bytes += piece.elements() * InfoOf(tensor.dtype()).bytes;
    }
  }
  return bytes;
}

Facts FactsOfPlan(const PlanOptions& options, const Plan& plan, const Balance& balance,
                  const StepCost& cost) {
  const InitGraph& graph = plan.graph;
  const int64_t padding = PaddingIn(graph);
  const bool index = WantsIndex(plan, IndexMode::kAuto);
  const int64_t memory = Memory(options);
  Facts facts = {
      {"name", graph.name, {.label = "name"}},
      {"parameters", plan.parameters, {.label = "parameters", .section = kSizes}},
      {"bytes",
       plan.bytes,
       {.label = "bytes",
        .text = fmt::format("{} ({}){}", Grouped(plan.bytes), InBytes(plan.bytes),
                            padding == 0 ? ""
                                         : fmt::format(", of which {} ({}) are padding",
                                                       Grouped(padding), InBytes(padding))),
        .section = kSizes}},
      {"world_size",
       plan.world_size(),
       {.label = "ranks",
        .text = Grouped(plan.world_size()) + MeshText(graph.mesh),
        .section = kSizes}},
      {"tensors", graph.tensors.size(), {.label = "tensors", .section = kTensors}},
      FactOfLargestRank(plan, balance),
      {"box_count", plan.boxes},
      {"seed",
       graph.seed,
       {.label = "seed", .text = fmt::format("{}, engine {}", graph.seed, graph.engine)}},
      {"engine", graph.engine},
      FactOfMesh(graph.mesh),
      {"replicas", std::string(NameOf(graph.replicas))},
      {"index",
       index,
       {.label = "index.h5",
        .text = index ? ""
                      : fmt::format("no: {} boxes, {} of one tensor", Grouped(plan.boxes),
                                    Grouped(plan.most_boxes)),
        .section = kFiles}},
      {"memory",
       memory,
       {.label = "memory",
        .text = InBytes(memory) + " for data on its way to the disk",
        .section = kFiles}}};
  if (!graph.sources.empty()) facts.push_back(FactOfSources(graph));
  if (padding > 0) facts.push_back({"stored_padding_bytes", padding});
  AddFactsOfBalance(plan, balance, padding, &facts);
  if (!cost.bytes.empty() && plan.world_size() > 1) facts.push_back(FactOfCost(graph.mesh, cost));
  if (const WholeMatrices whole = FindWholeMatrices(plan); whole.count > 0) {
    facts.push_back(FactOfMatrices(whole));
  }
  return facts;
}

// Describes the output of a job with this part.
Fact FactOfPart(const Plan& plan, const JobPart& part, const std::vector<int64_t>& ranks) {
  const int64_t bytes = BytesIn(plan, ranks);
  const std::string text = RanksInText(ranks);
  return {"part",
          Facts{{"index", part.index},
                {"count", part.count},
                {"ranks", text},
                {"rank_count", std::ssize(ranks)},
                {"bytes", bytes}},
          {.label = "part",
           .text = ranks.empty() ? fmt::format("{}/{}: no ranks", part.index, part.count)
                                 : fmt::format("{}/{}: {} {}, {} in {}", part.index, part.count,
                                               ranks.size() == 1 ? "rank" : "ranks", text,
                                               InBytes(bytes), Count(std::ssize(ranks), "file")),
           .section = kFiles}};
}

// `mesh` must outlive the fact.
Fact FactOfDevices(const Mesh& mesh) {
  const auto devices = std::make_shared<const DeviceMap>(mesh);
  const FactTable table = {static_cast<size_t>(mesh.world_size()),
                           {"device", "slice", "coordinate", "rank"},
                           [devices, &mesh](size_t row) -> Facts {
                             const auto rank = static_cast<int64_t>(row);
                             const Device device = devices->At(rank);
                             return {{"id", device.id},
                                     {"slice", device.slice},
                                     {"coordinate", mesh.CoordinateOf(rank)},
                                     {"rank", rank}};
                           }};
  const int64_t slices = mesh.devices.slice_count();
  return {"devices",
          table,
          {.text = fmt::format("{} of {}", Count(slices, "slice"),
                               Count(mesh.world_size() / slices, "device"))}};
}

// `plan` must outlive the facts.
void AddFactsOfRank(const Plan& plan, int64_t rank, Facts* facts) {
  const auto of_rank = std::make_shared<const RankPlan>(PlanRank(plan, rank));
  const std::string file = RankFile(rank);
  const Mesh& mesh = plan.graph.mesh;
  facts->push_back({"rank", rank});
  facts->push_back({"coordinate", of_rank->coordinate});
  facts->push_back({"rank_bytes", of_rank->bytes()});
  const FactTable boxes = {of_rank->shards.size(),
                           {"path", "dtype", "global shape", "partition", "offset", "shape"},
                           [of_rank, &mesh, file](size_t row) -> Facts {
                             const auto& [tensor, box, part] = of_rank->shards[row];
                             Facts facts = FactsOf(*tensor);
                             facts.insert(facts.end(), {{"", InText(tensor->partition(), mesh)},
                                                        {"offset", box.offset},
                                                        {"shape", box.shape},
                                                        {"file", file}});
                             return facts;
                           }};
  facts->push_back(
      {"boxes",
       boxes,
       {.text = fmt::format("rank {} at {}: {} in {} of {}", rank, InShape(of_rank->coordinate),
                            InBytes(of_rank->bytes()),
                            Count(static_cast<int64_t>(boxes.rows), "box", "boxes"), file)}});
}

// The output of WriteShardingMap() and HtmlPage begins with these marks.
const ResultKind kMapKind = {"--write", "sharding", {"# The sharding of ", " over the mesh "}};
const ResultKind kPageKind = {
    "--html",
    "page",
    {"<!DOCTYPE html>\n", "<meta name=\"generator\" content=\"shardinit plan\">"}};

void RunPlan(const PlanOptions& options) {
  Diagnostics diagnostics;
  StepCost cost;
  const Plan plan = options.spec.Load(diagnostics, {.cost = &cost});
  CheckRank(options.rank, plan);
  std::optional<ResultFile> map, page;
  if (!options.write.empty()) map.emplace(kMapKind, options.write, options.force);
  if (!options.html.empty()) page.emplace(kPageKind, options.html, options.force);
  if (map) map->Write(WriteShardingMap(plan.graph));
  const std::vector<TensorKind> kinds = KindsOf(plan);
  const Balance balance = BalanceOf(plan, kinds);
  Facts facts = FactsOfPlan(options, plan, balance, cost);
  if (const auto part = options.ranks.FindPart()) {
    facts.push_back(FactOfPart(plan, *part, options.ranks.Ranks(plan)));
  }
  if (page) page->Write(PlanPage(plan, facts, kinds, balance));
  if (options.devices) facts.push_back(FactOfDevices(plan.graph.mesh));
  if (options.rank >= 0) AddFactsOfRank(plan, options.rank, &facts);
  Print(options.json ? FactsInJson(facts) : FactsInText(facts));
}

}  // namespace

extern const Command kPlan = {"plan", "Show what would be generated and what each rank would hold",
                              Configure<RunPlan>};

}  // namespace shardinit
