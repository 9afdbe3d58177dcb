#include "graph/build.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <limits>
#include <set>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "base/error.h"
#include "base/glob.h"
#include "base/suggest.h"
#include "base/text.h"
#include "graph/config.h"
#include "graph/layout.h"
#include "graph/scope.h"
#include "graph/validate.h"
#include "init/initializer.h"
#include "rng/engines.h"
#include "rng/stream.h"
#include "sharding/rules.h"

namespace shardinit {
namespace {

constexpr int64_t kMaxTensors = 4'000'000;
constexpr size_t kMaxAxes = 32;
constexpr size_t kMaxPath = 1024;
constexpr PieceBudget kMaxPiecesOfAll = 2 * kMaxPieces;  // Of layouts that are checked together.

class Builder {
 public:
  Builder(const ModelSpec& spec, Diagnostics& diagnostics, Explanation* explanation)
      : spec_(spec),
        diagnostics_(diagnostics),
        explanation_(explanation),
        before_(diagnostics.all().size()),
        names_(spec.vars, MayLack(spec.vars, spec.wrong.Has("vars")), diagnostics),
        lacks_axes_(MayLack(spec.mesh, spec.wrong.Has("mesh"))) {}

  InitGraph Build(std::string_view layout, bool all_layouts) {
    const size_t variables = diagnostics_.all().size();
    graph_.name = spec_.name.value;
    if (spec_.large_seed) graph_.seed = spec_.large_seed->value;
    if (spec_.seed) {
      graph_.seed = static_cast<uint64_t>(
          Integer(*spec_.seed, 0, std::numeric_limits<int64_t>::max(), "`seed`"));
    }
    graph_.engine = std::string(Engines().front().name);
    if (spec_.engine && FindEngine(spec_.engine->value) == nullptr) {
      Unknown("engine", *spec_.engine, EngineNames());
    } else if (spec_.engine) {
      graph_.engine = spec_.engine->value;
    }
    if (spec_.replicas && spec_.replicas->value == "full") graph_.replicas = Replicas::kFull;
    if (spec_.config) graph_.config = BindConfig(*spec_.config, names_, diagnostics_);
    before_ += diagnostics_.all().size() - variables;  // These concern no tensor.
    fans_ = FansOf(spec_);
    BindMesh();
    BindRules();
    BindInits();
    Expand(spec_.modules, "", 1);
    ValidateTensors(graph_.tensors, places_, diagnostics_);
    CheckUnusedRules();
    // Of tensors that are not all known, nobody can say how they are stored.
    if (diagnostics_.all().size() != before_ || IsInDoubt()) return {};
    if (graph_.tensors.empty()) {
      diagnostics_.Error(spec_.modules.span, "no tensor is left: each has a `when` that is 0");
    } else if (!spec_.layouts.empty()) {
      BuildLayouts(layout, all_layouts);
    }
    return std::move(graph_);
  }

 private:
  // Whether something is wrong in what decides which tensors are drawn, and how they are cut.
  bool IsInDoubt() const {
    constexpr std::string_view kKeys[] = {"dtype", "vars",   "mesh", "rules",
                                          "init",  "uneven", "fans", "modules"};
    return std::any_of(std::begin(kKeys), std::end(kKeys),
                       [&](std::string_view key) { return spec_.wrong.Has(key); });
  }

  // Leaves in graph_ what is drawn, or that under views of the chosen layout.
  void BuildLayouts(std::string_view chosen, bool report_all) {
    const auto drawn = std::make_shared<std::vector<Tensor>>(std::move(graph_.tensors));
    Explanation* const of_drawn = std::exchange(explanation_, nullptr);
    names_.Trace(nullptr);
    std::vector<Tensor> stored;
    // Some layouts depend on how many ranks share a tensor.
    for (size_t a = 0; a < graph_.mesh.axes.size(); ++a) {
      const std::string name = "mesh_" + graph_.mesh.axes[a];
      if (!names_.Has(name)) names_.repeats().emplace_back(name, graph_.mesh.shape[a]);
    }
    const size_t repeats = names_.repeats().size();
    const auto fans = fans_;
    PieceBudget pieces_of_all = kMaxPiecesOfAll;
    const Located<std::string>* unchecked = nullptr;
    for (const auto& layout : spec_.layouts) {
      const size_t before = diagnostics_.all().size();
      const bool is_chosen = layout.name.value == chosen;
      if (!is_chosen && !report_all && (of_drawn == nullptr || !chosen.empty())) continue;
      if (!is_chosen && pieces_of_all <= 0) {
        unchecked = unchecked != nullptr ? unchecked : &layout.name;
        continue;
      }
      seen_logical_.clear();
      if (of_drawn != nullptr && is_chosen) {
        of_drawn->stored = std::make_unique<Explanation>();
        of_drawn->stored->pattern = of_drawn->pattern;
        explanation_ = of_drawn->stored.get();
      }
      try {
        pieces_of_all -= BuildLayout(layout, drawn);
      } catch (const InvalidSpec&) {  // Too many errors.
        if (is_chosen || report_all) throw;
        names_.repeats().resize(repeats);
        fans_ = fans;
        conditions_.clear();
      }
      explanation_ = why_ = nullptr;
      names_.Trace(nullptr);
      if (of_drawn != nullptr && (is_chosen || chosen.empty()) &&
          diagnostics_.all().size() == before) {
        NotePlaces(layout.name.value, of_drawn);
      }
      if (is_chosen) stored = std::move(graph_.tensors);
      if (!is_chosen && !report_all) diagnostics_.Forget(before);
    }
    if (unchecked != nullptr && report_all) {
      diagnostics_.Error(unchecked->span,
                         fmt::format("other layouts fall into more than {} pieces, too many to "
                                     "check this one in the same run",
                                     kMaxPiecesOfAll),
                         "choose it with `--layout` to check it");
    }
    layout_.reset();
    if (chosen.empty()) {
      // Views of an explanation are of these.
      graph_.tensors = of_drawn != nullptr ? *drawn : std::move(*drawn);
      return;
    }
    graph_.tensors = std::move(stored);
    graph_.layout = chosen;
    graph_.drawn = drawn;
  }

