// Turns the views of a layout (ViewSpec) into View.
#pragma once

#include <memory>
#include <optional>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/diagnostics.h"
#include "graph/building.h"
#include "graph/stored/view.h"
#include "spec/spec.h"

namespace shardinit {

// A view of a spec with resolved names and evaluated expressions.
struct LoweredView {
  std::shared_ptr<View> view;
  Viewed viewed;  // without its pieces, which moved to `view`

  const Tensor& First() const;  // the first drawn tensor
};

class ViewBinder {
 public:
  ViewBinder(std::shared_ptr<const std::vector<Tensor>> drawn, Building& building,
             PieceBudget* budget);

  std::optional<LoweredView> Lower(const ViewSpec& spec);
  // Returns the view of a tensor that is stored unchanged.
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
  const Tensor* first_ = nullptr;  // first drawn tensor of the current view
};

}  // namespace shardinit
