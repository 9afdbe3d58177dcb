// Draws in the language of Graphviz: boxes, clusters of them, and arrows between boxes.
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

  // A label is lines of any text.
  using Label = std::vector<std::string>;

  // Nodes and clusters that begin before the cluster ends are within it.
  void BeginCluster(const Label& label);
  void EndCluster();

  // Returns the node's number. It is a box, if no other shape of Graphviz is named.
  int64_t Node(const Label& label, std::string_view shape = {});
  // Adds a node outside of all clusters.
  int64_t OuterNode(const Label& label, std::string_view shape);

  // Draws arrows that are equal once.
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
