// Reads YAML files, includes and command-line overrides into a ModelSpec.
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
  std::vector<std::string> sets;          // `mesh.axes.fsdp=8`; a later one wins
  std::string mesh;                       // `fsdp=8,tensor=4`; empty: as in the spec
  std::string sharding = {};              // a file or a word; empty: as in the spec
  std::vector<std::string> sources = {};  // `base=DIR`; a later one wins
  // A key of `training` with its value, from an option.
  struct OfTraining {
    std::string option, key, value;
  };
  std::vector<OfTraining> training = {};
  // The text of the spec if it is in memory; `path` is then its name.
  std::optional<std::string> text = std::nullopt;
};

// Reports everything that is wrong with syntax, keys and types to `diagnostics`, and returns what
// is known besides; nothing, if that is too little to look for further mistakes. Throws Error when
// the file itself cannot be read.
std::optional<ModelSpec> LoadSpec(const SpecRequest& request, Diagnostics& diagnostics);

}  // namespace shardinit
