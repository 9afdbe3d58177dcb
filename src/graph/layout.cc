#include "graph/layout.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <span>

#include "base/glob.h"
#include "base/suggest.h"
#include "graph/validate.h"
#include "tensor/coverage.h"

namespace shardinit {
namespace {

constexpr int64_t kMaxOperands = 1'000'000;

// What of each drawn tensor is stored.
class PiecesOf {
 public:
  PiecesOf(const std::vector<Tensor>& stored, size_t drawn) : begins_(drawn + 2) {
    const auto for_each = [&](const auto& use) {
      for (const Tensor& tensor : stored) {
        for (const Piece& piece : tensor.view->pieces) {
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
  std::vector<size_t> begins_;  // Of each tensor's pieces.
  std::vector<const Piece*> pieces_;
};

}  // namespace

const Tensor& LoweredView::First() const {
  const ViewNode* node = &view->root;
  while (node->operation != nullptr) node = &node->of.front();
  return (*view->drawn)[node->tensor];
}

LayoutBuilder::LayoutBuilder(std::shared_ptr<const std::vector<Tensor>> drawn, SpecScope& names,
                             Diagnostics& diagnostics, PieceBudget* budget)
    : drawn_(std::move(drawn)), names_(names), diagnostics_(diagnostics), budget_(*budget) {
  by_path_.reserve(drawn_->size());
  for (size_t i = 0; i < drawn_->size(); ++i) by_path_.emplace((*drawn_)[i].path, i);
}

std::optional<LoweredView> LayoutBuilder::Lower(const ViewSpec& spec) {
  ViewNode root;
  first_ = nullptr;
  auto viewed = LowerNode(spec, 0, &root);
  if (!viewed) return {};
  for (const Piece& piece : viewed->arrangement.pieces) {
    const DTypeInfo& info = InfoOf(first_->dtype);
    if (MisfitOf(Constant{piece.padding}, first_->dtype).what.empty()) continue;
    diagnostics_.Error(
        spec.span, fmt::format("the padding is {}, but {} {}", piece.padding, info.name,
                               info.is_float() ? fmt::format("ends at {}", LargestOf(first_->dtype))
                                               : "holds " + WhatItHolds(first_->dtype)));
    return {};
  }
  return Finish(std::move(root), std::move(*viewed));
}

LoweredView LayoutBuilder::Keep(size_t tensor) {
  return Finish({.tensor = tensor, .arguments = {}, .of = {}},
                ViewedTensor(tensor, (*drawn_)[tensor]));
}

LoweredView LayoutBuilder::Finish(ViewNode root, Viewed viewed) {
  auto view = std::make_shared<View>(View{drawn_, std::move(root), {}});
  view->pieces = std::move(viewed.arrangement.pieces);
  return {std::move(view), std::move(viewed)};
}

void LayoutBuilder::CheckCoverage(const Located<std::string>& name, const LayoutSpec& layout,
                                  const std::vector<Tensor>& stored) {
  const PiecesOf pieces(stored, drawn_->size());
  std::vector<bool> omits(layout.omit.size());
  std::vector<size_t> missing;
  for (size_t i = 0; i < drawn_->size(); ++i) {
    const Tensor& tensor = (*drawn_)[i];
    if (CountHeld(pieces[i]) == tensor.elements()) continue;
    bool omitted = false;
    for (size_t g = 0; g < omits.size(); ++g) {
      if (!GlobMatches(layout.omit[g].value, tensor.path)) continue;
      omits[g] = omitted = true;
    }
    if (!omitted) missing.push_back(i);
  }
  for (size_t g = 0; g < omits.size(); ++g) {
    if (omits[g]) continue;
    diagnostics_.Error(layout.omit[g].span,
                       fmt::format("`omit` names `{}`, but layout `{}` leaves out no such tensor",
                                   layout.omit[g].value, name.value));
  }
  if (missing.empty()) return;
  const Tensor& tensor = (*drawn_)[missing.front()];
  const auto of = pieces[missing.front()];
  const auto held = CountHeld(of);
  if (!held) {
    diagnostics_.Error(name.span,
                       fmt::format("the {} pieces of `{}` in layout `{}` overlap in too many ways "
                                   "to tell whether they hold all of it",
                                   of.size(), tensor.path, name.value),
                       "store it from fewer slices, or list it under `omit`");
    return;
  }
  std::string what = fmt::format("layout `{}` holds nothing of `{}`", name.value, tensor.path);
  if (*held > 0) {
    int64_t stored_elements = 0;
    for (const Piece* piece : of) stored_elements += piece->elements();
    what = fmt::format("layout `{}` holds {} of the {} elements of `{}`{}", name.value, *held,
                       tensor.elements(), tensor.path,
                       stored_elements > *held ? ", some of them twice" : "");
  }
  if (missing.size() > 1) {
    what += fmt::format(", and not all of {} other{}", missing.size() - 1,
                        missing.size() == 2 ? "" : "s");
  }
  diagnostics_.Error(name.span, std::move(what), "add it, or list it under `omit`");
}

std::optional<Viewed> LayoutBuilder::LowerNode(const ViewSpec& spec, int depth, ViewNode* node) {
  return spec.path ? LowerTensor(spec, node) : LowerOperation(spec, depth, node);
}

std::optional<Viewed> LayoutBuilder::LowerTensor(const ViewSpec& spec, ViewNode* node) {
  std::string path;
  for (const PathSpec::Part& part : spec.path->parts) {
    path += part.text;
    if (part.number == nullptr) continue;
    const auto number =
        EvaluateInteger(*part.number, names_, 0, std::numeric_limits<int64_t>::max(),
                        "a number in a path", diagnostics_);
    if (!number) return {};
    path += fmt::format_int(*number).str();
  }
  const auto it = by_path_.find(path);
  if (it == by_path_.end()) {
    std::vector<std::string> known;
    for (const Tensor& tensor : *drawn_) known.push_back(tensor.path);
    diagnostics_.Error(spec.span, fmt::format("`modules` has no tensor `{}`", path),
                       DidYouMean(path, known));
    return {};
  }
  const Tensor& tensor = (*drawn_)[it->second];
  if (first_ == nullptr) first_ = &tensor;
  if (tensor.dtype != first_->dtype) {
    diagnostics_.Error(
        spec.span,
        fmt::format("`{}` is {}, but `{}`, in the same tensor, is {}", path,
                    InfoOf(tensor.dtype).name, first_->path, InfoOf(first_->dtype).name),
        "a stored tensor has one dtype: make them equal under `modules`");
    return {};
  }
  if (--budget_ <= 0) {
    diagnostics_.Error(spec.span,
                       fmt::format("the layout falls into more than {} pieces", kMaxPieces));
    return {};
  }
  node->tensor = it->second;
  return ViewedTensor(it->second, tensor);
}

std::optional<Viewed> LayoutBuilder::LowerOperation(const ViewSpec& spec, int depth,
                                                    ViewNode* node) {
  const Located<std::string>& name = spec.operation;
  node->operation = FindViewOperation(name.value);
  if (node->operation == nullptr) {
    diagnostics_.Error(name.span, fmt::format("unknown operation `{}`", name.value),
                       DidYouMean(name.value, ViewOperationNames()));
    return {};
  }
  if (depth == kMaxViewDepth) {
    diagnostics_.Error(name.span,
                       fmt::format("more than {} operations within one another", kMaxViewDepth));
    return {};
  }
  if (!node->operation->many && (spec.is_list || spec.loop)) {
    diagnostics_.Error(name.span, fmt::format("`{}` takes one tensor, not a list", name.value),
                       "write `of: PATH` or `of: {OPERATION: …}`");
    return {};
  }
  const bool bound = BindArguments(spec, node);
  std::vector<Viewed> of;
  if (!LowerOperands(spec, depth, node, &of) || !bound) return {};
  ViewProblem problem;
  auto viewed = Apply(*node->operation, std::move(of), node->arguments, &budget_, &problem);
  if (viewed) return viewed;
  Span span = name.span;
  if (problem.parameter >= 0) {
    const auto& parameter = node->operation->parameters[static_cast<size_t>(problem.parameter)];
    for (const ViewSpec::Argument& argument : spec.arguments) {
      if (argument.name.value == parameter.name) span = argument.name.span;
    }
  }
  diagnostics_.Error(span, problem.message, problem.hint);
  return {};
}

bool LayoutBuilder::LowerOperands(const ViewSpec& spec, int depth, ViewNode* node,
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
    diagnostics_.Error(spec.loop->name.span,
                       fmt::format("`{}` already names a variable or an outer repeat", variable),
                       "choose another name");
    return false;
  }
  if (!spec.loop->value) return false;
  const auto count = EvaluateInteger(*spec.loop->value, names_, 1, kMaxOperands,
                                     fmt::format("the count of `{}`", variable), diagnostics_);
  if (!count) return false;
  names_.repeats().emplace_back(variable, 0);
  bool good = true;
  for (int64_t i = 0; i < *count && good; ++i) {
    names_.repeats().back().second = i;
    good = lower_all();
  }
  names_.repeats().pop_back();
  return good;
}

bool LayoutBuilder::BindArguments(const ViewSpec& spec, ViewNode* node) {
  const std::vector<ViewParameter>& parameters = node->operation->parameters;
  bool good = true;
  for (const ViewSpec::Argument& argument : spec.arguments) {
    const auto known =
        std::any_of(parameters.begin(), parameters.end(),
                    [&](const ViewParameter& p) { return p.name == argument.name.value; });
    if (known) continue;
    std::vector<std::string> names = {"of"};
    if (node->operation->many) names.emplace_back("for");
    for (const ViewParameter& parameter : parameters) names.emplace_back(parameter.name);
    diagnostics_.Error(
        argument.name.span,
        fmt::format("`{}` has no argument `{}`", node->operation->name, argument.name.value),
        DidYouMean(argument.name.value, names));
    good = false;
  }
  const bool misspelt = !good;
  for (const ViewParameter& parameter : parameters) {
    const auto it = std::find_if(spec.arguments.begin(), spec.arguments.end(),
                                 [&](const auto& a) { return a.name.value == parameter.name; });
    std::optional<ViewArgument> value = parameter.default_value;
    if (it != spec.arguments.end()) {
      value = BindArgument(parameter, *it);
    } else if (!value && !misspelt) {  // Else that one was probably meant to be this.
      diagnostics_.Error(spec.operation.span,
                         fmt::format("`{}` needs `{}`", node->operation->name, parameter.name));
    }
    good = good && value;
    node->arguments.push_back(value.value_or(int64_t{0}));
  }
  return good;
}

std::optional<ViewArgument> LayoutBuilder::BindArgument(const ViewParameter& parameter,
                                                        const ViewSpec::Argument& argument) {
  const bool wants_list = parameter.kind == ViewParameter::kIntegers;
  if (argument.is_list != wants_list) {
    diagnostics_.Error(argument.name.span,
                       wants_list ? fmt::format("`{}` must be a list", parameter.name)
                                  : fmt::format("`{}` must be one number", parameter.name));
    return {};
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
