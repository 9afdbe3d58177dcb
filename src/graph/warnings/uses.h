// Collects the names that a spec uses anywhere, including in layouts that are not chosen and in
// tensors that a `when` leaves out.
#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "spec/spec.h"

namespace shardinit {

struct NameUses {
  std::set<std::string> variables;     // and other names in expressions
  std::set<std::string> initializers;  // in `init`, and in initializers that refer to others
  std::map<std::string, std::vector<Span>> axes;  // logical axes of tensors
  std::set<std::string> of_sharding;              // words in `rules` and `sharding`
  std::set<std::string> of_dimensions;            // logical axes in `in_axis` etc.
};

NameUses UsesOf(const ModelSpec& spec);

}  // namespace shardinit