  // Leaves its tensors in graph_; returns how many pieces that took.
  PieceBudget BuildLayout(const Named<LayoutSpec>& layout,
                          const std::shared_ptr<const std::vector<Tensor>>& drawn) {
    graph_.tensors.clear();
    places_.clear();
    total_bytes_ = 0;
    const size_t before = diagnostics_.all().size();
    PieceBudget pieces = kMaxPieces;
    layout_.emplace(drawn, names_, diagnostics_, &pieces);
    KeepTensors(layout.value, *drawn);
    Expand(layout.value.modules, "", 1);
    if (diagnostics_.all().size() == before && !layout.value.wrong) {
      ValidateTensors(graph_.tensors, places_, diagnostics_);
      layout_->CheckCoverage(layout.name, layout.value, graph_.tensors);
    }
    return kMaxPieces - pieces;
  }

  void NotePlaces(const std::string& layout, Explanation* explanation) const {
    auto* places = &explanation->places;
    const size_t before = places->size();
    if (!explanation->tensor) {
      for (const Tensor& tensor : graph_.tensors) {
        if (!places->empty() || !GlobMatches(explanation->pattern, tensor.path)) continue;
        places->push_back({layout, tensor.path, tensor.view, tensor.elements(), {}});
      }
      return;
    }
    for (size_t i = 0; i < graph_.tensors.size(); ++i) {
      const Tensor& tensor = graph_.tensors[i];
      int64_t elements = 0;
      for (const Piece& piece : tensor.view->pieces) {
        if (piece.source == static_cast<int64_t>(*explanation->tensor))
          elements += piece.elements();
      }
      if (elements > 0) places->push_back({layout, tensor.path, tensor.view, elements, places_[i]});
    }
    if (places->size() == before) places->push_back({layout, {}, nullptr, 0, {}});
  }

  void KeepTensors(const LayoutSpec& layout, const std::vector<Tensor>& drawn) {
    std::vector<bool> keeps(layout.keep.size());
    for (size_t i = 0; i < drawn.size(); ++i) {
      std::optional<size_t> keep;
      for (size_t g = 0; g < keeps.size(); ++g) {
        if (!GlobMatches(layout.keep[g].value, drawn[i].path)) continue;
        keep = keep.value_or(g);
        keeps[g] = true;
      }
      if (!keep) continue;
      Tensor tensor = drawn[i];
      why_ = IsWanted(tensor.path) ? explanation_ : nullptr;
      if (why_ != nullptr) why_->view = layout.keep[*keep].span;
      AddView(layout_->Keep(i), layout.keep[*keep].span, &tensor);
    }
    std::vector<std::string> paths;
    for (size_t g = 0; g < keeps.size(); ++g) {
      if (keeps[g]) continue;
      for (size_t i = paths.size(); i < drawn.size(); ++i) paths.push_back(drawn[i].path);
      diagnostics_.Error(
          layout.keep[g].span,
          fmt::format("`keep` names `{}`, but `modules` has no such tensor", layout.keep[g].value),
          DidYouMean(layout.keep[g].value, paths));
    }
  }

  // A tensor of a layout: its view, and how the view is cut.
  void AddStored(const TensorSpec& spec, Span span, Tensor tensor) {
    auto lowered = layout_->Lower(*spec.from);
    if (!lowered) return;
    tensor.shape = lowered->viewed.arrangement.shape;
    const auto fits = [&](Span place, std::string_view key, size_t found) {
      diagnostics_.Error(
          place, fmt::format("`{}` has {} entr{}, but the shape of `{}` is [{}]", key, found,
                             found == 1 ? "y" : "ies", tensor.path, fmt::join(tensor.shape, ", ")));
    };
    if (spec.axes && spec.axes->value.size() != tensor.shape.size()) {
      return fits(spec.axes->span, "axes", spec.axes->value.size());
    }
    if (spec.shard && spec.shard->value.size() > tensor.shape.size()) {
      return fits(spec.shard->span, "shard", spec.shard->value.size());
    }
    if (!spec.axes && !spec.shard) {
      tensor.partition = lowered->viewed.partition;
      const std::vector<bool>& in_doubt = lowered->viewed.in_doubt;
      const auto doubt = std::find(in_doubt.begin(), in_doubt.end(), true);
      if (doubt != in_doubt.end()) {
        diagnostics_.Error(span,
                           fmt::format("the tensors of `{}` are cut in different ways along its "
                                       "dimension {}",
                                       tensor.path, doubt - in_doubt.begin()),
                           "say how it is to be cut, with `axes` or `shard`");
        return;
      }
    }
    BindSharding(spec, true, &tensor);
    if (why_ != nullptr) why_->view = spec.from->span;
    AddView(*lowered, span, &tensor);
  }

  void AddView(const LoweredView& lowered, Span span, Tensor* tensor) {
    const Tensor& first = lowered.First();
    tensor->dtype = first.dtype;
    tensor->distribution = Constant{0};
    tensor->draw_path.clear();
    tensor->key = 0;
    tensor->view = lowered.view;
    int64_t bytes;
    if (__builtin_mul_overflow(ElementCount(tensor->shape), InfoOf(first.dtype).bytes, &bytes) ||
        __builtin_add_overflow(total_bytes_, bytes, &total_bytes_)) {
      diagnostics_.Error(span, "with this tensor the layout has more than 2^63 - 1 bytes");
      return;
    }
    NoteTensor(span);
    graph_.tensors.push_back(std::move(*tensor));
    places_.push_back(span);
  }

  // The tensor that is next is the one that is explained.
  void NoteTensor(Span span) {
    if (why_ == nullptr) return;
    why_->tensor = graph_.tensors.size();
    why_->place = span;
  }

  bool IsWanted(const std::string& path) const {
    return explanation_ != nullptr && !explanation_->tensor &&
           GlobMatches(explanation_->pattern, path);
  }

  void Unknown(std::string_view kind, const Located<std::string>& name,
               const std::vector<std::string>& known) {
    diagnostics_.Error(name.span, fmt::format("unknown {} `{}`", kind, name.value),
                       known.empty() ? fmt::format("the spec declares no {}", kind)
                                     : DidYouMean(name.value, known));
  }

  // Neutral 1 where the expression is wrong.
  int64_t Integer(const Expr& expr, int64_t low, int64_t high, std::string_view what) {
    return EvaluateInteger(expr, names_, low, high, what, diagnostics_)
        .value_or(std::max<int64_t>(low, 1));
  }

