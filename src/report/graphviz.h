// Writes drawings in Graphviz's language: boxes, clusters of boxes, and arrows between boxes.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

namespace shardinit {

class Graphviz {
 public:
  Graphviz(const std::string& name, const std::string& title);

  // The lines of a label, which may be any text.
  using Label = std::vector<std::string>;

  // Nodes and clusters added before EndCluster() are inside the cluster.
  void BeginCluster(const Label& label);
  void EndCluster();

  // Returns the node's number. The node is a box, unless `shape` names another Graphviz shape.
  int64_t Node(const Label& label, std::string_view shape = {});
  // Adds a node outside all clusters.
  int64_t OuterNode(const Label& label, std::string_view shape);

  // Draws equal arrows only once.
  void Arrow(int64_t from, int64_t to, const std::string& label);

  std::string Finish();

 private:
  void AddLine(std::string_view text);

  std::string out_;
  std::vector<std::string> outer_nodes_;
  std::set<std::tuple<int64_t, int64_t, std::string>> arrows_;
  size_t level_ = 1;
  int64_t nodes_ = 0, clusters_ = 0;
};

}  // namespace shardinit
