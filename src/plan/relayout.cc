#include "plan/relayout.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <memory>
#include <set>

#include "base/error.h"
#include "graph/stored/view.h"
#include "rng/engines.h"
#include "tensor/coverage.h"

namespace shardinit {
namespace {

// The type of each of the model's tensors, by path.
using TensorTypes = std::map<std::string, DType, std::less<>>;

std::string LayoutText(const Plan& plan) {
  return plan.graph.layout.empty() ? "the model's own names"
                                   : fmt::format("the layout `{}`", plan.graph.layout);
}

// Calls `visit` with each of the model's tensors of which the stored tensor holds elements.
template <typename F>
void ForEachHeld(const Tensor& stored, F visit) {
  if (!stored.view()) return visit(stored);
  std::set<int64_t> sources;
  for (const Piece& piece : stored.view()->pieces) {
    if (piece.source != Piece::kPadding) sources.insert(piece.source);
  }
  for (const int64_t source : sources) visit((*stored.view()->drawn)[static_cast<size_t>(source)]);
}

// Counts, by path, the elements of each of the model's tensors that a plan stores. A count is
// nullopt if counting would take minutes.
std::map<std::string, std::optional<int64_t>, std::less<>> CountStored(const Plan& plan) {
  std::map<std::string, std::optional<int64_t>, std::less<>> counts;
  if (!plan.graph.drawn) {
    for (const Tensor& tensor : plan.graph.tensors)
      counts[std::string(tensor.path())] = tensor.elements();
    return counts;
  }
  std::vector<std::vector<const Piece*>> pieces(plan.graph.drawn->size());
  for (const Tensor& stored : plan.graph.tensors) {
    for (const Piece& piece : stored.view()->pieces) {
      if (piece.source != Piece::kPadding) {
        pieces[static_cast<size_t>(piece.source)].push_back(&piece);
      }
    }
  }
  for (size_t i = 0; i < pieces.size(); ++i) {
    if (!pieces[i].empty())
      counts[std::string((*plan.graph.drawn)[i].path())] = CountHeld(pieces[i]);
  }
  return counts;
}

// Removes tensors from `from` that the folder lacks, if the folder has all their elements
// elsewhere. A norm may have either of two names, and a tied head may be absent.
void TakeOutTwins(const Plan& folder, Plan* from) {
  if (!from->graph.drawn) return;
  std::set<std::string_view> there;
  for (const Tensor& tensor : folder.graph.tensors) there.insert(tensor.path());
  const auto is_missing = [&](const Tensor& tensor) { return !there.contains(tensor.path()); };
  if (std::none_of(from->graph.tensors.begin(), from->graph.tensors.end(), is_missing)) return;
  Plan rest = *from;
  std::erase_if(rest.graph.tensors, is_missing);
  const auto all = CountStored(*from), left = CountStored(rest);
  std::erase_if(from->graph.tensors, [&](const Tensor& tensor) {
    if (there.contains(tensor.path())) return false;
    bool is_elsewhere = true;
    ForEachHeld(tensor, [&](const Tensor& of) {
      const auto found = left.find(of.path());
      is_elsewhere &=
          found != left.end() && found->second && found->second == all.find(of.path())->second;
    });
    return is_elsewhere;
  });
}

// Returns an error unless both have the same tensors with the same shapes.
std::optional<Error> FindUnlike(const Plan& folder, const Plan& from) {
  std::map<std::string_view, const Tensor*> there;
  for (const Tensor& tensor : folder.graph.tensors) there.emplace(tensor.path(), &tensor);
  for (const Tensor& tensor : from.graph.tensors) {
    const auto found = there.find(tensor.path());
    if (found == there.end()) {
      return Usage(fmt::format("the folder has no `{}`, which is in {} of `{}`", tensor.path(),
                               LayoutText(from), from.graph.name),
                   "give the folder's layout, with `--from-layout`");
    }
    const Shape& shape = found->second->shape();
    if (shape != tensor.shape()) {
      return Usage(fmt::format("`{}` is [{}] in the folder, but [{}] in {} of `{}`", tensor.path(),
                               fmt::join(shape, ", "), fmt::join(tensor.shape(), ", "),
                               LayoutText(from), from.graph.name),
                   "give the spec of the model that is in the folder, with `--spec` and `--set`");
    }
    there.erase(found);
  }
  if (there.empty()) return std::nullopt;
  return Usage(
      fmt::format("`{}` is in the folder, but not in {} of `{}`{}", there.begin()->first,
                  LayoutText(from), from.graph.name,
                  there.size() == 1 ? "" : fmt::format(" (and {} more)", there.size() - 1)),
      "leave it out with `--drop`, or give another `--from-layout`");
}

TensorTypes FindTypes(const Plan& folder, const Plan& from) {
  std::map<std::string_view, const Tensor*> there;
  for (const Tensor& tensor : folder.graph.tensors) there.emplace(tensor.path(), &tensor);
  TensorTypes known;
  for (const Tensor& stored : from.graph.tensors) {
    const DType dtype = there.at(stored.path())->dtype();
    ForEachHeld(stored, [&](const Tensor& of) {
      const auto [place, is_new] = known.emplace(of.path(), dtype);
      if (is_new || place->second == dtype) return;
      throw Usage(fmt::format("the folder has parts of `{}` as {} and as {}", of.path(),
                              InfoOf(place->second).name, InfoOf(dtype).name));
    });
  }
  return known;
}

// Sets the types and values of the model's tensors and of the stored tensors. Tensors that the
// folder lacks are not stored, and nothing is drawn for them.
void SetTypesAndValues(const TensorTypes& known, InitGraph* graph) {
  FormPool forms;
  const auto take = [&](Tensor* tensor) {
    if (const auto found = known.find(tensor->path()); found != known.end()) {
      tensor->Edit().dtype = found->second;
    }
    tensor->Edit().distribution = ValuesOfSource();
    forms.ShareForm(*tensor);
    tensor->set_stream({});
    tensor->set_key({});
    tensor->set_measured(nullptr);
  };
  if (!graph->drawn) {
    for (Tensor& tensor : graph->tensors) take(&tensor);
    return;
  }
  auto drawn = std::make_shared<std::vector<Tensor>>(*graph->drawn);
  for (Tensor& tensor : *drawn) take(&tensor);
  for (Tensor& stored : graph->tensors) {
    if (!stored.view()) {
      take(&stored);
      continue;
    }
    const Tensor* first = nullptr;
    ForEachHeld(stored, [&](const Tensor& of) {
      const Tensor& now = (*drawn)[static_cast<size_t>(&of - stored.view()->drawn->data())];
      if (first == nullptr) first = &now;
      if (first->dtype() == now.dtype()) return;
      throw Usage(fmt::format("layout `{}` puts `{}` ({}) and `{}` ({}) together in `{}`",
                              graph->layout, first->path(), InfoOf(first->dtype()).name, now.path(),
                              InfoOf(now.dtype()).name, stored.path()));
    });
    View view = *stored.view();
    view.drawn = drawn;
    stored.set_view(std::make_shared<View>(std::move(view)));
    if (first != nullptr) stored.Edit().dtype = first->dtype();
  }
  graph->drawn = std::move(drawn);
}

// Throws if the new layout omits any part of the model that the folder has.
void RequireKept(const Plan& from, const Plan& to) {
  const auto kept = CountStored(to);
  for (const auto& [path, elements] : CountStored(from)) {
    const auto found = kept.find(path);
    if (found == kept.end()) {
      throw Usage(fmt::format("`{}` is in the folder, but not in {} of `{}`", path, LayoutText(to),
                              to.graph.name),
                  "leave it out with `--drop`");
    }
    if (elements && found->second == elements) continue;
    const auto text = [](const std::optional<int64_t>& count) {
      return count ? fmt::format("{}", *count) : "an unknown number";
    };
    throw Usage(
        fmt::format("{} of `{}` stores {} of the {} elements of `{}` in the folder", LayoutText(to),
                    to.graph.name, text(found->second), text(elements), path),
        "give a `--layout` that stores all of them");
  }
}

// Returns, by path, the convention in which a plan stores each of the model's tensors.
std::map<std::string, Convention> ConventionsOf(const Plan& plan) {
  std::map<std::string, Convention> conventions;
  for (const Tensor& stored : plan.graph.tensors) {
    ForEachHeld(stored, [&](const Tensor& of) {
      const auto [place, is_new] = conventions.emplace(of.path(), stored.convention());
      if (is_new || place->second == stored.convention()) return;
      throw Usage(fmt::format("{} of `{}` has parts of `{}` in two conventions", LayoutText(plan),
                              plan.graph.name, of.path()));
    });
  }
  return conventions;
}

std::vector<std::string> ChangedBetween(const Plan& from, const Plan& to) {
  std::vector<std::string> changed;
  const std::map<std::string, Convention> there = ConventionsOf(to);
  for (const auto& [path, convention] : ConventionsOf(from)) {
    const auto found = there.find(path);
    if (found != there.end() && found->second != convention &&
        (found->second.changes() || convention.changes())) {
      changed.push_back(path);
    }
  }
  return changed;
}

}  // namespace

Distribution ValuesOfSource() { return FromSource{.source = kSourceName, .tensor = ""}; }

bool IsOfSource(const Tensor& tensor) {
  return std::holds_alternative<FromSource>(tensor.distribution());
}

bool IsCopy(const Plan& plan) {
  return plan.graph.sources.empty() && std::ranges::any_of(plan.graph.logical(), IsOfSource);
}

bool IsStoredAs(const Plan& folder, Plan from) {
  TakeOutTwins(folder, &from);
  return !FindUnlike(folder, from);
}

Relayout RelayoutOf(const Plan& folder, Plan from, std::optional<Plan> other,
                    const std::function<bool(const std::string& path)>& is_dropped) {
  // Large plans take much memory, so make a second one only if the two differ.
  std::set<std::string_view> there;
  for (const Tensor& tensor : folder.graph.tensors) there.insert(tensor.path());
  const bool is_same =
      !other &&
      std::all_of(from.graph.tensors.begin(), from.graph.tensors.end(), [&](const Tensor& tensor) {
        return there.contains(tensor.path()) && !is_dropped(std::string(tensor.path()));
      });
  Plan to;
  if (!is_same) to = other ? *std::move(other) : from;
  std::erase_if(from.graph.tensors,
                [&](const Tensor& tensor) { return is_dropped(std::string(tensor.path())); });
  TakeOutTwins(folder, &from);
  if (const auto unlike = FindUnlike(folder, from)) throw Error(*unlike);
  const TensorTypes known = FindTypes(folder, from);
  if (!is_same) RequireKept(from, to);
  SetTypesAndValues(known, &from.graph);
  from.graph.tensors.shrink_to_fit();
  if (is_same) {
    to = from;  // both share the views
  } else {
    SetTypesAndValues(known, &to.graph);
  }
  for (Plan* plan : {&from, &to}) {
    plan->graph.engine = kPhilox4x32.name;  // draws nothing
    plan->graph.seed = 0;
  }
  std::vector<std::string> changed = ChangedBetween(from, to);
  return {MakePlan(std::move(from.graph)), MakePlan(std::move(to.graph)), std::move(changed)};
}

Plan WithTypes(Plan plan, const std::function<DType(const Tensor& tensor)>& type_of) {
  TensorTypes known;
  for (const Tensor& tensor : plan.graph.logical()) known.emplace(tensor.path(), type_of(tensor));
  SetTypesAndValues(known, &plan.graph);
  return MakePlan(std::move(plan.graph));
}

}  // namespace shardinit