  void BindMesh() {
    int64_t size = 1;
    if (spec_.mesh.size() > kMaxAxes) {
      diagnostics_.Error(spec_.mesh[kMaxAxes].name.span,
                         fmt::format("the mesh has {} axes, but may have at most {}",
                                     spec_.mesh.size(), kMaxAxes));
    }
    for (const auto& axis : spec_.mesh) {
      const int64_t extent = axis.value ? Integer(*axis.value, 1, kMaxWorldSize,
                                                  fmt::format("axis `{}`", axis.name.value))
                                        : 1;
      graph_.mesh.axes.push_back(axis.name.value);
      graph_.mesh.shape.push_back(extent);
      if (size > kMaxWorldSize / extent) {
        diagnostics_.Error(axis.name.span,
                           fmt::format("the mesh has more than {} ranks", kMaxWorldSize));
        size = 1;
      }
      size *= extent;
    }
  }

  // The mesh axes of one dimension or rule; those in `used` may not be used again.
  std::vector<int> BindAxes(const AxisList& list, std::vector<int>* used) {
    std::vector<int> axes;
    for (const auto& name : list.value) {
      const int axis = graph_.mesh.Find(name.value);
      if (axis < 0 && lacks_axes_) continue;
      if (axis < 0) {
        Unknown("mesh axis", name, graph_.mesh.axes);
      } else if (std::find(used->begin(), used->end(), axis) != used->end()) {
        diagnostics_.Error(name.span,
                           fmt::format("mesh axis `{}` would cut a tensor twice", name.value),
                           "each mesh axis may cut one dimension of a tensor, once");
      } else {
        axes.push_back(axis);
        used->push_back(axis);
      }
    }
    return axes;
  }

  void BindRules() {
    const size_t before = diagnostics_.all().size();
    for (const RuleSpec& rule : spec_.rules) {
      lacks_rules_ |= rule.logical.value.empty();
      std::vector<int> used;
      rules_.push_back({rule.logical.value, BindAxes(rule.axes, &used)});
      if (std::find(logical_.begin(), logical_.end(), rule.logical.value) == logical_.end()) {
        logical_.push_back(rule.logical.value);
      }
    }
    knows_rules_ = !spec_.wrong.Has("rules") && !lacks_axes_ && diagnostics_.all().size() == before;
    lacks_rules_ |= spec_.rules.empty() && spec_.wrong.Has("rules");
  }

  // A logical axis that no tensor has is a misspelt one, here or there.
  void CheckUnusedRules() {
    if (unknown_logical_ || spec_.wrong.Has("modules") || spec_.wrong.Has("layouts")) return;
    std::set<std::string> written;
    CollectAxes(spec_.modules, &written);
    for (const auto& layout : spec_.layouts) CollectAxes(layout.value.modules, &written);
    for (const RuleSpec& rule : spec_.rules) {
      if (rule.logical.value.empty() || written.count(rule.logical.value) != 0) continue;
      const std::vector<std::string> seen(written.begin(), written.end());
      diagnostics_.Error(
          rule.logical.span, fmt::format("no tensor has the logical axis `{}`", rule.logical.value),
          seen.empty() ? "no tensor names its `axes`" : DidYouMean(rule.logical.value, seen));
    }
  }

  void BindInits() {
    for (const auto& init : spec_.inits) {
      if (init.name.value.empty()) continue;
      if (FindInitializer(init.name.value) != nullptr) {
        diagnostics_.Error(init.name.span,
                           fmt::format("`{}` is the tool's own initializer", init.name.value),
                           "choose another name");
      }
      inits_.try_emplace(init.name.value, &init.value);
    }
  }

  // How many tensors stand in a module, its repeats taken as one.
  static int64_t CountTensors(const ModuleSpec& module) {
    int64_t count = 0;
    for (const auto& member : module.members) {
      const auto* inner = std::get_if<std::unique_ptr<ModuleSpec>>(&member.value);
      count += inner ? CountTensors(**inner) : 1;
    }
    return count;
  }

  // Of a tensor or a module. What may not be there may well be wrong.
  template <typename T>
  bool IsThere(const T& spec) {
    if (spec.when == nullptr) return !spec.wrong.Has("when");
    const auto value = EvaluateNumber(*spec.when, names_, diagnostics_);
    return value && *value != 0;
  }

  // The logical axes of all tensors: a rule for what is left out is no mistake.
  static void CollectAxes(const ModuleSpec& module, std::set<std::string>* axes) {
    for (const auto& member : module.members) {
      const auto* tensor = std::get_if<TensorSpec>(&member.value);
      if (tensor == nullptr) {
        CollectAxes(*std::get<std::unique_ptr<ModuleSpec>>(member.value), axes);
      } else if (tensor->axes) {
        for (const auto& name : tensor->axes->value) {
          if (!name.value.empty()) axes->insert(name.value);
        }
      }
    }
  }

  void NoteLeftOut(const std::string& path, const Expr& when) {
    if (!IsWanted(path) || explanation_->left_out) return;
    explanation_->left_out = {path, {"when", TextOf(when), {}, SpanOf(when)}};
  }

  // Of a module that is left out no expression is evaluated: its repeats have the
  // numbers that the pattern asks for.
  void NoteLeftOut(const ModuleSpec& module, const std::string& path, const Expr& when) {
    if (--left_out_budget_ < 0) return;
    std::vector<std::string> inside = {path};
    if (module.repeat) {
      inside = {Join(path, "0")};
      std::string_view rest = explanation_->pattern;
      while (!rest.empty()) {
        const std::string_view part = rest.substr(0, rest.find('.'));
        if (!part.empty() && part.find_first_not_of("0123456789") == part.npos) {
          inside.push_back(Join(path, std::string(part)));
        }
        rest.remove_prefix(std::min(part.size() + 1, rest.size()));
      }
    }
    for (const std::string& prefix : inside) {
      for (const auto& member : module.members) {
        const std::string inner = Join(prefix, member.name.value);
        if (const auto* submodule = std::get_if<std::unique_ptr<ModuleSpec>>(&member.value)) {
          NoteLeftOut(**submodule, inner, when);
        } else {
          NoteLeftOut(inner, when);
        }
      }
    }
  }

