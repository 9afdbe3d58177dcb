#include "graph/build.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <memory>

#include "graph/building.h"
#include "graph/config.h"
#include "graph/drawn/draw.h"
#include "graph/drawn/norm.h"
#include "graph/drawn/tie.h"
#include "graph/explain.h"
#include "graph/sharded/mesh.h"
#include "graph/sharded/sharding.h"
#include "graph/sharded/training.h"
#include "graph/stored/pad.h"
#include "graph/stored/store.h"
#include "graph/validate.h"
#include "rng/engines.h"

namespace shardinit {
namespace {

constexpr PieceBudget kMaxPiecesOfAll = 2 * kMaxPieces;  // of layouts that are checked together

// Binds what a spec says once for the whole model.
InitGraph BindModel(Building& building) {
  const ModelSpec& spec = building.spec;
  InitGraph graph;
  graph.name = spec.name.value;
  if (spec.large_seed) graph.seed = spec.large_seed->value;
  if (spec.seed) {
    graph.seed = static_cast<uint64_t>(EvaluateInteger(*spec.seed, building.names, 0,
                                                       std::numeric_limits<int64_t>::max(),
                                                       "`seed`", building.diagnostics)
                                           .value_or(0));
  }
  graph.engine = std::string(Engines().front()->name);
  if (spec.engine && FindEngine(spec.engine->value) == nullptr) {
    ReportUnknown("engine", *spec.engine, EngineNames(), building.diagnostics);
  } else if (spec.engine) {
    graph.engine = FindEngine(spec.engine->value)->name;
  }
  if (spec.replicas && spec.replicas->value == "full") graph.replicas = Replicas::kFull;
  if (spec.config) graph.config = BindConfig(*spec.config, building.names, building.diagnostics);
  return graph;
}

// Returns whether a mistake affects which tensors are drawn, or how they are cut.
bool IsInDoubt(const ModelSpec& spec) {
  constexpr std::string_view kKeys[] = {"dtype", "vars",   "mesh", "rules",  "sharding",
                                        "init",  "uneven", "fans", "modules"};
  return std::any_of(std::begin(kKeys), std::end(kKeys),
                     [&](std::string_view key) { return spec.wrong.Has(key); });
}

// Simplifies partitions. This must wait until all views have inherited cuts: in a dimension of
// another extent, equal cuts may have different borders.
void Simplify(const Mesh& mesh, std::vector<Tensor>* tensors) {
  for (Tensor& tensor : *tensors) {
    tensor.partition = Simplified(std::move(tensor.partition), tensor.shape, mesh);
  }
}

// Stores the drawn tensors under the chosen layout. Each layout starts from the spec, so none can
// spoil another; a layout is skipped if it is neither chosen, nor reported, nor explained.
void StoreLayouts(const ModelSpec& spec, std::string_view chosen, bool report_all,
                  const std::vector<std::optional<Padding>>& paddings, Diagnostics& diagnostics,
                  Explanation* explanation, InitGraph* graph) {
  const auto drawn = std::make_shared<std::vector<Tensor>>(std::move(graph->tensors));
  PieceBudget left_of_all = kMaxPiecesOfAll;
  const Located<std::string>* unchecked = nullptr;
  for (const auto& layout : spec.layouts) {
    const bool is_chosen = layout.name.value == chosen;
    const bool reports = is_chosen || report_all;
    const bool explains = explanation != nullptr && (is_chosen || chosen.empty());
    if (!reports && !explains) continue;
    if (!is_chosen && left_of_all <= 0) {
      if (unchecked == nullptr) unchecked = &layout.name;
      continue;
    }
    Diagnostics unheard;
    Building building(spec, reports ? diagnostics : unheard);
    const size_t before = building.Reported();
    PieceBudget budget = kMaxPieces;
    WrittenTensors stored;
    try {
      stored = StoreLayout(layout, graph->mesh, drawn, paddings, building, &budget);
    } catch (const InvalidSpec&) {  // too many errors
      if (reports) throw;
    }
    left_of_all -= kMaxPieces - budget;
    if (explains && building.Reported() == before) {
      ExplainPlaces(layout.name.value, stored, explanation);
      if (is_chosen) {
        explanation->stored = std::make_unique<Explanation>();
        explanation->stored->pattern = explanation->pattern;
        ExplainStored(spec, layout.value, graph->mesh, stored, drawn, explanation->stored.get());
      }
    }
    if (is_chosen) graph->tensors = std::move(stored.tensors);
  }
  if (unchecked != nullptr && report_all) {
    diagnostics.Error(unchecked->span,
                      fmt::format("other layouts fall into more than {} pieces, too many to "
                                  "check this one in the same run",
                                  kMaxPiecesOfAll),
                      "choose it with `--layout` to check it");
  }
  Simplify(graph->mesh, drawn.get());
  if (!chosen.empty()) {
    graph->layout = chosen;
    graph->drawn = drawn;
  } else if (explanation != nullptr) {
    graph->tensors = *drawn;  // the views of the explanation refer to `drawn`
  } else {
    graph->tensors = std::move(*drawn);
  }
}

// Stores under a layout of its own if any tensor is to be padded. Called if no layout is chosen.
void StorePadded(const std::vector<std::optional<Padding>>& paddings, Diagnostics& diagnostics,
                 Explanation* explanation, InitGraph* graph) {
  if (std::none_of(paddings.begin(), paddings.end(), [](const auto& p) { return p.has_value(); })) {
    return;
  }
  std::vector<Tensor> stored;
  {
    const auto drawn = std::make_shared<std::vector<Tensor>>(std::move(graph->tensors));
    stored = StoredAsDrawn(drawn);
    Simplify(graph->mesh, drawn.get());
    graph->drawn = drawn;
  }
  PadTensors(graph->mesh, paddings, &stored, diagnostics);
  graph->tensors = std::move(stored);
  graph->layout = kPaddedLayout;
  if (explanation == nullptr || !explanation->tensor || !paddings[*explanation->tensor]) return;
  const size_t i = *explanation->tensor;
  const Tensor& tensor = graph->tensors[i];
  explanation->places.push_back(
      {graph->layout, tensor.path, tensor.view, (*graph->drawn)[i].elements(), paddings[i]->place});
}

}  // namespace

InitGraph BuildGraph(const ModelSpec& spec, Diagnostics& diagnostics, Explanation* explanation,
                     std::string_view layout, bool all_layouts, StepCost* cost, Places places) {
  const size_t before = diagnostics.all().size();
  Building building(spec, diagnostics);
  const size_t variables = building.Reported();
  InitGraph graph = BindModel(building);
  const size_t of_model = building.Reported() - variables;  // mistakes that concern no tensor

  CheckInitNames(spec, diagnostics);
  graph.mesh = BindMesh(building);
  const Training training = BindTraining(building, graph.mesh);
  Sharder sharder(building, graph.mesh);

  // Expand modules and repeats; bind shape, element type and values of each tensor.
  WrittenTensors drawn = DrawTensors(building, graph.mesh);

  // Cut all tensors together.
  sharder.Shard(drawn);
  sharder.CheckUse();

  BindTies(drawn, diagnostics);
  AssignStreams(*FindEngine(graph.engine), graph.seed, drawn.tensors, places);
  // If mistakes hide tensors, the target of a norm may be among them.
  if (drawn.IsComplete()) {
    BindNorms(drawn.tensors, [&](size_t i, const NormProblem& problem) {
      diagnostics.Error(drawn.specs[i]->init->name.span, problem.message, problem.hint);
    });
  }
  ValidateTensors(drawn.tensors, drawn.places, drawn.specs, diagnostics);
  if (explanation != nullptr && sharder.Chooses() && building.Reported() == before + of_model) {
    ExplainAlternatives(drawn, training, graph.mesh, spec, explanation);
  }
  if (cost != nullptr && building.Reported() == before + of_model) {
    *cost = CostOf(drawn, training, graph.mesh, spec).value_or(StepCost{});
  }
  graph.tensors = std::move(drawn.tensors);
  // If not all tensors are known, nothing can be said about how they are stored.
  if (building.Reported() != before + of_model || IsInDoubt(spec)) return {};
  if (graph.tensors.empty()) {
    diagnostics.Error(spec.modules.span, "no tensor is left: each has a `when` that is 0");
    return graph;
  }

  // Repeat the passes for one tensor, taking notes.
  if (explanation != nullptr) ExplainDrawn(spec, graph, explanation);

  // Stored tensors are views of drawn ones if there is a layout.
  if (!spec.layouts.empty()) {
    StoreLayouts(spec, layout, all_layouts, drawn.paddings, diagnostics, explanation, &graph);
  }
  if (layout.empty()) StorePadded(drawn.paddings, diagnostics, explanation, &graph);
  Simplify(graph.mesh, &graph.tensors);
  return graph;
}

}  // namespace shardinit
