#include "graph/stored/store.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <span>

#include "base/glob.h"
#include "base/parse_number.h"
#include "base/suggest.h"
#include "base/table.h"
#include "graph/drawn/expand.h"
#include "graph/sharded/sharding.h"
#include "graph/sharded/stage.h"
#include "graph/stored/pad.h"
#include "graph/validate.h"
#include "tensor/coverage.h"

namespace shardinit {
namespace {

Globs GlobsOf(const std::vector<Located<std::string>>& patterns) {
  return Globs(ValuesOf(patterns), Stars::kRuns);
}

// Builds the stored tensors. Each is a view of drawn tensors and is sharded like them unless the
// spec overrides it.
class Storer {
 public:
  Storer(Building& building, const Mesh& mesh, Sharder& sharder,
         std::shared_ptr<const std::vector<Tensor>> drawn, PieceBudget* budget,
         WrittenTensors* stored)
      : spec_(building.spec),
        names_(building.names),
        sharder_(sharder),
        diagnostics_(building.diagnostics),
        why_(building.why),
        drawn_(*drawn),
        binder_(std::move(drawn), building, budget),
        stages_(building, mesh),
        stored_(*stored) {}

  // Finds tensors to stack: `a.3.b` of a module `a` becomes a part of `a.b`, and is not kept.
  void FindStacks(const LayoutSpec& layout) {
    std::vector<bool> stacks(layout.stack.size());
    Globs globs = GlobsOf(layout.stack);
    std::map<std::string, size_t> places;
    is_stacked_.resize(drawn_.size());
    for (size_t i = 0; i < drawn_.size() && !stacks.empty(); ++i) {
      const std::optional<Numbered> numbered = FindNumber(drawn_[i].path(), globs);
      if (!numbered) continue;
      stacks[numbered->pattern] = true;
      is_stacked_[i] = true;
      const auto [place, is_new] = places.try_emplace(numbered->path, stacks_.size());
      if (is_new) stacks_.push_back({numbered->path, &layout.stack[numbered->pattern].span, {}});
      stacks_[place->second].members.emplace_back(numbered->number, i);
    }
    for (size_t g = 0; g < stacks.size(); ++g) {
      if (stacks[g]) continue;
      diagnostics_.Error(
          layout.stack[g].span,
          fmt::format("`stack` names `{}`, but `modules` has no such module with numbered members",
                      layout.stack[g].value));
    }
  }

  // Adds each stack as `{stack: {axis: 0, of: [...]}}` would.
  void AddStacks() {
    for (Stack& stack : stacks_) {
      std::ranges::sort(stack.members);
      ViewSpec view;
      view.span = *stack.place;
      view.operation = {"stack", *stack.place};
      view.is_list = true;
      view.arguments = {
          {{"axis", *stack.place}, false, {ParseExpr("0", *stack.place, diagnostics_)}}};
      for (const auto& [number, tensor] : stack.members) {
        const std::string path(drawn_[tensor].path());
        ViewSpec& member = view.of.emplace_back();
        member.span = *stack.place;
        member.path = {{path, *stack.place}, {{path, nullptr}}};
      }
      const auto lowered = binder_.Lower(view);
      if (!lowered) continue;
      const Viewed& viewed = lowered->viewed;
      const bool in_doubt = viewed.pins_in_doubt || Contains(viewed.in_doubt, true);
      if (in_doubt) {
        diagnostics_.Error(
            *stack.place,
            fmt::format(
                "the tensors of `{}` are sharded in different ways, or are on different stages",
                stack.path),
            "stack tensors that the same ranks hold");
        continue;
      }
      Tensor tensor;
      tensor.set_path(stack.path);
      tensor.Edit().shape = viewed.arrangement.shape;
      tensor.Edit().partition = viewed.partition;
      AddKept(*lowered, *stack.place, std::move(tensor));
    }
  }

