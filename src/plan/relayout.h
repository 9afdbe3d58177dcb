// Maps the tensors in a folder to the tensors of a model's spec, to store them in another layout.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "plan/plan.h"

namespace shardinit {

// The name of the source in plans for folders whose values no spec declares.
inline constexpr char kSourceName[] = "folder";

// Returns the distribution that takes values from the folder's tensor of the same name.
Distribution ValuesOfSource();
bool IsOfSource(const Tensor& tensor);
// Returns whether the plan takes values from a folder that no spec declares, so that `gen` cannot
// generate them.
bool IsCopy(const Plan& plan);

// Returns whether the folder has exactly the tensors that `from` stores, with the same shapes. It
// may lack tensors whose elements it also has elsewhere.
bool IsStoredAs(const Plan& folder, Plan from);

struct Relayout {
  Plan from;  // maps the folder's tensors to the model's
  Plan to;    // the model's tensors in the layout to write
  // The model's tensors that the two layouts store in different conventions.
  std::vector<std::string> changed;
};

// Maps the tensors of `folder`. `from` and `to` are plans of one spec, in the folder's layout and
// in the new one; without `to`, the layout stays the same. Tensors keep their types in the folder.
// The folder may lack dropped tensors. Throws Error (kUsage) if the folder is not stored as in
// `from`, or if the new layout omits any of it.
Relayout RelayoutOf(const Plan& folder, Plan from, std::optional<Plan> to,
                    const std::function<bool(const std::string& path)>& is_dropped);

// Changes the types of a model's tensors, and of the tensors that store them. Throws Error (kUsage)
// if a stored tensor would have several types.
Plan WithTypes(Plan plan, const std::function<DType(const Tensor& tensor)>& type_of);

}  // namespace shardinit
