// Why one tensor is what it is: the places in the spec, and on the command line,
// that decided it. BuildGraph fills this in as it decides, so that the graph
// itself need not know places.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "base/source.h"
#include "init/fans.h"

namespace shardinit {

struct Explanation {
  std::string pattern;  // Wanted: the first tensor whose path this glob matches.

  // Something that was written: `text` as it stands at `span`, which has no
  // source if it is a default.
  struct Setting {
    std::string name, text, value;
    Span span;
  };

  // A rule that names one of the tensor's logical axes.
  struct Trial {
    size_t dimension;
    Setting rule;         // Its logical axis, itself, the mesh axes.
    std::string outcome;  // Empty: it settled the dimension.
  };

  std::optional<size_t> tensor;       // Its index in the graph; none: no match.
  Span place;                         // Of the tensor's name.
  std::vector<Setting> dimensions;    // Logical axis, expression, extent.
  Span dtype, seed, engine, key, shard;
  std::vector<Setting> initializers;  // From the tensor's own to the tool's.
  std::vector<Setting> arguments;
  Setting fans;                       // What the spec says of fans.
  std::vector<Working> working;       // From the arguments to the distribution.
  std::vector<Trial> rules;
  std::vector<Setting> mesh;          // Axes that cut the tensor.
  std::vector<Setting> variables;     // All that the tensor's expressions use.
};

}  // namespace shardinit
