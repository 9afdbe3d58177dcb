// Why one tensor is what it is: the places in the spec, and on the command line, that decided it.
// Each pass takes notes of its own, if it is asked to (graph/explain.h), so that the graph itself
// need not know places.
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

// Something that was written: `text` as it stands at `span`, which has no source if it is a
// default.
struct Setting {
  std::string name, text, value;
  Span span;
};

// Of the values.
struct InitNotes {
  std::vector<Setting> initializers;  // From the tensor's own to the tool's.
  std::vector<Setting> arguments;
  Setting fans;                  // What the spec says of fans.
  std::vector<Working> working;  // From the arguments to the distribution.
};

struct DrawNotes : InitNotes {
  std::vector<Setting> dimensions;  // Logical axis, expression, extent.
  Span dtype, key;
};

struct ShardingNotes {
  // A way in which it could be cut, with its block, if the others stay as they are.
  struct Alternative {
    PartitionSpec partition;
    double seconds, padding, memory;  // Of all (autoshard/cost.h).
    bool fits;                        // Into the memory of a rank.
  };

  // A rule that names one of the tensor's logical axes.
  struct Trial {
    size_t dimension;
    Setting rule;         // Its logical axis, itself, the mesh axes.
    std::string outcome;  // Empty: it settled the dimension.
  };

  Span shard, stage;
  std::vector<Trial> rules;
  std::string block;                      // What it is a part of; if a language compared ways.
  std::vector<Alternative> alternatives;  // Those that fit, and of least cost, first.
  std::vector<Setting> mesh;              // Axes that cut the tensor.
  std::vector<Setting> pins;  // A mesh axis, and the indices on it that hold the tensor.
};

struct Explanation : DrawNotes, ShardingNotes {
  using Setting = shardinit::Setting;

  std::string pattern;  // Wanted: the first tensor whose path this glob matches.

  // Where a layout puts a drawn tensor.
  struct Place {
    std::string layout, path;          // Of the stored tensor.
    std::shared_ptr<const View> view;  // Null: the layout omits it.
    int64_t elements;                  // Of the drawn one that are in it.
    Span span;
  };

  // A tensor that would match, but which a `when` of 0 leaves out.
  struct LeftOut {
    std::string path;
    Setting when;
  };

  std::optional<size_t> tensor;     // Its index among those drawn, or those stored; none: no match.
  std::optional<LeftOut> left_out;  // The first of them.
  std::vector<Setting> conditions;  // Each `when` that let it in, outermost first.
  Span place;                       // Of the tensor's name.
  Span seed, engine;
  std::vector<Setting> variables;  // All that the tensor's expressions use.
  // Of a drawn tensor: in the chosen layout, or in all. If none matches, the first stored one
  // that does.
  std::vector<Place> places;
  Span view;                            // Of a stored tensor.
  std::unique_ptr<Explanation> stored;  // With a layout: of a tensor that it stores.
};

}  // namespace shardinit
