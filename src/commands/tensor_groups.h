// Shows tensors on pages, in groups that differ only in the numbers of their paths.
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

// Returns the groups of the outline, which must outlive them, in its order.
std::vector<TensorGroup> GroupsOf(const Outline& outline);

// Both are called with the number of a group.
struct TreemapStyle {
  std::string id;
  std::function<HtmlColours(size_t)> colours_of;
  std::function<std::string(size_t)> link_of = nullptr;
};

// Adds treemaps of the groups' bytes. A model may have groups that are a million times as large as
// others: what would be too small to see in one treemap has the next for itself.
void AddTreemaps(const std::vector<TensorGroup>& groups, const TreemapStyle& style, HtmlPage* page);

}  // namespace shardinit
