#include "checkpoint/conversion.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <set>
#include <utility>

#include "base/error.h"
#include "base/glob.h"
#include "base/text.h"
#include "checkpoint/alike.h"
#include "checkpoint/fit_names.h"
#include "graph/stored/view.h"
#include "plan/load.h"
#include "plan/relayout.h"
#include "report/text.h"

namespace shardinit {
namespace {

// Returns the plan of a folder without the dropped tensors.
Plan WithoutDropped(const ConversionRequest& request, const TensorFolder& folder) {
  InitGraph graph = folder.plan().graph;
  for (const std::string& pattern : request.drop) {
    const auto matches = [&](const auto& path) { return PathMatches(pattern, path); };
    const auto& unread = folder.unread();
    if (std::none_of(graph.tensors.begin(), graph.tensors.end(),
                     [&](const Tensor& tensor) { return matches(tensor.path()); }) &&
        std::none_of(unread.begin(), unread.end(),
                     [&](const auto& tensor) { return matches(tensor.first); })) {
      throw Error(ExitCode::kUsage, fmt::format("no tensor matches `--drop {}`", pattern),
                  HintForPattern(pattern, folder.plan().graph.tensors));
    }
  }
  std::erase_if(graph.tensors,
                [&](const Tensor& tensor) { return MatchesAny(request.drop, tensor.path()); });
  if (graph.tensors.empty()) {
    throw Error(ExitCode::kUsage, "`--drop` would leave no tensors to copy",
                "use a pattern that matches fewer");
  }
  return MakePlan(std::move(graph));
}

// Reports how many elements of a folder only pad its tensors. Their values are not checked or
// copied.
void SayPadding(const ConversionRequest& request, const TensorFolder& folder) {
  int64_t elements = 0, tensors = 0;
  for (const Tensor& tensor : folder.plan().graph.tensors) {
    int64_t padding = 0;
    if (!tensor.view()) continue;
    for (const Piece& piece : tensor.view()->pieces) {
      if (piece.source == Piece::kPadding) padding += piece.elements();
    }
    elements += padding;
    tensors += padding > 0;
  }
  if (elements == 0) return;
  request.say(fmt::format("`{}`: {} of {} that its layout only pads with {} left out",
                          Escape(folder.path()), Count(elements, "element"),
                          Count(tensors, "tensor"), elements == 1 ? "is" : "are"),
              false);
}

// Throws Error (kUsage) if values change without `is_inexact`.
void RequireMayChange(const ConversionRequest& request, const std::vector<std::string>& changed) {
  if (changed.empty() || request.is_inexact) return;
  throw Error(ExitCode::kUsage,
              fmt::format("the values of {} change, such as those of `{}`: the layout's trainer "
                          "multiplies or adds to them, and rounding may lose bits",
                          Count(std::ssize(changed), "tensor"), changed.front()),
              "`--inexact` changes them, and reports how many elements cannot be restored");
}

// Relates the folder to the model's spec in the two layouts.
Conversion InLayouts(TensorFolder folder, Plan kept, const ConversionRequest& request) {
  std::set<std::string> all;
  for (const Tensor& tensor : folder.plan().graph.tensors) all.insert(std::string(tensor.path()));
  TensorFolder held = std::move(folder).WithPlan(std::move(kept));
  const bool is_same = request.from_layout == request.to_layout;
  Plan from = request.load(held, request.from_layout, is_same);
  std::vector<std::string> changes;
  TensorFolder fit = FitNames(from, std::move(held), &changes);
  for (const std::string& change : changes) {
    request.say(fmt::format("`{}`: {}", Escape(fit.path()), Escape(change)), false);
  }
  std::optional<Plan> other;
  if (!is_same) other = request.load(fit, request.to_layout, true);
  Relayout both =
      RelayoutOf(fit.plan(), std::move(from), std::move(other), [&](const std::string& path) {
        return all.contains(path) && MatchesAny(request.drop, path);
      });
  RequireMayChange(request, both.changed);
  Conversion conversion = {std::move(fit).WithPlan(std::move(both.from)), std::move(both.to)};
  RequireAlike(conversion.from);
  SayPadding(request, conversion.from);
  return conversion;
}

// Returns whether a tensor has the scales of tensors of 8 or 4 bits.
bool IsScale(const Tensor& tensor) {
  return tensor.path().ends_with("_scale_inv") || tensor.path().ends_with("_scale") ||
         tensor.path().ends_with("_scales") || tensor.path().ends_with(".scales");
}

// Applies the scales of tensors of 8 and 4 bits, if another type was requested. Sets `*widened` to
// the number of tensors that now have that type.
TensorFolder Widened(TensorFolder folder, const ConversionRequest& request, int64_t* widened) {
  *widened = 0;
  if (!request.dtype) return folder;
  const auto is_dropped = [&](const std::string& path) { return MatchesAny(request.drop, path); };
  if (InfoOf(*request.dtype).bytes > 1) {
    return std::move(folder).Widen(*request.dtype, is_dropped, widened);
  }
  RequireReadable(folder.plan(), is_dropped);
  return folder;
}

// Gives the tensors the requested type and reports how many change; `widened` already have it.
Plan Retyped(const ConversionRequest& request, Plan to, int64_t widened) {
  if (!request.dtype) return to;
  const DType dtype = *request.dtype;
  const std::string_view name = InfoOf(dtype).name;
  int64_t changed = 0, kept = 0;
  Plan retyped = WithTypes(std::move(to), [&](const Tensor& tensor) {
    const DTypeInfo& info = InfoOf(tensor.dtype());
    if (tensor.dtype() == dtype) return dtype;
    const bool changes = info.is_float() && info.bytes > 1 && !IsScale(tensor);
    ++(changes ? changed : kept);
    return changes ? dtype : tensor.dtype();
  });
  if (widened > 0) {
    request.say(fmt::format("{} with scales {} {}", Count(widened, "tensor"),
                            widened == 1 ? "becomes" : "become", name),
                true);
  }
  request.say(fmt::format("{} become{} {}; {} of other types stay{}", Count(changed, "tensor"),
                          changed == 1 ? "s" : "", name, Grouped(kept), kept == 1 ? "s" : ""),
              true);
  return retyped;
}

}  // namespace

Conversion PlanConversion(TensorFolder folder, const ConversionRequest& request) {
  int64_t widened;
  TensorFolder wide = Widened(std::move(folder), request, &widened);
  Plan kept = WithoutDropped(request, wide);
  Conversion conversion = request.load ? InLayouts(std::move(wide), std::move(kept), request)
                                       : Conversion{std::move(wide), request.shard(kept)};
  conversion.to = Retyped(request, std::move(conversion.to), widened);
  return conversion;
}

}  // namespace shardinit
