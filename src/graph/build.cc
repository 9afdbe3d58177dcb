#include "graph/build.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <memory>

#include "graph/assert.h"
#include "graph/building.h"
#include "graph/config.h"
#include "graph/drawn/draw.h"
#include "graph/drawn/initializer.h"
#include "graph/drawn/norm.h"
#include "graph/drawn/tie.h"
#include "graph/sharded/mesh.h"
#include "graph/sharded/sharding.h"
#include "graph/sharded/training.h"
#include "graph/sources.h"
#include "graph/stored/pad.h"
#include "graph/stored/store.h"
#include "graph/validate.h"
#include "graph/warnings/warnings.h"
#include "rng/engines.h"

namespace shardinit {
namespace {

constexpr PieceBudget kMaxPiecesOfAll = 2 * kMaxPieces;  // for layouts that are checked together

// Binds the parts of a spec that apply to the whole model.
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
  CheckAssertions(building);
  if (spec.config) {
    graph.config =
        BindConfig(*spec.config, spec.float_fields, building.names, building.diagnostics);
  }
  return graph;
}

// Returns whether an error affects which tensors are drawn or how they are sharded.
bool IsInDoubt(const ModelSpec& spec) {
  constexpr std::string_view kKeys[] = {"dtype", "vars",   "mesh", "rules",  "sharding",
                                        "init",  "uneven", "fans", "modules"};
  return std::ranges::any_of(kKeys, [&](std::string_view key) { return spec.wrong.Has(key); });
}

// Simplifies partitions. This must wait until all views have inherited shardings: in a dimension of
// a different extent, equal shardings may have different borders.
void Simplify(const Mesh& mesh, std::vector<Tensor>* tensors) {
  FormPool forms;
  for (Tensor& tensor : *tensors) {
    PartitionSpec simple = Simplified(tensor.partition(), tensor.shape(), mesh);
    if (simple == tensor.partition()) continue;
    tensor.Edit().partition = std::move(simple);
    forms.ShareForm(tensor);
  }
}

// Stores drawn tensors under layouts. Each layout starts from the spec, so none can break another.
struct LayoutStorer {
  const Building& building;
  const BuildRequest& request;
  const Mesh& mesh;
  const std::shared_ptr<const std::vector<Tensor>> drawn;
  const Paddings& paddings;
  PieceBudget left_of_all = kMaxPiecesOfAll;

  // Returns the tensors of the chosen layout. Skips a layout that is neither chosen, reported nor
  // explained.
  std::vector<Tensor> Store() {
    const Located<std::string>* unchecked = nullptr;
    std::vector<Tensor> chosen;
    for (const auto& layout : building.spec.layouts) {
      const bool is_chosen = layout.name.value == request.layout;
      const bool is_reported = Reports(layout);
      if (!is_reported && !NotesLayout(is_chosen)) continue;
      if (is_chosen) {
        chosen = Store(layout, is_chosen);
      } else if (left_of_all > 0) {
        Store(layout, is_chosen);
      } else if (is_reported && unchecked == nullptr) {
        unchecked = &layout.name;
      }
    }
    if (unchecked != nullptr) {
      building.diagnostics.Error(unchecked->span,
                                 fmt::format("other layouts fall into more than {} pieces, too "
                                             "many to check this one in the same run",
                                             kMaxPiecesOfAll),
                                 "choose it with `--layout` to check it");
    }
    return chosen;
  }

  // Errors count in the chosen layout and, if all layouts are requested, in layouts of the spec's
  // own file. An included layout may store modules that the spec leaves out or replaces.
  bool Reports(const Named<LayoutSpec>& layout) const {
    return layout.name.value == request.layout ||
           (request.all_layouts && layout.name.span.source == building.spec.source);
  }

  bool NotesLayout(bool is_chosen) const {
    return request.explanation != nullptr && (is_chosen || request.layout.empty());
  }

