#include <fmt/format.h>

#include <memory>

#include "base/json.h"
#include "commands/command.h"
#include "commands/options.h"
#include "report/text.h"

namespace shardinit {
namespace {

struct PlanOptions {
  SpecOptions spec;
  WorkOptions work;
  int64_t rank = -1;
  bool json = false;
};

int64_t Memory(const PlanOptions& options) {
  const BlockLayout blocks = BlocksFor(options.work.Workers(true));
  return blocks.count * blocks.bytes;
}

// Matrices that are made whole, whatever part of them a rank holds.
struct WholeMatrices {
  int64_t count = 0;
  double operations = 0;  // Of all.
  OrthogonalSize largest{0, 0, 0, 0};
};

WholeMatrices FindWholeMatrices(const Plan& plan) {
  WholeMatrices found;
  for (const Tensor& tensor : plan.graph.logical()) {
    const auto* orthogonal = std::get_if<Orthogonal>(&tensor.distribution);
    if (orthogonal == nullptr) continue;
    const OrthogonalSize size = SizeOf(*orthogonal, tensor.shape);
    ++found.count;
    found.operations += size.operations;
    if (size.bytes > found.largest.bytes) found.largest = size;
  }
  return found;
}

void PrintJson(const PlanOptions& options, const Plan& plan) {
  JsonWriter out;
  out.BeginObject(JsonWriter::kLines);
  out.Member("name", plan.graph.name).Member("parameters", plan.parameters);
  out.Member("bytes", plan.bytes).Member("world_size", plan.world_size());
  out.Member("tensors", plan.graph.tensors.size()).Member("max_rank_bytes", plan.max_rank_bytes);
  out.Member("box_count", plan.boxes)
      .Member("seed", plan.graph.seed)
      .Member("engine", plan.graph.engine);
  WriteMesh(plan.graph.mesh, out);
  out.Member("replicas", NameOf(plan.graph.replicas));
  out.Member("index", WantsIndex(plan, IndexMode::kAuto)).Member("memory", Memory(options));
  if (const WholeMatrices whole = FindWholeMatrices(plan); whole.count > 0) {
    out.Key("orthogonal").BeginObject().Member("tensors", whole.count);
    out.Member("operations", whole.operations);
    out.Member("largest", Shape{whole.largest.rows, whole.largest.columns});
    out.Member("largest_operations", whole.largest.operations);
    out.Member("largest_memory", static_cast<int64_t>(whole.largest.bytes)).EndObject();
  }
  if (options.rank >= 0) {
    const RankPlan rank = PlanRank(plan, options.rank);
    out.Member("rank", rank.rank).Member("coordinate", rank.coordinate);
    out.Member("rank_bytes", rank.bytes());
    out.Key("boxes").BeginArray(JsonWriter::kLines);
    for (const Shard& shard : rank.shards) {
      out.BeginObject().Member("path", shard.tensor->path);
      out.Member("dtype", InfoOf(shard.tensor->dtype).name);
      out.Member("global_shape", shard.tensor->shape);
      out.Member("offset", shard.box.offset).Member("shape", shard.box.shape);
      out.Member("file", RankFile(rank.rank)).EndObject();
    }
    out.EndArray();
  }
  out.EndObject();
  Print(out.Finish());
}

void PrintText(const PlanOptions& options, const Plan& plan) {
  const InitGraph& graph = plan.graph;
  std::vector<std::vector<std::string>> rows = {
      {"name", graph.name},
      {"seed", fmt::format("{}, engine {}", graph.seed, graph.engine)},
      {"tensors", Grouped(static_cast<int64_t>(graph.tensors.size()))},
      {"parameters", Grouped(plan.parameters)},
      {"bytes", fmt::format("{} ({})", Grouped(plan.bytes), InBytes(plan.bytes))},
      {"ranks", Grouped(plan.world_size()) + MeshText(graph.mesh)},
      {"largest rank", InBytes(plan.max_rank_bytes)},
      {"index.h5", WantsIndex(plan, IndexMode::kAuto)
                       ? "yes"
                       : fmt::format("no: {} boxes, {} of one tensor", Grouped(plan.boxes),
                                     Grouped(plan.most_boxes))},
      {"memory", InBytes(Memory(options)) + " for data on its way to the disk"}};
  if (const WholeMatrices whole = FindWholeMatrices(plan); whole.count > 0) {
    const OrthogonalSize& largest = whole.largest;
    rows.push_back(
        {"orthogonal", fmt::format("{}, {:.2g} operations; the largest, {} × {}: {:.2g} and {}",
                                   Count(whole.count, "matrix", "matrices"), whole.operations,
                                   largest.rows, largest.columns, largest.operations,
                                   InBytes(static_cast<int64_t>(largest.bytes)))});
  }
  std::string text = Table(rows, {false, false});
  if (options.rank >= 0) {
    const RankPlan rank = PlanRank(plan, options.rank);
    text += fmt::format("\nrank {} at {}: {} in {} of {}\n\n", rank.rank, InShape(rank.coordinate),
                        InBytes(rank.bytes()),
                        Count(static_cast<int64_t>(rank.shards.size()), "box", "boxes"),
                        RankFile(rank.rank));
    rows = {{"path", "dtype", "global shape", "partition", "offset", "shape"}};
    for (const Shard& shard : rank.shards) {
      rows.push_back({shard.tensor->path, std::string(InfoOf(shard.tensor->dtype).name),
                      InShape(shard.tensor->shape), InText(shard.tensor->partition, graph.mesh),
                      InShape(shard.box.offset), InShape(shard.box.shape)});
    }
    text += Table(rows, {false, false, false, false, false, false});
  }
  Print(text);
}

ExitCode RunPlan(const PlanOptions& options) {
  const Plan plan = options.spec.Load();
  CheckRank(options.rank, plan);
  options.json ? PrintJson(options, plan) : PrintText(options, plan);
  return ExitCode::kOk;
}

}  // namespace

extern const Command kPlan = {
    .name = "plan",
    .summary = "Show what would be generated and what each rank would hold",
    .configure = [](CLI::App& app) -> std::function<ExitCode()> {
      auto options = std::make_shared<PlanOptions>();
      options->spec.AddTo(app);
      options->spec.AddLayoutTo(app);
      options->spec.AddReplicasTo(app);
      AddRank(app, &options->rank, "Also list the boxes of this rank");
      options->work.AddJobsTo(app, "would generate");
      options->work.AddMemoryTo(app);
      AddJson(app, &options->json);
      return [options] { return RunPlan(*options); };
    },
};

}  // namespace shardinit
