// Renders the diagnostics of spec text.
#pragma once

#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

#include "base/diagnostics.h"
#include "spec/parse.h"

namespace shardinit {

// A temporary folder that is the working directory while it exists, so that messages name files
// without a path.
class WorkingFolder {
 public:
  explicit WorkingFolder(const std::map<std::string, std::string>& files)
      : before_(std::filesystem::current_path()) {
    std::string name = (std::filesystem::temp_directory_path() / "shardinit-test-XXXXXX").string();
    if (mkdtemp(name.data()) == nullptr) throw std::runtime_error("mkdtemp");
    folder_ = name;
    std::filesystem::current_path(folder_);
    for (const auto& [path, text] : files) {
      const std::filesystem::path parent = std::filesystem::path(path).parent_path();
      if (!parent.empty()) std::filesystem::create_directories(parent);
      std::ofstream(path, std::ios::binary) << text;
    }
  }
  ~WorkingFolder() {
    std::filesystem::current_path(before_);
    std::filesystem::remove_all(folder_);
  }
  WorkingFolder(const WorkingFolder&) = delete;
  WorkingFolder& operator=(const WorkingFolder&) = delete;

 private:
  std::filesystem::path before_, folder_;
};

struct SpecOutcome {
  ModelSpec model;
  std::string messages;
};

// Loads `x.yaml` from `files`.
inline SpecOutcome LoadFiles(const std::map<std::string, std::string>& files,
                             std::vector<std::string> sets = {}, std::string mesh = {}) {
  const WorkingFolder folder(files);
  Diagnostics diagnostics;
  SpecOutcome outcome;
  try {
    std::optional<ModelSpec> model =
        LoadSpec({.path = "x.yaml", .sets = std::move(sets), .mesh = std::move(mesh)}, diagnostics);
    if (model) outcome.model = std::move(*model);
    outcome.messages = Render(diagnostics.all());
  } catch (const InvalidSpec& invalid) {
    outcome.messages = Render(invalid.diagnostics());
  }
  return outcome;
}

inline SpecOutcome LoadText(const std::string& text, std::vector<std::string> sets = {},
                            std::string mesh = {}) {
  return LoadFiles({{"x.yaml", text}}, std::move(sets), std::move(mesh));
}

// Returns messages about mistakes below the top level. `text` starts on line 3, after the keys that
// every spec needs. Adds a tensor if `text` has none.
inline std::string MessagesFor(const std::string& text, std::vector<std::string> sets = {},
                               std::string mesh = {}) {
  std::string spec = "shardinit: 1\nname: x\n" + text;
  if (text.find("modules:") == std::string::npos) {
    spec += "modules: {w: {shape: [], init: zeros}}\n";
  }
  return LoadText(spec, std::move(sets), std::move(mesh)).messages;
}

}  // namespace shardinit