  std::vector<Tensor> Store(const Named<LayoutSpec>& layout, bool is_chosen) {
    const bool reports = Reports(layout);
    Explanation* const explanation = request.explanation;
    if (is_chosen && explanation != nullptr) {
      explanation->stored = std::make_unique<Explanation>();
      explanation->stored->pattern = explanation->pattern;
    }
    Diagnostics unheard;
    Building apart(building, reports ? building.diagnostics : unheard,
                   is_chosen && explanation != nullptr ? explanation->stored.get() : nullptr);
    const size_t before = apart.Reported();
    PieceBudget budget = kMaxPieces;
    WrittenTensors stored;
    try {
      stored = StoreLayout(layout, mesh, drawn, paddings, apart, &budget);
    } catch (const InvalidSpec&) {  // too many errors
      if (reports) throw;
    }
    left_of_all -= kMaxPieces - budget;
    if (NotesLayout(is_chosen) && apart.Reported() == before) {
      NotePlaces(layout.name.value, stored, *explanation);
    }
    return std::move(stored.tensors);
  }
};

void StoreLayouts(const Building& building, const BuildRequest& request, const Paddings& paddings,
                  InitGraph* graph) {
  const auto drawn = std::make_shared<std::vector<Tensor>>(std::move(graph->tensors));
  graph->tensors = LayoutStorer{building, request, graph->mesh, drawn, paddings}.Store();
  Simplify(graph->mesh, drawn.get());
  if (!request.layout.empty()) {
    graph->layout = request.layout;
    graph->drawn = drawn;
  } else if (request.explanation != nullptr) {
    graph->tensors = *drawn;  // the explanation's views refer to `drawn`
  } else {
    graph->tensors = std::move(*drawn);
  }
}

// Stores tensors under an extra layout if any of them is padded. Called if no layout is chosen.
void StorePadded(const Building& building, const Paddings& paddings, InitGraph* graph) {
  if (paddings.empty()) return;
  std::vector<Tensor> stored;
  {
    const auto drawn = std::make_shared<std::vector<Tensor>>(std::move(graph->tensors));
    stored = StoredAsDrawn(drawn);
    Simplify(graph->mesh, drawn.get());
    graph->drawn = drawn;
  }
  PadTensors(graph->mesh, paddings, &stored, building.diagnostics);
  graph->tensors = std::move(stored);
  graph->layout = kPaddedLayout;
}

// Notes where the explained tensor is stored with padding.
void NotePadded(const InitGraph& graph, const Paddings& paddings, Explanation& notes) {
  if (graph.layout != kPaddedLayout || !notes.tensor) return;
  const auto padding = paddings.find(*notes.tensor);
  if (padding == paddings.end()) return;
  const Tensor& tensor = graph.tensors[*notes.tensor];
  notes.places.push_back({graph.layout, std::string(tensor.path()), tensor.view(),
                          (*graph.drawn)[*notes.tensor].elements(), padding->second.place});
}

// Returns all drawn tensors with their shardings and streams.
WrittenTensors DrawAndShard(Building& building, const BuildRequest& request,
                            const InitGraph& graph) {
  Sharder sharder(building, graph.mesh);

  // Expand modules and repeats. Bind the shape, element type and values of each tensor.
  WrittenTensors drawn = DrawTensors(building, graph.mesh,
                                     sharder.Chooses() || request.cost != nullptr || request.warns);

  // Shard all tensors together.
  sharder.Shard(drawn);
  sharder.CheckUse();

  Diagnostics& diagnostics = building.diagnostics;
  BindTies(drawn, diagnostics);
  AssignStreams(*FindEngine(graph.engine), graph.seed, drawn.tensors, request.places);
  // If errors hide tensors, the target of a norm may be among them.
  if (drawn.IsComplete()) {
    BindNorms(drawn.tensors, [&](size_t i, const NormProblem& problem) {
      diagnostics.Error(drawn.specs[i]->init->name.span, problem.message, problem.hint);
    });
  }
  ValidateTensors(drawn.tensors, drawn.places, drawn.specs, diagnostics);
  if (diagnostics.HasErrors()) return drawn;
  if (request.explanation != nullptr && sharder.Chooses()) {
    NoteAlternatives(drawn, *building.training, graph.mesh, *request.explanation);
  }
  if (request.cost != nullptr) {
    *request.cost = CostOf(drawn, *building.training, graph.mesh).value_or(StepCost{});
  }
  return drawn;
}

}  // namespace

InitGraph BuildGraph(const ModelSpec& spec, const BuildRequest& request, Diagnostics& diagnostics) {
  const size_t before = diagnostics.errors();
  Building building(spec, diagnostics, request.explanation);
  const size_t variables = building.Reported();
  InitGraph graph = BindModel(building);
  const size_t of_model = building.Reported() - variables;  // errors that do not concern tensors

  CheckInitNames(spec, diagnostics);
  graph.mesh = BindMesh(building);
  const Training training = BindTraining(building, graph.mesh);
  building.training = &training;
  SourceTable sources(spec, building.names, request.open_source);
  building.sources = &sources;
  WrittenTensors drawn = DrawAndShard(building, request, graph);
  graph.tensors = std::move(drawn.tensors);
  graph.sources = sources.pins();
  // If some tensors are unknown, layouts cannot be checked.
  if (building.Reported() != before + of_model || IsInDoubt(spec)) return {};
  if (graph.tensors.empty()) {
    diagnostics.Error(spec.modules.span, "no tensor is left: each has a `when` that is 0");
    return graph;
  }

  // Stored tensors are views of drawn ones if there is a layout.
  if (!spec.layouts.empty()) StoreLayouts(building, request, drawn.paddings, &graph);
  if (request.layout.empty()) {
    StorePadded(building, drawn.paddings, &graph);
    if (request.explanation != nullptr) NotePadded(graph, drawn.paddings, *request.explanation);
  }
  Simplify(graph.mesh, &graph.tensors);
  if (request.warns && !diagnostics.HasErrors()) ReportWarnings(building, graph, drawn);
  return graph;
}

}  // namespace shardinit
