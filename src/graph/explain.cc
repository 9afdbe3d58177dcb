#include "graph/explain.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/glob.h"
#include "graph/drawn/draw.h"
#include "graph/drawn/expand.h"
#include "graph/sharded/sharding.h"
#include "graph/sharded/stage.h"
#include "graph/stored/store.h"

namespace shardinit {
namespace {

constexpr int64_t kMaxLeftOut = 100'000;  // modules to search for a message

// Finds the leaf of the tensor, and explains it.
class Explainer : public LeafVisitor {
 public:
  // The first `kept` of `tensors` have no leaf.
  Explainer(Building& building, const Mesh& mesh, const std::vector<Tensor>& tensors, size_t kept,
            Explanation* why)
      : building_(building),
        sharder_(building, mesh),
        stages_(building, mesh),
        tensors_(tensors),
        next_(kept),
        why_(*why) {}

  void Visit(const Leaf& leaf) override {
    const size_t index = next_++;
    if (!IsWanted(leaf.path)) return;
    why_.tensor = index;
    why_.place = leaf.place;
    building_.names.Trace(&why_.variables);
    for (const Expr* when : leaf.conditions) {
      const auto value = EvaluateNumber(*when, building_.names, building_.diagnostics);
      why_.conditions.push_back(
          {"when", TextOf(*when), fmt::format("{}", value.value_or(0)), SpanOf(*when)});
    }
    Explain(leaf);
    if (leaf.stage != nullptr) {
      why_.stage = leaf.stage->span;
      stages_.Bind(*leaf.stage);  // traces its variables
    }
    sharder_.Explain(leaf.spec, tensors_[index], &why_);
    building_.names.Trace(nullptr);
  }

  void LeaveOut(const std::string& path, const TensorSpec& tensor) override {
    NoteLeftOut(path, *tensor.when);
  }
  void LeaveOut(const std::string& path, const ModuleSpec& module) override {
    NoteLeftOut(module, path, *module.when);
  }

 protected:
  // Explains what differs between drawn and stored tensors.
  virtual void Explain(const Leaf& leaf) = 0;

  Building& building_;
  Explanation& why() { return why_; }

 private:
  bool IsWanted(const std::string& path) const {
    return !why_.tensor && PathMatches(why_.pattern, path);
  }

  // Returns the path of a repeat with one of its numbers.
  static std::string Numbered(const ModuleSpec& module, const std::string& path,
                              std::string_view number) {
    if (!module.numbered) return JoinPaths(path, std::string(number));
    std::string numbered = path;
    for (size_t open; (open = numbered.find('{')) != numbered.npos;) {
      numbered.replace(open, numbered.find('}', open) + 1 - open, number);
    }
    return numbered;
  }

  void NoteLeftOut(const std::string& path, const Expr& when) {
    if (!IsWanted(path) || why_.left_out) return;
    why_.left_out = {path, {"when", TextOf(when), {}, SpanOf(when)}};
  }

  // Searches a module that is left out. None of its expressions are evaluated: its repeats take the
  // numbers that the pattern asks for.
  void NoteLeftOut(const ModuleSpec& module, const std::string& path, const Expr& when) {
    if (--left_out_budget_ < 0) return;
    std::vector<std::string> inside = {path};
    if (module.repeat) {
      inside = {Numbered(module, path, "0")};
      constexpr std::string_view kDigits = "0123456789";
      std::string_view rest = why_.pattern;
      while (!rest.empty()) {
        rest.remove_prefix(std::min(rest.find_first_of(kDigits), rest.size()));
        const std::string_view number = rest.substr(0, rest.find_first_not_of(kDigits));
        if (!number.empty()) inside.push_back(Numbered(module, path, number));
        rest.remove_prefix(number.size());
      }
    }
    for (const std::string& prefix : inside) {
      for (const auto& member : module.members) {
        const std::string inner = JoinPaths(prefix, member.name.value);
        if (const auto* submodule = std::get_if<std::unique_ptr<ModuleSpec>>(&member.value)) {
          NoteLeftOut(**submodule, inner, when);
        } else {
          NoteLeftOut(inner, when);
        }
      }
    }
  }

