// Says what a mapping or list of a spec has room for, for overrides that add to it.
#pragma once

#include <string_view>
#include <vector>

#include "spec/keys.h"
#include "spec/yaml.h"

namespace shardinit {

// A step from a node into the value of its key. The node is null where an override makes it.
struct WayStep {
  const Node* from;
  std::string_view key;
};

struct Room {
  std::vector<SpecKey> keys = {};  // those of its table
  bool is_list = false;
  bool takes_names = false;  // any other key, whose value is judged when it is read
  bool has_members = false;  // these keys are members of a module: they may hold dots
};

// Returns what the node at the end of `way`, from the root, may hold; `at` is null if it is absent.
Room RoomAt(const std::vector<WayStep>& way, const Node* at);

// Tells whether a member of `modules` or of a layout is a tensor, which has its own table of keys.
bool IsWholeTensor(const Node* member);

}  // namespace shardinit
