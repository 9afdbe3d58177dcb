#include "graph/stored/view_binder.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "base/suggest.h"
#include "base/table.h"
#include "graph/validate.h"

namespace shardinit {
namespace {

constexpr int64_t kMaxOperands = 1'000'000;

}  // namespace

const Tensor& LoweredView::First() const {
  const ViewNode* node = &view->root;
  while (node->operation != nullptr) node = &node->of.front();
  return (*view->drawn)[node->tensor];
}

ViewBinder::ViewBinder(std::shared_ptr<const std::vector<Tensor>> drawn, Building& building,
                       PieceBudget* budget)
    : drawn_(std::move(drawn)),
      names_(building.names),
      diagnostics_(building.diagnostics),
      budget_(*budget) {
  by_path_.reserve(drawn_->size());
  for (size_t i = 0; i < drawn_->size(); ++i) by_path_.emplace((*drawn_)[i].path(), i);
}

std::optional<LoweredView> ViewBinder::Lower(const ViewSpec& spec) {
  ViewNode root;
  first_ = nullptr;
  auto viewed = LowerNode(spec, 0, &root);
  if (!viewed) return {};
  for (const Piece& piece : viewed->arrangement.pieces) {
    // Every lowered view has a tensor. NOLINTNEXTLINE(clang-analyzer-core.NullDereference)
    const std::string misfit = MisfitOfPadding(piece.padding, first_->dtype());
    if (misfit.empty()) continue;
    return diagnostics_.Error(spec.span, misfit);
  }
  return Finish(std::move(root), std::move(*viewed));
}

LoweredView ViewBinder::Keep(size_t tensor) {
  return Finish({.tensor = tensor, .arguments = {}, .of = {}},
                ViewedTensor(tensor, (*drawn_)[tensor]));
}

LoweredView ViewBinder::Finish(ViewNode root, Viewed viewed) {
  auto view = std::make_shared<View>(View{drawn_, std::move(root), {}});
  view->pieces = std::move(viewed.arrangement.pieces);
  return {std::move(view), std::move(viewed)};
}

std::optional<Viewed> ViewBinder::LowerNode(const ViewSpec& spec, int depth, ViewNode* node) {
  return spec.path ? LowerTensor(spec, node) : LowerOperation(spec, depth, node);
}

std::optional<Viewed> ViewBinder::LowerTensor(const ViewSpec& spec, ViewNode* node) {
  const auto evaluated = EvaluatePath(*spec.path, names_, diagnostics_);
  if (!evaluated) return {};
  const std::string& path = *evaluated;
  const auto it = by_path_.find(path);
  if (it == by_path_.end()) {
    // A list of many paths does not help.
    constexpr size_t kMostListed = 8;
    const std::vector<std::string> paths = PathsOf(*drawn_);
    const bool is_listed = paths.size() <= kMostListed || !Closest(path, paths).empty();
    return diagnostics_.Error(
        spec.span, fmt::format("`modules` has no tensor `{}`", path),
        is_listed ? DidYouMean(path, paths)
                  : "leave the stored tensor out, with `when: false` next to its `from`");
  }
  const Tensor& tensor = (*drawn_)[it->second];
  if (first_ == nullptr) first_ = &tensor;
  if (tensor.dtype() != first_->dtype()) {
    return diagnostics_.Error(
        spec.span,
        fmt::format("`{}` is {}, but `{}`, in the same tensor, is {}", path,
                    InfoOf(tensor.dtype()).name, first_->path(), InfoOf(first_->dtype()).name),
        "a stored tensor has one dtype: make them equal under `modules`");
  }
  if (--budget_ <= 0) {
    return diagnostics_.Error(spec.span,
                              fmt::format("the layout falls into more than {} pieces", kMaxPieces));
  }
  node->tensor = it->second;
  return ViewedTensor(it->second, tensor);
}

std::optional<Viewed> ViewBinder::LowerOperation(const ViewSpec& spec, int depth, ViewNode* node) {
  const Located<std::string>& name = spec.operation;
  node->operation = FindViewOperation(name.value);
  if (node->operation == nullptr) {
    return diagnostics_.Error(name.span, fmt::format("unknown operation `{}`", name.value),
                              DidYouMean(name.value, NamesOf(ViewOperations())));
  }
  if (depth == kMaxViewDepth) {
    return diagnostics_.Error(name.span,
                              fmt::format("more than {} nested operations", kMaxViewDepth));
  }
  if (!node->operation->many && (spec.is_list || spec.loop)) {
    return diagnostics_.Error(name.span,
                              fmt::format("`{}` takes one tensor, not a list", name.value),
                              "write `of: PATH` or `of: {OPERATION: …}`");
  }
  const bool bound = BindArguments(spec, node);
  std::vector<Viewed> of;
  if (!LowerOperands(spec, depth, node, &of) || !bound) return {};
  ViewProblem problem;
  auto viewed = Apply(*node->operation, std::move(of), node->arguments, &budget_, &problem);
  if (viewed) {
    node->shape = viewed->arrangement.shape;
    return viewed;
  }
  Span span = name.span;
  if (problem.parameter >= 0) {
    const auto& parameter = node->operation->parameters[static_cast<size_t>(problem.parameter)];
    for (const ViewSpec::Argument& argument : spec.arguments) {
      if (argument.name.value == parameter.name) span = argument.name.span;
    }
  }
  return diagnostics_.Error(span, problem.message, problem.hint);
}

bool ViewBinder::LowerOperands(const ViewSpec& spec, int depth, ViewNode* node,
                               std::vector<Viewed>* of) {
  const auto lower_all = [&] {
    bool good = !spec.of.empty();
    for (const ViewSpec& operand : spec.of) {
      auto viewed = LowerNode(operand, depth + 1, &node->of.emplace_back());
      good = good && viewed;
      if (viewed) of->push_back(std::move(*viewed));
    }
    return good;
  };
  if (!spec.loop) return lower_all();
  const std::string& variable = spec.loop->name.value;
  if (names_.Has(variable)) {
    return diagnostics_.Error(
        spec.loop->name.span,
        fmt::format("`{}` already names a variable or an outer repeat", variable),
        "choose another name");
  }
  if (!spec.loop->value) return false;
  const auto count = EvaluateInteger(*spec.loop->value, names_, 1, kMaxOperands,
                                     fmt::format("the count of `{}`", variable), diagnostics_);
  if (!count) return false;
  SpecScope::Loop loop(names_, variable);
  bool good = true;
  for (int64_t i = 0; i < *count && good; ++i) {
    loop.Set(i);
    good = lower_all();
  }
  return good;
}

bool ViewBinder::BindArguments(const ViewSpec& spec, ViewNode* node) {
  const std::vector<ViewParameter>& parameters = node->operation->parameters;
  bool good = true;
  for (const ViewSpec::Argument& argument : spec.arguments) {
    if (FindNamed(parameters, argument.name.value) != nullptr) continue;
    std::vector<std::string> names = NamesOf(parameters);
    if (node->operation->many) names.insert(names.begin(), "for");
    names.insert(names.begin(), "of");
    diagnostics_.Error(
        argument.name.span,
        fmt::format("`{}` has no argument `{}`", node->operation->name, argument.name.value),
        DidYouMean(argument.name.value, names));
    good = false;
  }
  const bool misspelt = !good;
  for (const ViewParameter& parameter : parameters) {
    const auto it = std::ranges::find_if(
        spec.arguments, [&](const auto& a) { return a.name.value == parameter.name; });
    std::optional<ViewArgument> value = parameter.default_value;
    if (it != spec.arguments.end()) {
      value = BindArgument(parameter, *it);
    } else if (!value && !misspelt) {  // else the misspelt one was probably intended
      diagnostics_.Error(spec.operation.span,
                         fmt::format("`{}` needs `{}`", node->operation->name, parameter.name));
    }
    good = good && value;
    node->arguments.push_back(value.value_or(int64_t{0}));
  }
  return good;
}

std::optional<ViewArgument> ViewBinder::BindArgument(const ViewParameter& parameter,
                                                     const ViewSpec::Argument& argument) {
  const bool wants_list = parameter.kind == ViewParameter::kIntegers;
  if (argument.is_list != wants_list) {
    return diagnostics_.Error(argument.name.span,
                              wants_list ? fmt::format("`{}` must be a list", parameter.name)
                                         : fmt::format("`{}` must be one number", parameter.name));
  }
  std::vector<int64_t> integers;
  for (const ExprPtr& value : argument.values) {
    if (value == nullptr) return {};
    if (parameter.kind == ViewParameter::kNumber) {
      const auto number = EvaluateNumber(*value, names_, diagnostics_);
      if (!number) return {};
      return *number;
    }
    const auto integer = EvaluateInteger(*value, names_, std::numeric_limits<int64_t>::min(),
                                         std::numeric_limits<int64_t>::max(),
                                         fmt::format("`{}`", parameter.name), diagnostics_);
    if (!integer) return {};
    if (!wants_list) return *integer;
    integers.push_back(*integer);
  }
  return integers;
}

}  // namespace shardinit
