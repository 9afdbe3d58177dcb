// Shows tensors on pages, in groups whose paths differ only in numbers.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "graph/outline.h"
#include "report/html.h"

namespace shardinit {

struct TensorGroup {
  std::string name;
  const Outline* outline;
};

// Returns the groups in the order of `outline`, which must outlive them.
std::vector<TensorGroup> GroupsOf(const Outline& outline);

// Both functions take the index of a group.
struct TreemapStyle {
  std::string id;
  std::function<HtmlColours(size_t)> colours_of;
  std::function<std::string(size_t)> link_of = nullptr;
};

// Adds treemaps of the groups' bytes. Some groups may be a million times as large as others. Groups
// that are too small to see in one treemap fill the next one.
void AddTreemaps(const std::vector<TensorGroup>& groups, const TreemapStyle& style, HtmlPage* page);

}  // namespace shardinit
