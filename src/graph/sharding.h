// The third pass: how the tensors of a graph are cut over its mesh.
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
#include "graph/explanation.h"

namespace shardinit {

using AxisNames = std::vector<Located<std::string>>;  // One per dimension; an empty name: none.

// What languages see of a tensor.
struct TensorToCut {
  std::string_view path;  // Empty: not known, nor is the shape. Only its axes are to be checked.
  const Shape& shape;
  const AxisNames* axes;        // One per dimension, living as long as the spec; null: it has none.
  const PartitionSpec* before;  // Of a view: of what it is of. Of all: its `stage`.
  bool is_view;
  bool says_stage;  // By itself.
};

// What languages have said of it so far.
struct Cutting {
  PartitionSpec partition;  // One cut for each dimension.
  bool says_cuts = false;   // If not, a view is cut as what it is of.
  bool is_pinned = false;   // Its stage is settled, or that it has none.
};

// A way to say how tensors are cut that do not say it themselves, by `shard`. Rules on logical axes
// are one (graph/languages/rules.h); languages.cc lists all.
class ShardingLanguage {
 public:
  virtual ~ShardingLanguage() = default;
  // Before tensors are cut, all that are drawn, with their pins, and how those are cut that say it
  // themselves; null for the others.
  virtual void Look(const WrittenTensors& /*drawn*/,
                    const std::vector<const PartitionSpec*>& /*fixed*/) {}
  // Changes `cutting` where it has something to say. Or reports why not, once for all tensors that
  // have the mistake, and returns false. `notes` may be null.
  virtual bool Cut(const TensorToCut& tensor, Cutting* cutting, ShardingNotes* notes) = 0;
  // Reports what it says of no tensor. After all tensors that are drawn.
  virtual void CheckUse() {}
  // Whether shorter last shards are what its system makes, so that nobody need ask for them.
  virtual bool AllowsUneven() const { return false; }
  // Whether it compares ways to cut a tensor.
  virtual bool Chooses() const { return false; }
  // Whether it says which ranks hold a tensor, which is settled before any Look.
  virtual bool Pins() const { return false; }
};

struct LanguageContext;  // graph/languages/languages.h

// What a spec says of all tensors: languages, each of which works on what the last one made.
struct LanguageStack {
  std::shared_ptr<LanguageContext> context;
  std::vector<std::unique_ptr<ShardingLanguage>> languages;
  std::optional<UnevenSpec> uneven;
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
  // Whether nothing but what it is a view of says how this tensor is cut.
  bool InheritsCuts(const TensorSpec& spec, const Tensor& tensor);
  void Explain(const TensorSpec& spec, const Tensor& tensor, ShardingNotes* notes);
  void CheckUse();
  // Whether a language compares ways to cut tensors.
  bool Chooses() const;

 private:
  // Lets languages that choose see all tensors.
  void Look(WrittenTensors& written);
  std::optional<Cutting> CuttingOf(const TensorSpec& spec, const TensorToCut& tensor,
                                   ShardingNotes* notes);
  const PartitionSpec& ExplicitOf(const TensorSpec& spec);
  // Whether its segments have elements, and its pinned axes cut nothing.
  bool CheckFits(const TensorSpec& spec, const Span& place, const Tensor& tensor);
  const UnevenSpec* PolicyOf(const TensorSpec& spec) const;  // Null: nothing is said.
  bool AllowsUneven(const TensorSpec& spec) const;
  // Reports what is uneven and may not be; or says how it is padded.
  std::optional<Padding> CheckDivides(const TensorSpec& spec, const Tensor& tensor);

  Building& building_;
  const Mesh& mesh_;
  LanguageStack stack_;
  std::unordered_map<const TensorSpec*, PartitionSpec> explicit_;
  std::map<const UnevenSpec*, std::optional<double>> paddings_;
  std::set<const TensorSpec*> reported_;  // That do not fit, or are uneven.
};

}  // namespace shardinit