  Sharder sharder_;
  StageBinder stages_;
  const std::vector<Tensor>& tensors_;
  size_t next_;
  Explanation& why_;
  int64_t left_out_budget_ = kMaxLeftOut;
};

class DrawnExplainer : public Explainer {
 public:
  DrawnExplainer(Building& building, const InitGraph& graph, Explanation* why)
      : Explainer(building, graph.mesh, graph.tensors, 0, why), binder_(building) {}

 private:
  void Explain(const Leaf& leaf) override {
    Tensor tensor;
    binder_.Bind(leaf, &why(), &tensor);
    const ModelSpec& spec = building_.spec;
    if (spec.seed) why().seed = SpanOf(*spec.seed);
    if (spec.large_seed) why().seed = spec.large_seed->span;
    if (spec.engine) why().engine = spec.engine->span;
  }

  TensorBinder binder_;
};

class StoredExplainer : public Explainer {
 public:
  StoredExplainer(Building& building, const Mesh& mesh, const std::vector<Tensor>& stored,
                  size_t kept, std::shared_ptr<const std::vector<Tensor>> drawn, Explanation* why)
      : Explainer(building, mesh, stored, kept, why),
        binder_(std::move(drawn), building, &budget_) {}

 private:
  void Explain(const Leaf& leaf) override {
    binder_.Lower(*leaf.spec.from);  // traces its variables
    why().view = leaf.spec.from->span;
  }

  PieceBudget budget_ = kMaxPieces;
  ViewBinder binder_;
};

}  // namespace

void ExplainDrawn(const ModelSpec& spec, const InitGraph& graph, Explanation* explanation) {
  Diagnostics heard_before;
  Building building(spec, heard_before);
  DrawnExplainer explainer(building, graph, explanation);
  Expand(spec.modules, 0, building, explainer);
}

void ExplainStored(const ModelSpec& spec, const LayoutSpec& layout, const Mesh& mesh,
                   const WrittenTensors& stored, std::shared_ptr<const std::vector<Tensor>> drawn,
                   Explanation* explanation) {
  size_t kept = 0;  // kept and stacked tensors, which come first
  for (; kept < stored.specs.size() && stored.specs[kept] == nullptr; ++kept) {
    if (explanation->tensor || !PathMatches(explanation->pattern, stored.tensors[kept].path))
      continue;
    explanation->tensor = kept;
    explanation->place = explanation->view = *stored.places[kept];
  }
  Diagnostics heard_before;
  Building building(spec, heard_before);
  DefineMeshSizes(mesh, &building.names);
  StoredExplainer explainer(building, mesh, stored.tensors, kept, std::move(drawn), explanation);
  Expand(layout.modules, static_cast<int64_t>(kept), building, explainer);
}

void ExplainPlaces(const std::string& layout, const WrittenTensors& stored,
                   Explanation* explanation) {
  auto* places = &explanation->places;
  const size_t before = places->size();
  if (!explanation->tensor) {
    for (const Tensor& tensor : stored.tensors) {
      if (!places->empty() || !PathMatches(explanation->pattern, tensor.path)) continue;
      places->push_back({layout, tensor.path, tensor.view, tensor.elements(), {}});
    }
    return;
  }
  for (size_t i = 0; i < stored.tensors.size(); ++i) {
    const Tensor& tensor = stored.tensors[i];
    int64_t elements = 0;
    for (const Piece& piece : tensor.view->pieces) {
      if (piece.source == static_cast<int64_t>(*explanation->tensor)) elements += piece.elements();
    }
    if (elements > 0)
      places->push_back({layout, tensor.path, tensor.view, elements, *stored.places[i]});
  }
  if (places->size() == before) places->push_back({layout, {}, nullptr, 0, {}});
}

}  // namespace shardinit