  void Keep(const LayoutSpec& layout) {
    std::vector<bool> keeps(layout.keep.size()), is_of_stacks(layout.keep.size());
    Globs globs = GlobsOf(layout.keep);
    for (size_t i = 0; i < drawn_.size(); ++i) {
      const std::vector<size_t>& matches = globs.Match(drawn_[i].path());
      for (const size_t g : matches) (is_stacked_[i] ? is_of_stacks : keeps)[g] = true;
      if (is_stacked_[i]) continue;
      if (matches.empty()) continue;
      const Span& place = layout.keep[matches.front()].span;
      Tensor tensor = drawn_[i];
      tensor.set_key({});
      tensor.set_stream({});
      AddKept(binder_.Keep(i), place, std::move(tensor));
    }
    std::vector<std::string> paths;
    for (size_t g = 0; g < keeps.size(); ++g) {
      if (keeps[g]) continue;
      if (is_of_stacks[g]) {
        diagnostics_.Error(layout.keep[g].span,
                           fmt::format("`keep` names `{}`, but `stack` stores all such tensors",
                                       layout.keep[g].value),
                           "remove it");
        continue;
      }
      if (paths.empty()) paths = PathsOf(drawn_);
      diagnostics_.Error(
          layout.keep[g].span,
          fmt::format("`keep` names `{}`, but `modules` has no such tensor", layout.keep[g].value),
          DidYouMean(layout.keep[g].value, paths));
    }
  }

  void Visit(const Leaf& leaf) {
    const TensorSpec& spec = leaf.spec;
    if (!spec.wrong.empty()) return;
    why_.Note([&](Explanation& notes) { notes.view = spec.from->span; });
    const auto lowered = binder_.Lower(*spec.from);
    if (!lowered) return;
    Tensor tensor;
    tensor.set_path(leaf.path);
    tensor.Edit().shape = lowered->viewed.arrangement.shape;
    if (spec.axes && spec.axes->value.size() != tensor.shape().size()) {
      return ReportEntries(spec.axes->span, "axes", spec.axes->value.size(), tensor);
    }
    if (spec.shard && spec.shard->value.size() > tensor.shape().size()) {
      return ReportEntries(spec.shard->span, "shard", spec.shard->value.size(), tensor);
    }
    if (leaf.stage != nullptr) {
      why_.Note([&](Explanation& notes) { notes.stage = leaf.stage->span; });
      tensor.Edit().partition.pins = stages_.Bind(*leaf.stage);
    } else {
      tensor.Edit().partition.pins = lowered->viewed.partition.pins;
      if (lowered->viewed.pins_in_doubt) {
        diagnostics_.Error(
            leaf.place, fmt::format("the tensors of `{}` are on different stages", tensor.path()),
            "set `stage` to choose the ranks that hold it; `stage: null` means all");
        return;
      }
    }
    // A language of `sharding` may ignore `axes`.
    if ((!spec.axes || spec_.sharding) && !spec.shard) {
      tensor.Edit().partition.dimensions = lowered->viewed.partition.dimensions;
      const std::vector<bool>& in_doubt = lowered->viewed.in_doubt;
      const auto doubt = std::ranges::find(in_doubt, true);
      if (doubt != in_doubt.end() && sharder_.InheritsSharding(spec, tensor)) {
        diagnostics_.Error(
            leaf.place,
            fmt::format("the tensors of `{}` are sharded in different ways along its dimension {}",
                        tensor.path(), doubt - in_doubt.begin()),
            "set `axes` or `shard` to choose its sharding");
        return;
      }
    }
    tensor.Edit().convention = ConventionOf(spec);
    Add(*lowered, leaf.place, &spec, std::move(tensor));
  }

 private:
  Convention ConventionOf(const TensorSpec& spec) {
    Convention convention;
    const auto take = [&](std::string_view key, const ExprPtr& expr, float* out) {
      if (expr == nullptr) return;
      const auto number = EvaluateNumber(*expr, names_, diagnostics_);
      if (!number) return;
      const auto narrow = static_cast<float>(*number);
      const bool may_be_zero = key != "times";
      if (std::isfinite(narrow) && (may_be_zero || narrow != 0)) {
        *out = narrow;
        return;
      }
      diagnostics_.Error(SpanOf(*expr),
                         fmt::format("`{}` is {}, but must be a number of f32{}", key, *number,
                                     may_be_zero ? "" : " other than 0"));
    };
    take("times", spec.times, &convention.times);
    take("back", spec.back, &convention.back);
    take("plus", spec.plus, &convention.plus);
    if (convention.times == 1) convention.back = 0;  // it undoes `times`
    return convention;
  }

