// Parses YAML files, includes and command-line overrides into a ModelSpec.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/diagnostics.h"
#include "spec/spec.h"

namespace shardinit {

// A spec file and the command-line overrides that the user asked for.
struct SpecRequest {
  std::string path;                       // a file, or `-` for standard input
  std::vector<std::string> sets;          // `mesh.axes.fsdp=8`; later ones win
  std::string mesh;                       // `fsdp=8,tensor=4`; empty: as in the spec
  std::string sharding = {};              // a file or a word; empty: as in the spec
  std::vector<std::string> sources = {};  // `base=DIR`; later ones win
  // A key of `training` and its value, from an option.
  struct OfTraining {
    std::string option, key, value;
  };
  std::vector<OfTraining> training = {};
  // The text of the spec if it is in memory; `path` is then only its name.
  std::optional<std::string> text = std::nullopt;
  // The numbers of the model that a config.json describes are widened, so it is not quantized.
  bool is_widened = false;
};

// Reports all errors of syntax, keys and types to `diagnostics`. Returns the parts that are valid,
// or nullopt if these are too few to look for further errors. Throws Error if the file itself
// cannot be read.
std::optional<ModelSpec> LoadSpec(const SpecRequest& request, Diagnostics& diagnostics);

}  // namespace shardinit
