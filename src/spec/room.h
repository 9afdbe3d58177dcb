// Determines the keys and items that overrides may add to a mapping or list of a spec.
#pragma once

#include <string_view>
#include <vector>

#include "spec/keys.h"
#include "spec/yaml.h"

namespace shardinit {

// A step from a node into the value of its key. The node is null if an override creates it.
struct WayStep {
  const Node* from;
  std::string_view key;
};

struct AllowedContent {
  std::vector<SpecKey> keys = {};  // the keys of its table
  bool is_list = false;
  bool takes_names = false;  // accepts any other key; its value is checked when it is read
  bool has_members = false;  // keys are members of a module and may contain dots
};

// Returns the possible content of the node at the end of `way`, from the root. `at` is that node,
// or null if it is absent.
AllowedContent AllowedContentAt(const std::vector<WayStep>& way, const Node* at);

// Returns whether a member of `modules` or of a layout is a tensor, with its own table of keys.
bool IsWholeTensor(const Node* member);

}  // namespace shardinit