  struct Stack {
    std::string path;
    const Span* place;                                // of the pattern
    std::vector<std::pair<int64_t, size_t>> members;  // number, tensor
  };
  struct Numbered {
    size_t pattern;
    int64_t number;
    std::string path;  // without the number
  };

  // Finds the first number in the path whose module is to be stacked.
  static std::optional<Numbered> FindNumber(std::string_view path, Globs& stacks) {
    for (size_t dot = path.find('.'); dot != path.npos; dot = path.find('.', dot + 1)) {
      const size_t end = path.find('.', dot + 1);
      if (end == path.npos) continue;
      const auto number = ParseNumber<int64_t>(path.substr(dot + 1, end - dot - 1));
      if (!number) continue;
      const std::string module(path.substr(0, dot));
      if (const std::vector<size_t>& matches = stacks.Match(module); !matches.empty()) {
        return Numbered{matches.front(), *number, module + std::string(path.substr(end))};
      }
    }
    return {};
  }

  void ReportEntries(Span place, std::string_view key, size_t found, const Tensor& tensor) {
    diagnostics_.Error(place, fmt::format("`{}` has {} entr{}, but the shape of `{}` is [{}]", key,
                                          found, found == 1 ? "y" : "ies", tensor.path(),
                                          fmt::join(tensor.shape(), ", ")));
  }

  void AddKept(const LoweredView& lowered, const Span& place, Tensor tensor) {
    why_.Begin(stored_.tensors.size(), std::string(tensor.path()), place, {});
    why_.Note([&](Explanation& notes) { notes.view = place; });
    why_.End();
    Add(lowered, place, nullptr, std::move(tensor));
  }

  void Add(const LoweredView& lowered, const Span& place, const TensorSpec* spec, Tensor tensor) {
    tensor.Edit().dtype = lowered.First().dtype();
    tensor.Edit().distribution = Constant{0};
    tensor.set_view(lowered.view);
    int64_t bytes;
    if (__builtin_mul_overflow(tensor.elements(), InfoOf(tensor.dtype()).bytes, &bytes) ||
        __builtin_add_overflow(total_bytes_, bytes, &total_bytes_)) {
      diagnostics_.Error(place, "with this tensor the layout has more than 2^63 - 1 bytes");
      return;
    }
    forms_.ShareForm(tensor);
    stored_.Add(std::move(tensor), place, spec);
  }

  const ModelSpec& spec_;
  const SpecScope& names_;
  Sharder& sharder_;
  Diagnostics& diagnostics_;
  Recorder& why_;
  const std::vector<Tensor>& drawn_;
  ViewBinder binder_;
  StageBinder stages_;
  WrittenTensors& stored_;
  std::vector<Stack> stacks_;
  std::vector<bool> is_stacked_;  // of each drawn tensor
  FormPool forms_;
  int64_t total_bytes_ = 0;
};

class PiecesOf {
 public:
  PiecesOf(const std::vector<Tensor>& stored, size_t drawn) : begins_(drawn + 2) {
    const auto for_each = [&](const auto& use) {
      for (const Tensor& tensor : stored) {
        for (const Piece& piece : tensor.view()->pieces) {
          if (piece.source != Piece::kPadding) use(static_cast<size_t>(piece.source), piece);
        }
      }
    };
    for_each([&](size_t source, const Piece&) { ++begins_[source + 2]; });
    for (size_t i = 2; i < begins_.size(); ++i) begins_[i] += begins_[i - 1];
    pieces_.resize(begins_.back());
    for_each([&](size_t source, const Piece& piece) { pieces_[begins_[source + 1]++] = &piece; });
  }

  std::span<const Piece* const> operator[](size_t drawn) const {
    return std::span(pieces_).subspan(begins_[drawn], begins_[drawn + 1] - begins_[drawn]);
  }