  void ExplainConditions() {
    for (const Expr* when : conditions_) {
      const auto value = EvaluateNumber(*when, names_, diagnostics_);
      why_->conditions.push_back(
          {"when", TextOf(*when), fmt::format("{}", value.value_or(0)), SpanOf(*when)});
    }
  }

  void Expand(const ModuleSpec& module, const std::string& path, int64_t copies) {
    if (!IsThere(module)) {
      if (explanation_ != nullptr && module.when) NoteLeftOut(module, path, *module.when);
      return;
    }
    const auto around = fans_;
    if (const auto fans = FansOf(module)) fans_ = fans;
    if (module.when) conditions_.push_back(module.when.get());
    ExpandModule(module, path, copies);
    if (module.when) conditions_.pop_back();
    fans_ = around;
  }

  void ExpandModule(const ModuleSpec& module, const std::string& path, int64_t copies) {
    if (!module.repeat) {
      const bool lacks = names_.lacks();
      names_.Lack(lacks || module.wrong.Has("repeat"));
      ExpandMembers(module, path, copies);
      names_.Lack(lacks);
      return;
    }
    const std::string& variable = module.repeat->name.value;
    if (names_.Has(variable)) {
      diagnostics_.Error(module.repeat->name.span,
                         fmt::format("`{}` already names a variable or an outer repeat", variable),
                         "choose another name for this repeat");
      return;
    }
    // Where the number is wrong, once is enough to find what else is.
    const int64_t count =
        !module.repeat->value
            ? 1
            : EvaluateInteger(*module.repeat->value, names_, 1, kMaxTensors,
                              fmt::format("the count of `{}`", variable), diagnostics_)
                  .value_or(1);
    const int64_t tensors = std::max<int64_t>(1, CountTensors(module));
    if (count > kMaxTensors / copies / tensors) {
      diagnostics_.Error(
          SpanOf(*module.repeat->value),
          fmt::format("this makes {} × {} × {} tensors, but a spec may have at most {}", copies,
                      count, tensors, kMaxTensors));
      return;
    }
    if (const int64_t made = std::ssize(graph_.tensors); count * tensors > kMaxTensors - made) {
      diagnostics_.Error(
          SpanOf(*module.repeat->value),
          fmt::format("this makes {} × {} tensors after {} others, but a spec may have "
                      "at most {}",
                      count, tensors, made, kMaxTensors));
      return;
    }
    // Else all of a long repeat are moved each time that their number doubles.
    if (const size_t size = graph_.tensors.size() + static_cast<size_t>(count * tensors);
        size > graph_.tensors.capacity()) {
      graph_.tensors.reserve(std::max(size, 2 * graph_.tensors.capacity()));
    }
    names_.repeats().emplace_back(variable, 0);
    const size_t before = diagnostics_.all().size();
    // One mistake gives one message, not one per layer.
    for (int64_t i = 0; i < count && diagnostics_.all().size() == before; ++i) {
      names_.repeats().back().second = i;
      ExpandMembers(module, Join(path, fmt::format_int(i).str()), copies * count);
    }
    names_.repeats().pop_back();
  }

  void ExpandMembers(const ModuleSpec& module, const std::string& path, int64_t copies) {
    for (const auto& member : module.members) {
      const std::string inner = Join(path, member.name.value);
      if (const auto* tensor = std::get_if<TensorSpec>(&member.value)) {
        if (IsThere(*tensor)) {
          if (tensor->when) conditions_.push_back(tensor->when.get());
          AddTensor(*tensor, member.name.span, inner);
          if (tensor->when) conditions_.pop_back();
        } else if (tensor->when) {
          NoteLeftOut(inner, *tensor->when);
        }
      } else {
        Expand(*std::get<std::unique_ptr<ModuleSpec>>(member.value), inner, copies);
      }
    }
  }

  static std::string Join(const std::string& path, const std::string& name) {
    if (path.empty() || name.empty()) return path + name;
    std::string joined;
    joined.reserve(path.size() + 1 + name.size());
    return joined.append(path).append(1, '.').append(name);
  }

  void AddTensor(const TensorSpec& spec, Span span, const std::string& path) {
    Tensor tensor;
    tensor.path = path;
    why_ = IsWanted(path) ? explanation_ : nullptr;
    names_.Trace(why_ != nullptr ? &why_->variables : nullptr);
    if (why_ != nullptr) ExplainConditions();
    if (path.size() > kMaxPath) {
      diagnostics_.Error(span, fmt::format("this path has {} bytes, but at most {} are allowed",
                                           path.size(), kMaxPath));
      return;
    }
    if (layout_) {
      if (spec.wrong.empty()) AddStored(spec, span, std::move(tensor));
      return;
    }
    BindDType(spec, span, &tensor);
    // Without a shape there is no tensor, but what else is wrong with it can be seen.
    const bool has_shape = BindShape(spec, &tensor);
    BindInit(spec, span, has_shape, &tensor);
    BindSharding(spec, has_shape, &tensor);
    if (!has_shape) return;
    BindKey(spec, &tensor);
    NoteTensor(span);
    if (why_ != nullptr) {
      if (spec_.seed) why_->seed = SpanOf(*spec_.seed);
      if (spec_.large_seed) why_->seed = spec_.large_seed->span;
      if (spec_.engine) why_->engine = spec_.engine->span;
    }
    graph_.tensors.push_back(std::move(tensor));
    places_.push_back(span);
  }

  // Where it is wrong the tensor stays f32, so that its other mistakes show too.
  void BindDType(const TensorSpec& spec, Span span, Tensor* tensor) {
    const auto& name = spec.dtype ? spec.dtype : spec_.dtype;
    if (!name && (spec.wrong.Has("dtype") || spec_.wrong.Has("dtype"))) return;
    if (!name) {
      diagnostics_.Error(span, fmt::format("tensor `{}` has no dtype", tensor->path),
                         "give it a `dtype`, or the spec one at the top");
      return;
    }
    const auto dtype = FindDType(name->value);
    if (dtype) tensor->dtype = *dtype;
    if (why_ != nullptr) why_->dtype = name->span;
    // The spec's own dtype is wrong once, not once per tensor.
    if (dtype || (!spec.dtype && std::exchange(dtype_reported_, true))) return;
    const auto meant = FindDTypeByOtherName(name->value);
    diagnostics_.Error(name->span, fmt::format("unknown dtype {}", Quote(name->value)),
                       meant ? fmt::format("did you mean `{}`?", InfoOf(*meant).name)
                             : DidYouMean(name->value, DTypeNames()));
  }

