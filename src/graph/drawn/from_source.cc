// Initializes tensors with the elements of a source: `source`, `rows_like`, and `parts`, which
// combines them with other initializers.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <limits>
#include <utility>

#include "base/text.h"
#include "graph/drawn/dimensions.h"
#include "graph/drawn/initializer.h"
#include "init/sampled.h"
#include "report/text.h"
#include "tensor/numbers.h"

namespace shardinit {
namespace {

constexpr std::string_view kRest = ".**";

constexpr int64_t kMostPartRows = std::numeric_limits<int64_t>::max();

// Effectively the deviation of Transformers' `resize_token_embeddings`: sqrt(1e-9).
constexpr double kRowsStd = 3.1622776601683795e-05;

}  // namespace

// Returns the name that a path evaluates to. A final `.**` becomes the rest of the tensor's own
// path after the same number of parts.
std::optional<std::string> InitBinder::NameInSource(const PathSpec& path, const Span& place) {
  std::optional<std::string> name = EvaluatePath(path, names_, diagnostics_);
  if (!name || !name->ends_with(kRest)) return name;
  name->resize(name->size() - kRest.size());
  size_t at = 0;
  for (auto parts = 1 + std::ranges::count(*name, '.'); parts > 0 && at != path_.npos; --parts) {
    at = path_.find('.', at + (at > 0));
  }
  if (at != path_.npos) return *name + path_.substr(at);
  of_tensor_ = true;
  return diagnostics_.Error(
      place,
      fmt::format("`{}` does not have more parts than {}, so `**` matches nothing", path_,
                  Quote(path.text.value)),
      "give this tensor an initializer of its own");
}

SourceTensorPtr InitBinder::FindSource(const FromSourceSpec& from, std::string* name) {
  const std::optional<std::string> tensor =
      from.tensor ? NameInSource(*from.tensor, from.tensor->text.span) : path_;
  if (!tensor) return nullptr;
  *name = *tensor;
  SourceTensorPtr found = building_.sources->Find(from.source, *tensor, diagnostics_);
  of_tensor_ |= found == nullptr;  // Other tensors may exist there.
  return found;
}

SourceTensorPtr InitBinder::TakeSource(const FromSourceSpec& from, std::string* name) {
  SourceTensorPtr found = FindSource(from, name);
  if (name->empty()) return found;
  why_.Note([&](Explanation& notes) {
    notes.arguments.push_back({"source", from.source.value, {}, from.source.span});
    notes.arguments.push_back({"tensor", from.tensor ? from.tensor->text.value : *name, *name,
                               from.tensor ? from.tensor->text.span : Span()});
    if (found) notes.arguments.push_back({"file", found->file(), {}, from.source.span});
  });
  return found;
}

// Reports a source whose elements are not numbers of its model. Their bytes can be copied only to a
// tensor of the same type.
bool InitBinder::CheckNotScaled(const Span& place, const SourceTensor& data,
                                std::optional<DType> dtype) {
  if (dtype == data.dtype()) return true;
  const std::string_view name = InfoOf(data.dtype()).name;
  const Scaled scaled = data.scaled();
  if (!scaled.why.empty()) {
    std::string hint = scaled.is_read ? "add `quantized: widened` to the source" : "";
    if (dtype && FindDTypeOfSpecs(name)) {
      hint +=
          fmt::format("{}copy its elements, with `dtype: {}`", hint.empty() ? "" : ", or ", name);
    }
    diagnostics_.Error(place,
                       fmt::format("{} is {} and quantized: {}", data.text(), name, scaled.why),
                       hint.empty() ? "dequantize it with the library that wrote it" : hint);
    return false;
  }
  if (NumberCount(data.dtype()) == 1) return true;
  diagnostics_.Error(place,
                     fmt::format("{} is {}, whose elements no spec can use", data.text(), name),
                     "name another tensor");
  return false;
}

// Reports a shape mismatch, ignoring dimension `but`.
bool InitBinder::CheckSourceShape(const FromSourceSpec& from, const SourceTensor& data,
                                  const Shape& shape, std::optional<size_t> but) {
  bool is_equal = data.shape().size() == shape.size();
  for (size_t d = 0; is_equal && d < shape.size(); ++d) {
    is_equal = d == but || data.shape()[d] == shape[d];
  }
  if (is_equal) return true;
  of_tensor_ = true;
  diagnostics_.Error(
      from.source.span,
      fmt::format("`{}` is [{}], but {} is [{}]", path_, fmt::join(shape, ", "), data.text(),
                  fmt::join(data.shape(), ", ")),
      but ? "only the dimension of the parts may differ"
          : "select elements with `index: [i0 % 4096, i1]`, or fill the tensor with `parts`");
  building_.sources->NotePlace(from.source.value, diagnostics_);
  return false;
}

std::optional<std::vector<ProgramPtr>> InitBinder::BindIndex(const FromSourceSpec& from,
                                                             const SourceTensor& data,
                                                             const TensorSpec& tensor,
                                                             const Shape& shape) {
  const size_t rank = data.shape().size();
  if (from.index->value.size() != rank) {
    return diagnostics_.Error(from.index->span,
                              fmt::format("`index` has {}, but {} is [{}]",
                                          Count(std::ssize(from.index->value), "expression"),
                                          data.text(), fmt::join(data.shape(), ", ")),
                              "give one for each dimension of the source's tensor");
  }
  const auto axes = tensor.axes ? ValuesOf(tensor.axes->value) : std::vector<std::string>();
  std::vector<ProgramPtr> index;
  for (const ExprPtr& expr : from.index->value) {
    if (expr == nullptr) return {};
    ProgramPtr program = Compile(*expr, shape, axes, names_, diagnostics_, SourcesOf(*expr));
    if (program == nullptr) return {};
    if (!program->draws.empty() || !program->placed.empty()) {
      return diagnostics_.Error(SpanOf(*expr), "an index cannot be random",
                                "compute it from indices, such as `i0`");
    }
    index.push_back(programs_.try_emplace(program->text, program).first->second);
  }
  why_.Note([&](Explanation& notes) {
    std::string text;
    for (const ExprPtr& expr : from.index->value) {
      text += (text.empty() ? "" : ", ") + TextOf(*expr);
    }
    notes.arguments.push_back({"index", text, {}, from.index->span});
  });
  return index;
}

// Resolves `source('base', 'layers.{i - 1}.w')` in an expression.
SourceFinder InitBinder::SourcesOf(const Expr&) {
  return [this](const std::string& source, const std::string* tensor,
                const Span& place) -> std::optional<FoundSource> {
    std::optional<std::string> name = path_;
    if (tensor != nullptr) {
      const auto path = ParsePath(*tensor, place, diagnostics_);
      if (!path) return {};
      name = NameInSource(*path, place);
    }
    if (!name) return {};
    if (name->find('\'') != name->npos) {
      return diagnostics_.Error(place, "an expression cannot name a tensor with a quote",
                                "take it with `{source: …, tensor: …}`");
    }
    SourceTensorPtr data = building_.sources->Find({source, place}, *name, diagnostics_);
    of_tensor_ |= data == nullptr;
    if (data == nullptr || !CheckNotScaled(place, *data, {})) return {};
    why_.Note([&](Explanation& notes) {
      notes.arguments.push_back({"source", source + " " + *name, {}, place});
      notes.arguments.push_back({"file", data->file(), {}, place});
    });
    return FoundSource{*name, std::move(data)};
  };
}

std::optional<Distribution> InitBinder::LowerSource(const InitSpec& init, const TensorSpec& tensor,
                                                    DType dtype, const Shape* shape) {
  if (init.from == nullptr) {
    return diagnostics_.Error(init.name.span, "`source` needs the name of a source",
                              "write `{source: base}`");
  }
  if (shape == nullptr) return {};
  const FromSourceSpec& from = *init.from;
  FromSource lowered{from.source.value, {}};
  lowered.data = TakeSource(from, &lowered.tensor);
  if (lowered.data == nullptr || !CheckNotScaled(from.source.span, *lowered.data, dtype)) return {};
  if (from.rows != nullptr && !part_axis_) {
    return diagnostics_.Error(SpanOf(*from.rows), "`rows` is the length of a part",
                              "use it in `parts`, or take elements by `index`");
  }
  if (from.index) {
    auto index = BindIndex(from, *lowered.data, tensor, *shape);
    if (!index) return {};
    lowered.index = *std::move(index);
  } else if (from.rows != nullptr) {
    if (!CheckSourceShape(from, *lowered.data, *shape, part_axis_)) return {};
    // The part takes the first rows of the source, so its indices are the source's indices.
    if (lowered.data->shape() == *shape) return lowered;
    for (size_t d = 0; d < shape->size(); ++d) {
      lowered.index.push_back(CompileCanonical(fmt::format("i{}", d), *shape));
    }
  } else if (!CheckSourceShape(from, *lowered.data, *shape, {})) {
    return {};
  }
  return lowered;
}

std::optional<Distribution> InitBinder::LowerRowsLike(const InitSpec& init, const Shape* shape) {
  if (init.from == nullptr) {
    return diagnostics_.Error(init.name.span, "`rows_like` needs the name of a source",
                              "write `{rows_like: {source: base}}`");
  }
  if (shape == nullptr) return {};
  const FromSourceSpec& from = *init.from;
  RowsLike lowered{
      from.source.value, {}, static_cast<int64_t>(part_axis_.value_or(0)), 0, kRowsStd};
  if (shape->empty()) {
    return diagnostics_.Error(init.name.span, "a scalar has no rows", "use `{source: base}`");
  }
  lowered.data = TakeSource(from, &lowered.tensor);
  const auto axis = static_cast<size_t>(lowered.axis);
  if (lowered.data == nullptr || !CheckNotScaled(from.source.span, *lowered.data, {}) ||
      !CheckSourceShape(from, *lowered.data, *shape, axis)) {
    return {};
  }
  lowered.rows = lowered.data->shape()[axis];
  if (from.rows != nullptr) {
    const auto rows = EvaluateInteger(*from.rows, names_, 1, lowered.rows, "`rows`", diagnostics_);
    if (!rows) return {};
    lowered.rows = *rows;
  }
  if (lowered.rows == 0) {
    return diagnostics_.Error(from.source.span,
                              fmt::format("{} has no rows, and so no mean", lowered.data->text()));
  }
  if (from.std != nullptr) {
    const auto std = EvaluateNumber(*from.std, names_, diagnostics_);
    if (!std) return {};
    const Argument argument{*std, SpanOf(*from.std)};
    if (!CheckScale("std", argument, diagnostics_) ||
        !CheckNotNegative("std", argument, diagnostics_)) {
      return {};
    }
    lowered.std = *std;
  }
  return lowered;
}

// Returns the length of a part that is not the last: the extent of its source, or its `rows`.
std::optional<int64_t> InitBinder::LengthOf(const InitSpec& part, size_t axis) {
  if (part.from == nullptr || part.name.value != "source") {
    return diagnostics_.Error(
        part.name.span, fmt::format("the length of the part `{}` is not known", part.name.value),
        "only the last part, which gets the rest, may be something other than `source`");
  }
  std::string name;
  const SourceTensorPtr data = FindSource(*part.from, &name);
  if (data == nullptr) return {};
  if (part.from->rows != nullptr) {
    const int64_t most =
        part.from->index || axis >= data->shape().size() ? kMostPartRows : data->shape()[axis];
    return EvaluateInteger(*part.from->rows, names_, 0, most, "`rows`", diagnostics_);
  }
  if (!part.from->index && axis < data->shape().size()) return data->shape()[axis];
  return diagnostics_.Error(part.from->source.span, "the length of this part is not known",
                            "give it as `rows`");
}

std::optional<Distribution> InitBinder::LowerParts(const InitSpec& init, const TensorSpec& tensor,
                                                   DType dtype, const Shape* shape,
                                                   const Fans* fans) {
  if (init.parts == nullptr) {
    return diagnostics_.Error(
        init.name.span, "`parts` needs a list of initializers",
        "write `{parts: {axis: 0, of: [{source: base}, {rows_like: {source: base}}]}}`");
  }
  if (shape == nullptr) return {};
  if (part_axis_) return diagnostics_.Error(init.name.span, "a part cannot have parts itself");
  if (shape->empty()) return diagnostics_.Error(init.name.span, "a scalar has no parts");
  const std::optional<size_t> axis =
      init.parts->axis
          ? FindDimension(tensor, *shape, "axis", init.parts->axis->value[0], diagnostics_)
          : 0;
  if (!axis) return {};
  int64_t left = (*shape)[*axis];
  PartList list;
  for (const InitSpec& each : init.parts->of) {
    const InitSpec* const part = FollowNames(each);
    if (part == nullptr) return {};
    std::optional<int64_t> length = left;
    if (&each != &init.parts->of.back()) length = LengthOf(*part, *axis);
    if (!length) return {};
    if (*length > left) {
      of_tensor_ = true;
      return diagnostics_.Error(
          part->name.span,
          fmt::format("the parts of `{}` are longer than its dimension {}, which has {}: this one "
                      "has {}, those before it {}",
                      path_, *axis, (*shape)[*axis], *length, (*shape)[*axis] - left),
          "make the tensor longer, or take fewer with `rows`");
    }
    left -= *length;
    Shape own = *shape;
    own[*axis] = *length;
    part_axis_ = axis;
    auto lowered = Lower(*part, tensor, dtype, &own, fans);
    part_axis_.reset();
    if (!lowered) return {};
    if (!std::holds_alternative<FromSource>(*lowered) &&
        !std::holds_alternative<RowsLike>(*lowered) &&
        !std::holds_alternative<Expression>(*lowered) &&
        !std::holds_alternative<Constant>(*lowered) &&
        !std::visit([]<typename D>(const D&) { return Sampled<D>; }, *lowered)) {
      return diagnostics_.Error(part->name.span,
                                fmt::format("`{}` cannot be a part", part->name.value),
                                "it generates only whole tensors");
    }
    list.parts.push_back({*length, *std::move(lowered)});
  }
  return Parts{static_cast<int64_t>(*axis), std::make_shared<const PartList>(std::move(list))};
}

}  // namespace shardinit
