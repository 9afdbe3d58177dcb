// Relates the tensors that a folder holds to those of a model's spec, to store them in another
// layout.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "plan/plan.h"

namespace shardinit {

// The name of the source in plans of folders whose values no spec declares.
inline constexpr char kSourceName[] = "folder";

// Returns how the tensor of this name has its values.
Distribution ValuesOfSource(const std::string& name);
bool IsOfSource(const Tensor& tensor);
// Tells whether the plan has values of a folder that no spec declares, so that no `gen` makes them.
bool IsCopy(const Plan& plan);

// Returns whether the folder has the tensors that `from` stores, of the same shapes, and no others.
// It may lack tensors whose elements it has elsewhere.
bool IsStoredAs(const Plan& folder, Plan from);

struct Relayout {
  Plan from;  // The folder's tensors as what they hold of the model's.
  Plan to;    // the model's tensors as they are to be stored
  // The model's tensors whose values the two layouts have in other conventions.
  std::vector<std::string> changed;
};

// `folder` has the tensors as they are stored; `from` and `to` are plans of one spec, in the layout
// of the folder and in the new one; none: that is the same. Tensors keep the types that they have
// in the folder, which need not have those that are dropped. Throws Error (kUsage) if the folder is
// not stored as `from` says, or if the new layout leaves out any of it.
Relayout RelayoutOf(const Plan& folder, Plan from, std::optional<Plan> to,
                    const std::function<bool(const std::string& path)>& is_dropped);

// Gives the tensors of a model, and those that store them, other types. Throws Error (kUsage) if a
// stored tensor would have several.
Plan WithTypes(Plan plan, const std::function<DType(const Tensor& tensor)>& type_of);

}  // namespace shardinit
