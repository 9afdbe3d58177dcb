// The third pass: how the tensors of a graph are cut over its mesh.
#pragma once

#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "graph/building.h"
#include "graph/explanation.h"

namespace shardinit {

using AxisNames = std::vector<Located<std::string>>;  // One per dimension; an empty name: none.

// A way to say how tensors are cut that do not say it themselves, by `shard`. Rules on logical axes
// are one (graph/rule_language.h). One that looks at the graph as a whole does so when it is made.
class ShardingLanguage {
 public:
  virtual ~ShardingLanguage() = default;
  // One entry per dimension; or reports why not, once for all tensors that have the mistake, and
  // returns nothing. `axes` lives as long as the spec. `notes` may be null.
  virtual std::optional<PartitionSpec> Shard(std::string_view path, const Shape& shape,
                                             const AxisNames& axes, ShardingNotes* notes) = 0;
  // Reports what it says of no tensor. After all tensors.
  virtual void CheckUse() = 0;
};

// The mesh axes of one dimension or rule; those in `used` may not be used again.
std::vector<int> BindAxes(const AxisList& list, const Mesh& mesh, std::vector<int>* used,
                          const Building& building);

class Sharder {
 public:
  Sharder(Building& building, const Mesh& mesh);

  // A tensor whose spec says nothing stays as it is. Mistakes are reported once for each spec of a
  // tensor, whatever the repeats around it.
  void Shard(WrittenTensors& written);
  void Explain(const TensorSpec& spec, const Tensor& tensor, ShardingNotes* notes);
  void CheckUse();

 private:
  std::optional<PartitionSpec> PartitionOf(const TensorSpec& spec, std::string_view path,
                                           const Shape& shape, ShardingNotes* notes);
  const PartitionSpec& ExplicitOf(const TensorSpec& spec);
  // Whether its segments have elements, and its pinned axes cut nothing.
  bool CheckFits(const TensorSpec& spec, const Span& place, const Tensor& tensor);
  void CheckDivides(const TensorSpec& spec, const Tensor& tensor);

  Building& building_;
  const Mesh& mesh_;
  std::unique_ptr<ShardingLanguage> language_;  // Null: the spec has none.
  std::unordered_map<const TensorSpec*, PartitionSpec> explicit_;
  std::set<const TensorSpec*> reported_;  // That do not fit, or are uneven.
};

}  // namespace shardinit
