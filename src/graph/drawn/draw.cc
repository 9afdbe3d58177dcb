#include "graph/drawn/draw.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <limits>
#include <set>
#include <tuple>

#include "base/overloaded.h"
#include "base/suggest.h"
#include "base/text.h"
#include "graph/drawn/expand.h"
#include "graph/drawn/initializer.h"
#include "graph/drawn/tie.h"
#include "graph/engines/jax_threefry.h"
#include "graph/sharded/stage.h"
#include "rng/engines.h"
#include "spec/names.h"

namespace shardinit {
namespace {

void ReportUnknownDType(const Located<std::string>& name, Diagnostics& diagnostics) {
  const auto meant = FindDTypeByOtherName(name.value);
  diagnostics.Error(name.span, fmt::format("unknown dtype {}", Quote(name.value)),
                    meant ? fmt::format("did you mean `{}`?", InfoOf(*meant).name)
                          : DidYouMean(name.value, DTypeNames()));
}

// Turns leaves into tensors, except for their shardings.
class Drawer {
 public:
  Drawer(Building& building, const Mesh& mesh, bool keeps_fans, WrittenTensors* drawn)
      : spec_(building.spec),
        diagnostics_(building.diagnostics),
        names_(building.names),
        why_(building.why),
        inits_(building),
        stages_(building, mesh),
        keeps_fans_(keeps_fans),
        drawn_(*drawn) {
    for (size_t d = 0; d < kMaxRank; ++d) {
      dimension_names_.push_back(fmt::format("dimension {}", d));
    }
  }

  void Visit(const Leaf& leaf) {
    // Build the tensor in place: moving it takes longer than binding most of its parts.
    Tensor& tensor = drawn_.tensors.emplace_back();
    const bool has_shape = Bind(leaf, &tensor);
    if (leaf.stage != nullptr) {
      why_.Note([&](Explanation& notes) { notes.stage = leaf.stage->span; });
      const SpecScope::OutsideBlocks outside(names_, leaf.blocks_of_stage);
      tensor.Edit().partition.pins = stages_.Bind(*leaf.stage);
    }
    if (has_shape) {
      tensor.Edit().partition.dimensions.resize(tensor.shape().size());
      forms_.ShareForm(tensor);
      drawn_.places.push_back(&leaf.place);
      drawn_.specs.push_back(&leaf.spec);
      if (keeps_fans_ && inits_.fans()) drawn_.fans.try_emplace(&leaf.spec, *inits_.fans());
    } else {
      drawn_.tensors.pop_back();
      drawn_.shapeless.push_back(&leaf.spec);
    }
  }

  // Reserves space. Otherwise the tensors of a long repeat would move each time the vector doubles,
  // and memory use would rise by half.
  void Expect(int64_t more) {
    const size_t size = drawn_.tensors.size() + static_cast<size_t>(std::min(more, kMaxTensors));
    if (size <= drawn_.tensors.capacity()) return;
    const size_t wanted = std::max(size, 2 * drawn_.tensors.capacity());
    drawn_.tensors.reserve(wanted);
    drawn_.places.reserve(wanted);
    drawn_.specs.reserve(wanted);
  }

 private:
  // Fills a new tensor. Returns false if it has no shape.
  bool Bind(const Leaf& leaf, Tensor* tensor) {
    tensor->set_path(leaf.path);
    BindDType(leaf, tensor);
    tensor->Edit().is_buffer = leaf.spec.kind && leaf.spec.kind->value == kBufferKind;
    // A tensor without a shape is dropped, but its other errors are still reported.
    const bool has_shape = BindShape(leaf.spec, tensor) && CountBytes(leaf.spec, *tensor);
    inits_.Bind(leaf, has_shape ? &tensor->shape() : nullptr, tensor);
    if (has_shape) BindKey(leaf.spec, tensor);
    why_.Note([&](Explanation& notes) {
      if (spec_.seed) notes.seed = SpanOf(*spec_.seed);
      if (spec_.large_seed) notes.seed = spec_.large_seed->span;
      if (spec_.engine) notes.engine = spec_.engine->span;
    });
    return has_shape;
  }

