// Builds a graph from spec text, or renders its diagnostics.
#pragma once

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "base/diagnostics.h"
#include "graph/build.h"
#include "spec/parse.h"
#include "support/spec_text.h"

namespace shardinit {

struct GraphOutcome {
  InitGraph graph;
  std::string messages;
};

inline GraphOutcome BuildText(const std::string& text, std::vector<std::string> sets = {},
                              std::string mesh = {}, const std::string& layout = {},
                              bool all_layouts = true) {
  const WorkingFolder folder(std::map<std::string, std::string>{{"x.yaml", text}});
  Diagnostics diagnostics;
  GraphOutcome outcome;
  try {
    const std::optional<ModelSpec> spec =
        LoadSpec({.path = "x.yaml", .sets = std::move(sets), .mesh = std::move(mesh)}, diagnostics);
    if (spec)
      outcome.graph =
          BuildGraph(*spec, {.layout = layout, .all_layouts = all_layouts}, diagnostics);
    diagnostics.ThrowIfErrors();
    outcome.messages = Render(diagnostics.all());
  } catch (const InvalidSpec& invalid) {
    outcome.messages = Render(invalid.diagnostics());
  }
  return outcome;
}

// Builds a spec whose line 4 onwards is `text`. The first lines are required in every spec. Adds a
// tensor if `text` has none.
inline GraphOutcome BuildRest(const std::string& text, std::vector<std::string> sets = {},
                              std::string mesh = {}) {
  std::string spec = "shardinit: 1\nname: x\ndtype: f32\n" + text;
  if (text.find("modules:") == std::string::npos) {
    spec += "modules: {w: {shape: [], init: zeros}}\n";
  }
  return BuildText(spec, std::move(sets), std::move(mesh));
}

inline std::string Print(const Distribution& distribution) {
  if (const auto* c = std::get_if<Constant>(&distribution)) {
    return fmt::format("constant({})", c->value);
  }
  if (const auto* u = std::get_if<Uniform>(&distribution)) {
    return fmt::format("uniform({}, {})", u->low, u->high);
  }
  if (const auto* n = std::get_if<Normal>(&distribution)) {
    return fmt::format("normal({}, {})", n->mean, n->std);
  }
  if (const auto* e = std::get_if<Expression>(&distribution)) {
    return fmt::format("expr({})", e->program->text);
  }
  if (const auto* o = std::get_if<Orthogonal>(&distribution)) {
    return fmt::format("orthogonal({}, rows {:b}, columns {:b})", o->gain, o->rows, o->columns);
  }
  if (const auto* s = std::get_if<Sparse>(&distribution)) {
    return fmt::format("sparse({}, {} zeros)", s->std, s->zeros);
  }
  if (const auto* n = std::get_if<Normalized>(&distribution)) {
    return fmt::format("normalized(axis {}, {})", n->axis, n->length);
  }
  const auto& t = std::get<TruncatedNormal>(distribution);
  return fmt::format("truncated_normal({}, {}, {}, {})", t.mean, t.std, t.low, t.high);
}

// Prints one line per tensor: `path f32 [8, 4] normal(0, 0.02) (fsdp, tensor) () key k`. Omits the
// random key: other tests have known answers for it.
inline std::string PrintTensors(const InitGraph& graph) {
  std::string out;
  for (const Tensor& tensor : graph.tensors) {
    out += fmt::format("{} {} [{}] {}", tensor.path(), InfoOf(tensor.dtype()).name,
                       fmt::join(tensor.shape(), ", "), Print(tensor.distribution()));
    for (const DimensionPartition& by : tensor.partition().dimensions) {
      std::vector<std::string> names;
      for (const int axis : by.axes) names.push_back(graph.mesh.axes[axis]);
      out += fmt::format(" ({}{})", fmt::join(names, ", "),
                         by.segments == 1 ? "" : fmt::format(" / {}", by.segments));
      if (!by.nested.empty()) out += fmt::format(" nested {}", fmt::join(by.nested, ", "));
    }
    for (const Pin& pin : tensor.partition().pins) {
      out += fmt::format(" on {} {}", graph.mesh.axes[pin.axis], fmt::join(pin.indices, ", "));
    }
    if (const auto* const other = std::get_if<DrawPath>(&tensor.key());
        other && !other->path.empty()) {
      out += " key " + other->path;
    }
    if (const auto* const words = std::get_if<KeyWords>(&tensor.key())) {
      out += fmt::format(" key {:016x}", words->key);
    }
    out += '\n';
  }
  return out;
}

inline std::string Print(const InitGraph& graph) {
  std::string out = fmt::format("{} seed {} {} mesh", graph.name, graph.seed, graph.engine);
  for (size_t a = 0; a < graph.mesh.axes.size(); ++a) {
    out += fmt::format(" {}={}", graph.mesh.axes[a], graph.mesh.shape[a]);
  }
  out += graph.replicas == Replicas::kFull ? " full\n" : " dedupe\n";
  return out + PrintTensors(graph);
}

}  // namespace shardinit