  bool BindShape(const TensorSpec& spec, Tensor* tensor) {
    if (spec.shape.size() > kMaxRank) {
      diagnostics_.Error(spec.shape_span, fmt::format("{} dimensions, but at most {} are allowed",
                                                      spec.shape.size(), kMaxRank));
      return false;
    }
    int64_t bytes = InfoOf(tensor->dtype).bytes;
    bool good = !spec.wrong.Has("shape");
    for (size_t d = 0; d < spec.shape.size(); ++d) {
      if (!spec.shape[d]) continue;
      const auto extent =
          EvaluateInteger(*spec.shape[d], names_, 1, std::numeric_limits<int64_t>::max(),
                          dimension_names_[d], diagnostics_);
      good = good && extent;
      if (!good) continue;
      tensor->shape.push_back(*extent);
      if (why_ != nullptr) {
        const bool named = spec.axes && d < spec.axes->value.size();
        why_->dimensions.push_back({named ? spec.axes->value[d].value : "", TextOf(*spec.shape[d]),
                                    fmt::to_string(*extent), SpanOf(*spec.shape[d])});
      }
      if (__builtin_mul_overflow(bytes, *extent, &bytes)) {
        diagnostics_.Error(
            spec.shape_span, "this tensor has more than 2^63 - 1 bytes",
            fmt::format("the dimensions up to here are {}", fmt::join(tensor->shape, " × ")));
        return false;
      }
    }
    if (good && __builtin_add_overflow(total_bytes_, bytes, &total_bytes_)) {
      diagnostics_.Error(spec.shape_span,
                         "with this tensor the model has more than 2^63 - 1 bytes");
      return false;
    }
    return good;
  }

  // Fans.

  // Of a module or the spec; an empty word if it is wrong.
  template <typename T>
  static std::optional<Located<std::string>> FansOf(const T& spec) {
    if (!spec.fans && spec.wrong.Has("fans")) return Located<std::string>();
    return spec.fans;
  }

  static std::optional<FanOrder> OrderOf(const std::optional<Located<std::string>>& fans) {
    if (!fans) return {};
    return fans->value == "out_in" ? FanOrder::kOutIn : FanOrder::kInOut;
  }

  // What the spec says of a tensor's dimensions; none if that is wrong.
  std::optional<FanSource> BindFans(const TensorSpec& spec, const Tensor& tensor) {
    for (const std::string_view key : {"fans", "in_axis", "out_axis", "batch_axis"}) {
      if (spec.wrong.Has(key)) return {};
    }
    if (!spec.fans && fans_ && fans_->value.empty()) return {};
    FanSource source{.order = OrderOf(spec.fans ? spec.fans : fans_), .axes = {}, .batch = {}};
    if (why_ != nullptr) ExplainFans(spec);
    if (!spec.in_axis && !spec.out_axis && !spec.batch_axis) return source;
    struct Use {
      std::string_view key;
      const std::optional<DimensionList>& list;
      std::vector<size_t> dimensions;
    };
    Use uses[] = {{"in_axis", spec.in_axis, {}},
                  {"out_axis", spec.out_axis, {}},
                  {"batch_axis", spec.batch_axis, {}}};
    std::vector<std::string_view> taken(tensor.shape.size());
    for (Use& use : uses) {
      if (!use.list) continue;
      for (const DimensionRef& ref : use.list->value) {
        const auto d = FindDimension(spec, tensor.shape, use.key, ref);
        if (!d) return {};
        if (!taken[*d].empty()) {
          diagnostics_.Error(
              ref.span,
              taken[*d] == use.key
                  ? fmt::format("dimension {} is twice in `{}`", *d, use.key)
                  : fmt::format("dimension {} is in `{}` and in `{}`", *d, taken[*d], use.key));
          return {};
        }
        taken[*d] = use.key;
        use.dimensions.push_back(*d);
      }
    }
    source.batch = uses[2].dimensions;
    if (!spec.in_axis && !spec.out_axis) return source;
    if (!spec.in_axis || !spec.out_axis) {
      // A single dimension that is left is the other one.
      Use& given = spec.in_axis ? uses[0] : uses[1];
      Use& other = spec.in_axis ? uses[1] : uses[0];
      for (size_t d = 0; d < taken.size(); ++d) {
        if (taken[d].empty()) other.dimensions.push_back(d);
      }
      if (other.dimensions.size() > 1) {
        diagnostics_.Error(given.list->span,
                           fmt::format("`{}` leaves dimensions {}, and some of them may be the "
                                       "receptive field",
                                       given.key, fmt::join(other.dimensions, ", ")),
                           fmt::format("write `{}` too", other.key));
        return {};
      }
    }
    source.axes = {uses[0].dimensions, uses[1].dimensions};
    return source;
  }

  void ExplainFans(const TensorSpec& spec) {
    const auto& axes = spec.in_axis ? spec.in_axis : spec.out_axis;
    const auto& order = spec.fans ? spec.fans : fans_;
    if (axes) {
      why_->fans = {spec.in_axis ? "in_axis" : "out_axis", {}, {}, axes->span};
    } else if (order) {
      why_->fans = {"fans", {}, order->value, order->span};
    }
  }

  std::optional<size_t> FindDimension(const TensorSpec& spec, const Shape& shape,
                                      std::string_view key, const DimensionRef& ref) {
    const int64_t rank = std::ssize(shape);
    if (const auto* position = std::get_if<int64_t>(&ref.value)) {
      if (*position >= -rank && *position < rank) {
        return static_cast<size_t>(*position < 0 ? *position + rank : *position);
      }
      diagnostics_.Error(ref.span,
                         fmt::format("`{}` is {}, but the tensor has {} dimension{}", key,
                                     *position, rank, rank == 1 ? "" : "s"),
                         rank == 0 ? "" : fmt::format("from {} to {}", -rank, rank - 1));
      return {};
    }
    if (spec.wrong.Has("axes")) return {};
    const auto& name = std::get<std::string>(ref.value);
    std::vector<std::string> known;
    std::optional<size_t> found;
    for (size_t d = 0; spec.axes && d < spec.axes->value.size(); ++d) {
      known.push_back(spec.axes->value[d].value);
      if (known.back() != name) continue;
      if (found) {
        diagnostics_.Error(
            ref.span, fmt::format("dimensions {} and {} both have the name `{}`", *found, d, name),
            fmt::format("write a position, such as `{}: {}`", key, d));
        return {};
      }
      found = d;
    }
    if (found) return found;
    std::erase(known, "");
    diagnostics_.Error(ref.span, fmt::format("the tensor has no axis `{}`", name),
                       known.empty() ? "write a position, such as `-1` for the last dimension"
                                     : DidYouMean(name, known));
    return {};
  }

