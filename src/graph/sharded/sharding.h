// The third pass: how the tensors of a graph are sharded over its mesh.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "graph/building.h"

namespace shardinit {

using AxisNames = std::vector<Located<std::string>>;  // one per dimension; empty: no name

// A tensor as languages see it.
struct TensorToShard {
  // Empty if path and shape are unknown: then only its axes are checked.
  std::string_view path;
  const Shape& shape;
  const AxisNames* axes;  // one per dimension, owned by the spec; null: none
  const PartitionSpec*
      before;  // its pins and, for a view, the shardings of its sources; may be null
  bool is_view;
  bool says_stage;  // has a `stage` of its own
};

// The result of the languages for a tensor so far.
struct TensorSharding {
  PartitionSpec partition;     // one sharding per dimension
  bool says_sharding = false;  // false: a view is sharded as its sources are
  bool is_pinned = false;      // its pins are settled, even if there are none
};

// A way to say how tensors are sharded that have no `shard` of their own. Rules on logical axes are
// one (graph/languages/rules.h); languages.cc lists all.
class ShardingLanguage {
 public:
  virtual ~ShardingLanguage() = default;
  // Called before tensors are sharded, with all of them (drawn ones, or those of a layout) and
  // their pins. `fixed` has the partition of each tensor with a `shard` of its own, and null for
  // the others.
  virtual void Look(const WrittenTensors& /*drawn*/,
                    const std::vector<const PartitionSpec*>& /*fixed*/) {}
  // Changes `sharding` if it has something to say. On a mistake it reports why it cannot, once for
  // all tensors with the mistake, and returns false. It notes what decided.
  virtual bool Shard(const TensorToShard& tensor, TensorSharding* sharding) = 0;
  // Reports entries that apply to no tensor. Called after all drawn tensors are sharded.
  virtual void CheckUse() {}
  // Returns whether its framework makes shorter last shards, so that no one need ask for them.
  virtual bool AllowsUneven() const { return false; }
  // Returns whether it compares ways to shard a tensor.
  virtual bool Chooses() const { return false; }
  // Returns whether it says which ranks hold a tensor, which is settled before any Look().
  virtual bool Pins() const { return false; }
};

struct LanguageContext;  // graph/languages/languages.h

// The languages of a spec; each refines the result of the one before it.
struct LanguageStack {
  std::shared_ptr<LanguageContext> context;
  std::vector<std::unique_ptr<ShardingLanguage>> languages;
  std::optional<UnevenSpec> uneven;
};

// Returns the mesh axes of one dimension or rule; those in `used` may not be used again.
std::vector<int> BindAxes(const AxisList& list, const Mesh& mesh, std::vector<int>* used,
                          const Building& building);

class Sharder {
 public:
  Sharder(Building& building, const Mesh& mesh);

  // Shards the tensors; one whose spec says nothing stays as it is. Mistakes are reported once for
  // each TensorSpec, whatever the repeats around it.
  void Shard(WrittenTensors& written);
  // Returns whether a view is sharded as its sources are, because nothing else says how.
  bool InheritsSharding(const TensorSpec& spec, const Tensor& tensor);
  void CheckUse();
  bool Chooses() const;

 private:
  // Settles pins, then shows all tensors to the languages. Called if one of them chooses.
  void Look(WrittenTensors& written);
  void SettlePins(const TensorSpec& spec, Tensor& tensor);
  std::optional<TensorSharding> ShardingOf(const TensorSpec& spec, const TensorToShard& tensor);
  // Notes what languages do not.
  void Note(const TensorSpec& spec, const Tensor& tensor);
  const PartitionSpec& ExplicitOf(const TensorSpec& spec);
  // Checks that each segment has elements and that no pinned axis shards the tensor.
  bool CheckFits(const TensorSpec& spec, const Span& place, const Tensor& tensor);
  const UnevenSpec* PolicyOf(const TensorSpec& spec) const;  // null: nothing is said
  bool AllowsUneven(const TensorSpec& spec) const;
  // Reports uneven dimensions that are not allowed, or returns how the tensor is padded.
  std::optional<Padding> CheckDivides(const TensorSpec& spec, const Tensor& tensor);

  Building& building_;
  const Mesh& mesh_;
  LanguageStack stack_;
  std::unordered_map<const TensorSpec*, PartitionSpec> explicit_;
  std::map<const UnevenSpec*, std::optional<double>> paddings_;
  std::set<const TensorSpec*> reported_;  // specs that do not fit or are uneven
  std::vector<Setting> settled_;          // notes of Look() on the pins of a tensor
};

}  // namespace shardinit
