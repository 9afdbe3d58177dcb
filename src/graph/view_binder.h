// The views of a layout: ViewSpec → View.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/diagnostics.h"
#include "graph/building.h"
#include "graph/view.h"
#include "spec/spec.h"

namespace shardinit {

// A view of a spec, its names looked up and its expressions evaluated.
struct LoweredView {
  std::shared_ptr<View> view;
  Viewed viewed;  // Without the pieces, which are the view's.

  const Tensor& First() const;  // Of those that it is of.
};

class ViewBinder {
 public:
  ViewBinder(std::shared_ptr<const std::vector<Tensor>> drawn, Building& building,
             PieceBudget* budget);

  // Reports what is wrong, and returns nothing.
  std::optional<LoweredView> Lower(const ViewSpec& spec);
  // The views of tensors that are kept as they are.
  LoweredView Keep(size_t tensor);

 private:
  std::optional<Viewed> LowerNode(const ViewSpec& spec, int depth, ViewNode* node);
  std::optional<Viewed> LowerTensor(const ViewSpec& spec, ViewNode* node);
  std::optional<Viewed> LowerOperation(const ViewSpec& spec, int depth, ViewNode* node);
  bool LowerOperands(const ViewSpec& spec, int depth, ViewNode* node, std::vector<Viewed>* of);
  bool BindArguments(const ViewSpec& spec, ViewNode* node);
  std::optional<ViewArgument> BindArgument(const ViewParameter& parameter,
                                           const ViewSpec::Argument& argument);
  LoweredView Finish(ViewNode root, Viewed viewed);

  const std::shared_ptr<const std::vector<Tensor>> drawn_;
  SpecScope& names_;
  Diagnostics& diagnostics_;
  std::unordered_map<std::string_view, size_t> by_path_;
  PieceBudget& budget_;
  const Tensor* first_ = nullptr;  // Of the view that is being lowered.
};

}  // namespace shardinit