  void BindInit(const TensorSpec& spec, Span span, bool has_shape, Tensor* tensor) {
    if (!spec.init && spec.wrong.Has("init")) return;
    if (!spec.init) {
      diagnostics_.Error(span, fmt::format("tensor `{}` has no `init`", tensor->path));
      return;
    }
    // Follow the spec's own names to one of the tool's initializers.
    const InitSpec* init = &*spec.init;
    for (size_t steps = 0;; ++steps) {
      if (why_ != nullptr) {
        why_->initializers.push_back({init->name.value, {}, {}, init->name.span});
      }
      const auto it = inits_.find(init->name.value);
      if (it == inits_.end()) break;
      if (steps > inits_.size()) {
        Report(init, [&] {
          diagnostics_.Error(init->name.span,
                             fmt::format("`{}` is defined by itself", init->name.value));
        });
        return;
      }
      if (!init->arguments.empty()) {
        Report(init, [&] {
          diagnostics_.Error(
              init->arguments[0].name.span,
              fmt::format("`{}` is an initializer of this spec and takes no arguments",
                          init->name.value));
        });
        return;
      }
      init = it->second;
    }
    if (bad_inits_.count(init) != 0) return;
    const auto source = has_shape ? BindFans(spec, *tensor) : std::nullopt;
    const Fans fans = source ? Fans(tensor->shape, *source, init->name.value, spec.init->name.span,
                                    why_ != nullptr ? &why_->working : nullptr)
                             : Fans();
    const size_t before = diagnostics_.all().size();
    if (const auto distribution =
            Lower(*init, spec, has_shape ? &tensor->shape : nullptr, source ? &fans : nullptr)) {
      tensor->distribution = *distribution;
    }
    if (const auto [what, hint] = MisfitOf(tensor->distribution, tensor->dtype); !what.empty()) {
      diagnostics_.Error(init->name.span, fmt::format("values of `{}` {}", tensor->path, what),
                         hint);
    }
    if (diagnostics_.all().size() != before && !fans.reported()) bad_inits_.insert(init);
  }

  // A named initializer that many tensors use is wrong once.
  template <typename F>
  void Report(const InitSpec* init, F report) {
    if (bad_inits_.insert(init).second) report();
  }

  // `shape` and `fans` are null where they are not known: then only names and arguments are
  // looked at.
  std::optional<Distribution> Lower(const InitSpec& init, const TensorSpec& tensor,
                                    const Shape* shape, const Fans* fans) {
    if (init.name.value.empty()) return {};
    if (init.name.value == "expr") return LowerExpression(init, tensor, shape);
    const Initializer* initializer = FindInitializer(init.name.value);
    if (initializer == nullptr && MayLack(spec_.inits, spec_.wrong.Has("init"))) return {};
    if (initializer == nullptr) {
      std::vector<std::string> known = InitializerNames();
      for (const auto& named : spec_.inits) known.push_back(named.name.value);
      const std::string hint = DidYouMean(init.name.value, known);
      diagnostics_.Error(init.name.span, fmt::format("unknown initializer `{}`", init.name.value),
                         hint.empty() ? "shardinit-spec(5) lists the initializers" : hint);
      return {};
    }
    std::vector<Argument> arguments;
    bool complete = true;
    bool misspelt = false;
    for (const auto& argument : init.arguments) {
      misspelt |= argument.name.value.empty();
      if (argument.name.value.empty()) continue;
      std::vector<std::string> known;
      for (const Parameter& parameter : initializer->parameters) known.emplace_back(parameter.name);
      if (std::find(known.begin(), known.end(), argument.name.value) != known.end()) continue;
      diagnostics_.Error(
          argument.name.span,
          fmt::format("`{}` has no parameter `{}`", init.name.value, argument.name.value),
          known.empty() ? "it takes none" : DidYouMean(argument.name.value, known));
      misspelt = true;
      if (argument.value && !IsName(*argument.value)) {  // Which may be a word.
        EvaluateNumber(*argument.value, names_, diagnostics_);
      }
    }
    complete &= !misspelt;
    for (const Parameter& parameter : initializer->parameters) {
      const auto it = std::find_if(init.arguments.begin(), init.arguments.end(),
                                   [&](const auto& a) { return a.name.value == parameter.name; });
      if (it != init.arguments.end()) {
        const auto argument =
            it->value ? BindArgument(parameter, *it->value, tensor, shape) : std::nullopt;
        complete &= argument.has_value();
        arguments.push_back(argument.value_or(Argument{}));
      } else if (const auto* number = std::get_if<double>(&parameter.default_value)) {
        arguments.push_back({*number, init.name.span});
      } else if (const auto* word = std::get_if<std::string_view>(&parameter.default_value)) {
        arguments.push_back({0, init.name.span, *word});
      } else if (!misspelt) {  // Else that one was probably meant to be this.
        diagnostics_.Error(
            init.name.span, fmt::format("`{}` needs `{}`", init.name.value, parameter.name),
            fmt::format("write `{{{}: {{{}: …}}}}`", init.name.value, parameter.name));
        complete = false;
      }
    }
    if (!complete || shape == nullptr || fans == nullptr) return {};
    if (why_ != nullptr) ExplainArguments(*initializer, init, arguments);
    if (initializer->formula != nullptr) {
      return LowerFormula(*initializer, arguments, *shape, init.name.span);
    }
    return initializer->lower(arguments, *fans, diagnostics_);
  }

