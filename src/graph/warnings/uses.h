// The names that a spec uses, wherever it may: also in layouts that are not chosen, and in tensors
// that a `when` leaves out.
#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "spec/spec.h"

namespace shardinit {

struct NameUses {
  std::set<std::string> variables;     // and other names in expressions
  std::set<std::string> initializers;  // names after `init`, and of initializers that others name
  std::map<std::string, std::vector<Span>> axes;  // logical axes of tensors
  std::set<std::string> of_sharding;              // words of `rules` and `sharding`
  std::set<std::string> of_dimensions;            // logical axes that `in_axis` and its like name
};

NameUses UsesOf(const ModelSpec& spec);

}  // namespace shardinit
