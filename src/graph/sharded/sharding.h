// The third pass: shards the tensors of a graph over its mesh.
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

// A tensor as seen by sharding languages.
struct TensorToShard {
  // Empty if path and shape are unknown: then languages check only its axes.
  std::string_view path;
  const Shape& shape;
  const AxisNames* axes;        // one per dimension, owned by the spec; null: none
  const PartitionSpec* before;  // its pins and, for a view, its sources' shardings; may be null
  bool is_view;
  bool says_stage;  // has a `stage` of its own
};

// The languages' decisions for a tensor so far.
struct TensorSharding {
  PartitionSpec partition;     // one sharding per dimension
  bool says_sharding = false;  // false: a view inherits the sharding of its sources
  bool is_pinned = false;      // its pins are final, even if it has no pins
};

// Decides how to shard tensors that have no `shard` of their own. Rules on logical axes are one
// language (graph/languages/rules.h); languages.cc lists all.
class ShardingLanguage {
 public:
  virtual ~ShardingLanguage() = default;
  // Called before tensors are sharded, with all of them (drawn ones, or a layout's) and their pins.
  // `fixed` has the partition of each tensor with its own `shard`, and null for other tensors.
  virtual void Look(const WrittenTensors& /*drawn*/,
                    const std::vector<const PartitionSpec*>& /*fixed*/) {}
  // Changes `sharding` if the language applies, and notes what decided. On an error, reports it
  // once for all tensors with that error and returns false.
  virtual bool Shard(const TensorToShard& tensor, TensorSharding* sharding) = 0;
  // Reports entries that apply to no tensor. Called after all drawn tensors are sharded.
  virtual void CheckUse() {}
  // Returns whether its framework allows a shorter last shard, so that `uneven` is not needed.
  virtual bool AllowsUneven() const { return false; }
  // Returns whether the language compares ways to shard a tensor.
  virtual bool Chooses() const { return false; }
  // Returns whether the language decides which ranks hold a tensor, which happens before any
  // Look().
  virtual bool Pins() const { return false; }
};

struct LanguageContext;  // graph/languages/languages.h

// The languages of a spec. Each refines the result of the previous one.
struct LanguageStack {
  std::shared_ptr<LanguageContext> context;
  std::vector<std::unique_ptr<ShardingLanguage>> languages;
  std::optional<UnevenSpec> uneven;
};

// Returns the mesh axes of one dimension or rule. Axes in `used` must not be used again.
std::vector<int> BindAxes(const AxisList& list, const Mesh& mesh, std::vector<int>* used,
                          const Building& building);

class Sharder {
 public:
  Sharder(Building& building, const Mesh& mesh);

  // Shards the tensors. A tensor whose spec does not shard it stays unchanged. Reports errors once
  // for each TensorSpec, regardless of enclosing repeats.
  void Shard(WrittenTensors& written);
  // Returns whether a view inherits its sources' sharding because nothing else decides.
  bool InheritsSharding(const TensorSpec& spec, const Tensor& tensor);
  void CheckUse();
  bool Chooses() const;

 private:
  // Settles pins, then shows all tensors to the languages. Called if a language chooses.
  void Look(WrittenTensors& written);
  void SettlePins(const TensorSpec& spec, Tensor& tensor);
  std::optional<TensorSharding> ShardingOf(const TensorSpec& spec, const TensorToShard& tensor);
  // Notes what languages do not note.
  void Note(const TensorSpec& spec, const Tensor& tensor);
  const PartitionSpec& ExplicitOf(const TensorSpec& spec);
  // Checks that each segment has elements and that no pinned axis shards the tensor.
  bool CheckFits(const TensorSpec& spec, const Span& place, const Tensor& tensor);
  const UnevenSpec* PolicyOf(const TensorSpec& spec) const;  // null: not given
  bool AllowsUneven(const TensorSpec& spec) const;
  // Reports uneven dimensions that are not allowed. Otherwise returns how the tensor is padded.
  std::optional<Padding> CheckDivides(const TensorSpec& spec, const Tensor& tensor);

  Building& building_;
  const Mesh& mesh_;
  LanguageStack stack_;
  std::unordered_map<const TensorSpec*, PartitionSpec> explicit_;
  std::map<const UnevenSpec*, std::optional<double>> paddings_;
  std::set<const TensorSpec*> reported_;  // specs that do not fit or are uneven
  std::vector<Setting> settled_;          // Look()'s notes on a tensor's pins
};

}  // namespace shardinit