  void ExplainArguments(const Initializer& initializer, const InitSpec& init, Arguments arguments) {
    for (size_t i = 0; i < arguments.size(); ++i) {
      const Argument& argument = arguments[i];
      Explanation::Setting setting{std::string(initializer.parameters[i].name), {}, {}, {}};
      setting.value = argument.word.empty() ? fmt::format("{}", argument.value) : argument.word;
      for (const auto& written : init.arguments) {
        if (written.name.value != setting.name) continue;
        setting.text = TextOf(*written.value);
        setting.span = SpanOf(*written.value);
      }
      why_->arguments.push_back(std::move(setting));
    }
  }

  // A number, or a word of those that the parameter knows. Words come first,
  // and a variable that is called like one of them would be ambiguous.
  std::optional<Argument> BindArgument(const Parameter& parameter, const Expr& expr,
                                       const TensorSpec& tensor, const Shape* shape) {
    const std::string& text = TextOf(expr);
    const Span span = SpanOf(expr);
    const auto word = std::find(parameter.words.begin(), parameter.words.end(), text);
    if (word != parameter.words.end()) {
      if (!parameter.number || !names_.Has(text)) return Argument{0, span, *word};
      diagnostics_.Error(
          span,
          fmt::format("`{}` is a word that `{}` takes, and a variable too", text, parameter.name),
          fmt::format("give the variable another name, or write `1 * {}` for its value", text));
      return {};
    }
    if (parameter.number && IsName(expr) && names_.IsBroken(text)) return {};
    if (parameter.dimension) {
      DimensionRef ref{text, span};
      if (!IsName(expr) || names_.Has(text)) {
        const auto position = EvaluateInteger(expr, names_, std::numeric_limits<int64_t>::min(),
                                              std::numeric_limits<int64_t>::max(),
                                              fmt::format("`{}`", parameter.name), diagnostics_);
        if (!position) return {};
        ref.value = *position;
      }
      if (shape == nullptr) return {};
      const auto d = FindDimension(tensor, *shape, parameter.name, ref);
      if (!d) return {};
      return Argument{static_cast<double>(*d), span};
    }
    if (!parameter.number || (!parameter.words.empty() && IsName(expr) && !names_.Has(text))) {
      std::vector<std::string> known(parameter.words.begin(), parameter.words.end());
      if (parameter.number) {
        for (const auto& name : names_.Names()) known.push_back(name);
      }
      diagnostics_.Error(
          span,
          parameter.number
              ? fmt::format("`{}` must be a number or a known word, not `{}`", parameter.name, text)
              : fmt::format("unknown {} `{}`", parameter.name, text),
          DidYouMean(text, known));
      return {};
    }
    const auto value = EvaluateNumber(expr, names_, diagnostics_);
    if (!value) return {};
    return Argument{*value, span};
  }

  std::optional<Distribution> LowerExpression(const InitSpec& init, const TensorSpec& tensor,
                                              const Shape* shape) {
    if (init.expr == nullptr) {
      diagnostics_.Error(init.name.span, "`expr` needs an expression",
                         "write `{expr: \"where(row >= col, normal() * 0.02, 0)\"}`");
      return {};
    }
    // Its names are also those of axes.
    if (shape == nullptr || tensor.wrong.Has("axes")) return {};
    std::vector<std::string> axes;
    if (tensor.axes) {
      for (const auto& name : tensor.axes->value) axes.push_back(name.value);
    }
    if (why_ != nullptr) {
      why_->arguments.push_back({"expr", TextOf(*init.expr), {}, SpanOf(*init.expr)});
    }
    return Intern(Compile(*init.expr, *shape, axes, names_, diagnostics_));
  }

  std::optional<Distribution> LowerFormula(const Initializer& initializer, Arguments arguments,
                                           const Shape& shape, Span span) {
    const auto formula = initializer.formula(arguments, shape, span, diagnostics_);
    if (!formula) return {};
    class ParameterScope : public Scope {
     public:
      ParameterScope(const Initializer& row, Arguments values) : row_(row), values_(values) {}
      std::optional<Value> Find(const std::string& name, Diagnostics&) const override {
        for (size_t i = 0; i < values_.size(); ++i) {
          if (row_.parameters[i].name == name) return values_[i].value;
        }
        return {};
      }
      std::vector<std::string> Names() const override { return {}; }

     private:
      const Initializer& row_;
      Arguments values_;
    };
    const ExprPtr expr = ParseExpr(*formula, span, diagnostics_);
    Check(expr != nullptr, "a formula that cannot be parsed");
    return Intern(Compile(*expr, shape, {}, ParameterScope(initializer, arguments), diagnostics_));
  }

  // The layers of a model share their programs.
  std::optional<Distribution> Intern(std::shared_ptr<const Program> program) {
    if (program == nullptr) return {};
    return Expression{programs_.try_emplace(program->text, program).first->second};
  }

  void BindSharding(const TensorSpec& spec, bool has_shape, Tensor* tensor) {
    tensor->partition.resize(tensor->shape.size());
    if (spec.axes) NoteLogicalAxes(*spec.axes);
    if (spec.shard) {
      std::vector<int> used;
      for (size_t d = 0; d < spec.shard->value.size(); ++d) {
        std::vector<int> axes = BindAxes(spec.shard->value[d], &used);
        if (d < tensor->partition.size()) tensor->partition[d] = std::move(axes);
      }
    } else if (spec.axes && spec_.has_rules && knows_rules_ && !spec.wrong.Has("axes") &&
               !spec.wrong.Has("shard") && spec.axes->value.size() == tensor->shape.size()) {
      std::vector<std::string> logical;
      for (const auto& name : spec.axes->value) logical.push_back(name.value);
      std::vector<int> fired;
      std::vector<RuleTrial> trials;
      tensor->partition =
          ResolveRules(logical, rules_, &fired, why_ != nullptr ? &trials : nullptr);
      for (const RuleTrial& trial : trials) ExplainRule(trial);
    }
    if (why_ != nullptr) ExplainSharding(spec, *tensor);
    const auto& uneven = spec.uneven ? spec.uneven : spec_.uneven;
    if (uneven && uneven->value == "chunk") return;
    if (!has_shape || spec.wrong.Has("uneven") || (!spec.uneven && spec_.wrong.Has("uneven"))) {
      return;
    }
    for (size_t d = 0; d < tensor->shape.size(); ++d) {
      const int64_t parts = PartsOf(tensor->partition[d], graph_.mesh);
      if (tensor->shape[d] % parts == 0) continue;
      std::vector<std::string> axes;
      for (const int axis : tensor->partition[d])
        axes.push_back("`" + graph_.mesh.axes[axis] + "`");
      diagnostics_.Error(
          spec.from ? spec.span : SpanOf(*spec.shape[d]),
          fmt::format("mesh {} {} ({}) {} not divide dimension {} of `{}` ({})",
                      axes.size() == 1 ? "axis" : "axes", fmt::join(axes, " × "), parts,
                      axes.size() == 1 ? "does" : "do", d, tensor->path, tensor->shape[d]),
          fmt::format("use a multiple of {}, leave the dimension whole, or allow "
                      "shorter last shards with `uneven: chunk`",
                      parts));
    }
  }