 private:
  std::vector<size_t> begins_;  // where each tensor's pieces begin
  std::vector<const Piece*> pieces_;
};

// Checks that each element of each drawn tensor is in one of `stored`, unless the layout omits the
// tensor.
void CheckCoverage(const Located<std::string>& name, const LayoutSpec& layout,
                   const std::vector<Tensor>& drawn, const std::vector<Tensor>& stored,
                   Diagnostics& diagnostics) {
  const PiecesOf pieces(stored, drawn.size());
  std::vector<bool> omits(layout.omit.size());
  Globs globs = GlobsOf(layout.omit);
  std::vector<size_t> missing;
  for (size_t i = 0; i < drawn.size(); ++i) {
    const Tensor& tensor = drawn[i];
    if (CountHeld(pieces[i]) == tensor.elements()) continue;
    const std::vector<size_t>& matches = globs.Match(tensor.path());
    for (const size_t g : matches) omits[g] = true;
    if (matches.empty()) missing.push_back(i);
  }
  for (size_t g = 0; g < omits.size(); ++g) {
    if (omits[g]) continue;
    diagnostics.Error(layout.omit[g].span,
                      fmt::format("`omit` names `{}`, but layout `{}` stores all such tensors",
                                  layout.omit[g].value, name.value));
  }
  if (missing.empty()) return;
  const Tensor& tensor = drawn[missing.front()];
  const auto of = pieces[missing.front()];
  const auto held = CountHeld(of);
  if (!held) {
    diagnostics.Error(name.span,
                      fmt::format("the {} pieces of `{}` in layout `{}` overlap in too many ways "
                                  "to check whether they cover it",
                                  of.size(), tensor.path(), name.value),
                      "store it from fewer slices, or list it under `omit`");
    return;
  }
  std::string what = fmt::format("layout `{}` stores nothing of `{}`", name.value, tensor.path());
  if (*held > 0) {
    int64_t stored_elements = 0;
    for (const Piece* piece : of) stored_elements += piece->elements();
    what = fmt::format("layout `{}` stores {} of the {} elements of `{}`{}", name.value, *held,
                       tensor.elements(), tensor.path(),
                       stored_elements > *held ? ", some of them twice" : "");
  }
  if (missing.size() > 1) {
    what += fmt::format(", and not all of {} other{}", missing.size() - 1,
                        missing.size() == 2 ? "" : "s");
  }
  diagnostics.Error(name.span, std::move(what), "add it, or list it under `omit`");
}

}  // namespace

WrittenTensors StoreLayout(const Named<LayoutSpec>& layout, const Mesh& mesh,
                           const std::shared_ptr<const std::vector<Tensor>>& drawn,
                           const Paddings& paddings, Building& building, PieceBudget* budget) {
  const size_t before = building.Reported();
  DefineMeshSizes(mesh, &building.names);
  WrittenTensors stored;
  Sharder sharder(building, mesh);
  Storer storer(building, mesh, sharder, drawn, budget, &stored);
  storer.FindStacks(layout.value);
  storer.Keep(layout.value);
  storer.AddStacks();
  Expand(layout.value.modules, std::ssize(stored.tensors), building,
         [&](const Leaf& leaf) { storer.Visit(leaf); });
  sharder.Shard(stored);
  for (size_t i = 0; i < stored.specs.size() && stored.specs[i] == nullptr; ++i) {
    // All tensors of a stack have the padding of the first.
    const ViewNode& root = stored.tensors[i].view()->root;
    const auto found = paddings.find((root.operation == nullptr ? root : root.of.front()).tensor);
    if (found != paddings.end()) stored.paddings.emplace(i, found->second);
  }
  if (building.Reported() == before) {
    PadTensors(mesh, stored.paddings, &stored.tensors, building.diagnostics);
  }
  if (building.Reported() == before && !layout.value.wrong) {
    ValidateTensors(stored.tensors, stored.places, {}, building.diagnostics);
    CheckCoverage(layout.name, layout.value, *drawn, stored.tensors, building.diagnostics);
  }
  return stored;
}

void DefineMeshSizes(const Mesh& mesh, SpecScope* names) {
  for (size_t a = 0; a < mesh.axes.size(); ++a) {
    names->Define("mesh_" + mesh.axes[a], mesh.shape[a]);
  }
}

}  // namespace shardinit
