// The explanation of one tensor: the places in the spec and on the command line that decided it.
// Each pass takes notes on request (graph/explain.h), so the graph itself need not know places.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/source.h"
#include "init/fans.h"
#include "sharding/partition.h"

namespace shardinit {

struct View;

// A value that was written: `text` as it stands at `span`, which has no source if it is a default.
struct Setting {
  std::string name, text, value;
  Span span;
};

// Notes on a tensor's values.
struct InitNotes {
  std::vector<Setting> initializers;  // from the tensor's own to the tool's
  std::vector<Setting> arguments;
  Setting fans;                  // `fans` or axes that the spec gives
  std::vector<Working> working;  // steps from the arguments to the distribution
};

struct DrawNotes : InitNotes {
  std::vector<Setting> dimensions;  // name: logical axis; text: expression; value: extent
  Span dtype, key;
};

struct ShardingNotes {
  // One way to cut the tensor together with its block, while all other blocks stay as they are.
  struct Alternative {
    PartitionSpec partition;
    double seconds, padding, memory;  // cost of the whole model (autoshard/cost.h)
    bool fits;                        // within the memory of a rank
  };

  // A rule, a pattern or a language that was tried on one dimension of the tensor.
  struct Trial {
    size_t dimension;
    Setting rule;         // name: logical axis, pattern or language; text: the rule itself
    std::string outcome;  // empty: the rule settled the dimension
  };

  Span shard, stage;
  std::vector<Trial> rules;
  std::string block;                      // kind of the tensor's block, if a language compared ways
  std::vector<Alternative> alternatives;  // those that fit first, then by seconds
  std::vector<Setting> mesh;              // axes that cut the tensor
  std::vector<Setting> pins;              // a mesh axis, and the indices on it that hold the tensor
};

struct Explanation : DrawNotes, ShardingNotes {
  using Setting = shardinit::Setting;

  std::string pattern;  // a glob; the first tensor whose path matches it is explained

  // One place where a layout puts a drawn tensor.
  struct Place {
    std::string layout, path;          // path of the stored tensor
    std::shared_ptr<const View> view;  // null: the layout omits it
    int64_t elements;                  // elements of the drawn tensor that the stored one holds
    Span span;
  };

  // A tensor that matches, but that a `when` of 0 leaves out.
  struct LeftOut {
    std::string path;
    Setting when;
  };

  std::optional<size_t> tensor;     // index among the drawn or the stored tensors; none: no match
  std::optional<LeftOut> left_out;  // the first match that is left out
  std::vector<Setting> conditions;  // each `when` that is true here, outermost first
  Span place;                       // of the tensor's name
  Span seed, engine;
  std::vector<Setting> variables;  // all variables that the tensor's expressions use
  // The places of a drawn tensor, in the chosen layout or in all. If no drawn tensor matches, this
  // has the first stored tensor that does.
  std::vector<Place> places;
  Span view;                            // span of a stored tensor's view
  std::unique_ptr<Explanation> stored;  // with a layout: explanation of a tensor that it stores
};

}  // namespace shardinit