  void ExplainSharding(const TensorSpec& spec, const Tensor& tensor) {
    if (spec.shard) why_->shard = spec.shard->span;
    for (const auto& axes : tensor.partition) {
      for (const int axis : axes) {
        const auto& written = spec_.mesh[static_cast<size_t>(axis)];
        if (!written.value) continue;
        why_->mesh.push_back({written.name.value, TextOf(*written.value),
                              fmt::to_string(graph_.mesh.shape[axis]), SpanOf(*written.value)});
      }
    }
  }

  void ExplainRule(const RuleTrial& trial) {
    const RuleSpec& rule = spec_.rules[trial.rule];
    std::vector<std::string> axes;
    for (const auto& name : rule.axes.value) axes.push_back(name.value);
    const std::string text = axes.size() == 1 ? axes[0]
                             : axes.empty()   ? "null"
                                              : fmt::format("[{}]", fmt::join(axes, ", "));
    why_->rules.push_back({trial.dimension,
                           {rule.logical.value,
                            fmt::format("{{{}: {}}}", rule.logical.value, text),
                            {},
                            rule.logical.span},
                           trial.taken < 0 ? ""
                                           : fmt::format("{} cuts another dimension already",
                                                         graph_.mesh.axes[trial.taken])});
  }

  void NoteLogicalAxes(const Located<std::vector<Located<std::string>>>& axes) {
    if (!spec_.has_rules) return;
    for (const auto& name : axes.value) {
      if (name.value.empty()) continue;
      if (!seen_logical_.insert(name.value).second) continue;
      if (std::find(logical_.begin(), logical_.end(), name.value) != logical_.end()) continue;
      if (lacks_rules_) continue;
      unknown_logical_ = true;
      const std::string closest = DidYouMean(name.value, logical_);
      diagnostics_.Error(
          name.span, fmt::format("no rule names the logical axis `{}`", name.value),
          fmt::format("{}; `{{{}: null}}` in `rules` keeps it whole", closest, name.value));
    }
  }

  // Of a key in which the numbers of repeats stand.
  void CheckPlaceholders(Span span, std::string_view key) {
    const size_t begin = key.find('{'), end = key.find('}', begin);
    if (begin == key.npos || end == key.npos) return;
    std::vector<std::string> known;
    for (const auto& repeat : names_.repeats()) known.push_back(repeat.first);
    const std::string_view name = key.substr(begin + 1, end - begin - 1);
    diagnostics_.Error(span, fmt::format("`{{{}}}` in `key` is no repeat around this tensor", name),
                       known.empty() ? "no `repeat` is around it" : DidYouMean(name, known));
  }

  // `{layer}` in a key stands for the number of the repeat around the tensor.
  void BindKey(const TensorSpec& spec, Tensor* tensor) {
    if (spec.key) {
      if (why_ != nullptr) why_->key = spec.key->span;
      tensor->draw_path = spec.key->value;
      for (const auto& [variable, index] : names_.repeats()) {
        const std::string placeholder = "{" + variable + "}";
        for (size_t at = 0; (at = tensor->draw_path.find(placeholder, at)) != std::string::npos;) {
          tensor->draw_path.replace(at, placeholder.size(), fmt::format_int(index).str());
        }
      }
      CheckPlaceholders(spec.key->span, tensor->draw_path);
    }
    if (!IsRandom(tensor->distribution)) return;
    tensor->key = KeyOf(graph_.seed, tensor->draw_path.empty() ? tensor->path : tensor->draw_path);
  }

  const ModelSpec& spec_;
  Diagnostics& diagnostics_;
  Explanation* explanation_;    // May be null.
  Explanation* why_ = nullptr;  // The same, while the tensor at hand is the one.
  size_t before_;               // Diagnostics that tensors have no part in.
  SpecScope names_;
  InitGraph graph_;
  std::vector<Span> places_;                  // Of graph_.tensors.
  std::optional<Located<std::string>> fans_;  // Of the module at hand.
  int64_t left_out_budget_ = 100'000;         // Modules to look into for the sake of a message.
  std::vector<const Expr*> conditions_;       // Around the tensor at hand, outermost first.
  std::optional<LayoutBuilder> layout_;       // The one at hand.
  std::vector<Rule> rules_;
  std::vector<std::string> logical_;              // Names that rules know.
  std::unordered_set<std::string> seen_logical_;  // Names that tensors have.
  bool lacks_axes_ = false;                       // The mesh may have other axes.
  bool lacks_rules_ = false;                      // There may be other rules.
  bool knows_rules_ = true;                       // None is wrong.
  bool unknown_logical_ = false;  // A tensor's axis was reported that no rule names.
  std::unordered_map<std::string, const InitSpec*> inits_;
  std::unordered_set<const InitSpec*> bad_inits_;
  std::unordered_map<std::string, std::shared_ptr<const Program>> programs_;  // By text.
  bool dtype_reported_ = false;
  int64_t total_bytes_ = 0;
  const std::vector<std::string> dimension_names_ = [] {
    std::vector<std::string> names;
    for (size_t d = 0; d < kMaxRank; ++d) names.push_back(fmt::format("dimension {}", d));
    return names;
  }();
};

}  // namespace

InitGraph BuildGraph(const ModelSpec& spec, Diagnostics& diagnostics, Explanation* explanation,
                     std::string_view layout, bool all_layouts) {
  return Builder(spec, diagnostics, explanation).Build(layout, all_layouts);
}

}  // namespace shardinit