  // If the dtype is wrong, keeps f32, so that the tensor's other errors are reported too.
  void BindDType(const Leaf& leaf, Tensor* tensor) {
    const TensorSpec& spec = leaf.spec;
    const auto& name = spec.dtype ? spec.dtype : spec_.dtype;
    if (!name && (spec.wrong.Has("dtype") || spec_.wrong.Has("dtype"))) return;
    if (!name) {
      diagnostics_.Error(leaf.place, fmt::format("tensor `{}` has no dtype", tensor->path()),
                         "give it a `dtype`, or the spec one at the top");
      return;
    }
    const auto dtype = FindDTypeOfSpecs(name->value);
    if (dtype) tensor->Edit().dtype = *dtype;
    why_.Note([&](Explanation& notes) { notes.dtype = name->span; });
    // A module's dtype applies to several tensors.
    if (!dtype && spec.dtype && IsNew(spec.dtype->span)) {
      ReportUnknownDType(*spec.dtype, diagnostics_);
    }
  }

  bool BindShape(const TensorSpec& spec, Tensor* tensor) {
    if (spec.shape.size() > kMaxRank) {
      return diagnostics_.Error(
          spec.shape_span,
          fmt::format("{} dimensions, but at most {} are allowed", spec.shape.size(), kMaxRank));
    }
    int64_t bytes = InfoOf(tensor->dtype()).bytes;
    bool good = !spec.wrong.Has("shape");
    for (size_t d = 0; d < spec.shape.size(); ++d) {
      if (!spec.shape[d]) continue;
      const auto extent =
          EvaluateInteger(*spec.shape[d], names_, 1, std::numeric_limits<int64_t>::max(),
                          dimension_names_[d], diagnostics_);
      good = good && extent;
      if (!good) continue;
      tensor->Edit().shape.push_back(*extent);
      why_.Note([&](Explanation& notes) {
        const bool named = spec.axes && d < spec.axes->value.size();
        notes.dimensions.push_back({named ? spec.axes->value[d].value : "", TextOf(*spec.shape[d]),
                                    fmt::to_string(*extent), SpanOf(*spec.shape[d])});
      });
      if (__builtin_mul_overflow(bytes, *extent, &bytes)) {
        return diagnostics_.Error(
            spec.shape_span, "this tensor has more than 2^63 - 1 bytes",
            fmt::format("the dimensions up to here are {}", fmt::join(tensor->shape(), " × ")));
      }
    }
    return good;
  }

  bool CountBytes(const TensorSpec& spec, const Tensor& tensor) {
    if (!__builtin_add_overflow(total_bytes_, tensor.bytes(), &total_bytes_)) return true;
    return diagnostics_.Error(spec.shape_span,
                              "with this tensor the model has more than 2^63 - 1 bytes");
  }

  // Returns null if no engine has this name.
  const Engine* EngineOfSpec() const {
    return spec_.engine ? FindEngine(spec_.engine->value) : Engines().front();
  }

  // Reports a key in a form that the spec's engine does not support.
  void RequireForm(bool Engine::*has_form, std::string_view form, Span key) {
    const Engine* const engine = EngineOfSpec();
    if (engine == nullptr || engine->*has_form) return;
    const auto other =
        std::ranges::find_if(Engines(), [&](const Engine* each) { return each->*has_form; });
    diagnostics_.Error(key, fmt::format("engine `{}` has no {}", engine->name, form),
                       fmt::format("write `engine: {}` at the top of the spec, or a path as `key`",
                                   (*other)->spec_name()));
  }

  void BindTorchKey(const TorchKeySpec& key, Tensor* tensor) {
    RequireForm(&Engine::has_places, "places in a stream", key.span);
    const auto number = [&](const Expr& expr, std::string_view what) {
      return EvaluateInteger(expr, names_, 0, static_cast<int64_t>(kLastPlace), what, diagnostics_);
    };
    const auto position =
        key.skip ? number(*key.skip, "`skip`") : number(*key.position, "`position`");
    const auto spare = key.spare ? number(*key.spare, "`spare`") : std::nullopt;
    if (!position || (key.spare && !spare)) return;
    tensor->set_key(StreamPlace{static_cast<uint64_t>(*position),
                                spare ? static_cast<uint64_t>(*spare) : kNoSpare,
                                key.skip != nullptr});
  }

  // Binds the key. In it, `{layer}` is replaced with the number of the enclosing repeat.
  void BindKey(const TensorSpec& spec, Tensor* tensor) {
    if (spec.key) why_.Note([&](Explanation& notes) { notes.key = SpanOf(*spec.key); });
    const Located<std::string>* path_key = nullptr;
    if (spec.key) {
      std::visit(Overloaded{[&](const Located<std::string>& path) { path_key = &path; },
                            [&](const JaxKeySpec& key) {
                              RequireForm(&Engine::has_jax_keys, "keys of JAX", key.span);
                              const auto words = EvaluateJaxKey(key, names_, diagnostics_);
                              if (words) tensor->set_key(KeyWords{*words});
                            },
                            [&](const TorchKeySpec& key) { BindTorchKey(key, tensor); }},
                 *spec.key);
    }
    const Engine* const engine = EngineOfSpec();
    if (path_key != nullptr && engine != nullptr && engine->has_places) {
      diagnostics_.Error(
          path_key->span,
          fmt::format("engine `{}` draws in the order of tensors, so paths cannot be keys",
                      engine->name),
          "leave `key` out, or write `tie` for the values of another tensor");
      return;
    }
    if (const auto* const key = spec.tie ? &*spec.tie : path_key) {
      if (spec.tie && path_key != nullptr) ReportKeyOfTie(spec, diagnostics_);
      why_.Note([&](Explanation& notes) { notes.key = key->span; });
      const std::string path = names_.WithNumbers(key->value);
      // The first tensor of a repeat may be tied to itself and have another key.
      if (path != tensor->path() || std::holds_alternative<DrawPath>(tensor->key())) {
        tensor->set_key(DrawPath{path});
      }
      // In a wrong repeat, even the repeat's variable may be unknown.
      if (!names_.lacks()) CheckPlaceholders(spec.tie ? "tie" : "key", key->span, path);
    }
  }

  // Reports a placeholder that remains after the numbers of repeats are filled in.
  void CheckPlaceholders(std::string_view where, Span span, std::string_view key) {
    const size_t begin = key.find('{'), end = key.find('}', begin);
    if (begin == key.npos || end == key.npos) return;
    if (!IsNew(span)) return;  // reported for an earlier layer
    const std::vector<std::string> known = names_.LoopNames();
    const std::string_view name = key.substr(begin + 1, end - begin - 1);
    diagnostics_.Error(
        span,
        fmt::format("`{{{}}}` in `{}` does not name a repeat around this tensor", name, where),
        known.empty() ? "no `repeat` is around it" : DidYouMean(name, known));
  }

  // Returns whether no error was reported at this place before.
  bool IsNew(const Span& span) {
    return reported_.insert({span.source, span.line, span.column}).second;
  }

  std::set<std::tuple<const Source*, uint32_t, uint32_t>> reported_;
  const ModelSpec& spec_;
  Diagnostics& diagnostics_;
  SpecScope& names_;
  const Recorder& why_;
  InitBinder inits_;
  StageBinder stages_;
  const bool keeps_fans_;
  WrittenTensors& drawn_;
  FormPool forms_;
  int64_t total_bytes_ = 0;
  std::vector<std::string> dimension_names_;
};

}  // namespace

WrittenTensors DrawTensors(Building& building, const Mesh& mesh, bool keeps_fans) {
  // Report a wrong dtype of the spec once, even if each tensor has its own.
  const auto& dtype = building.spec.dtype;
  if (dtype && !FindDTypeOfSpecs(dtype->value)) ReportUnknownDType(*dtype, building.diagnostics);
  WrittenTensors drawn;
  Drawer drawer(building, mesh, keeps_fans, &drawn);
  drawn.all_visited = Expand(
      building.spec.modules, 0, building, [&](const Leaf& leaf) { drawer.Visit(leaf); },
      [&](int64_t more) { drawer.Expect(more); });
  return drawn;
}

}  // namespace shardinit
