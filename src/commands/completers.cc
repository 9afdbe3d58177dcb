// Lists possible values of options and arguments: names of the program, and names in the given
// spec.
#include <algorithm>
#include <cstdlib>
#include <set>

#include "base/file.h"
#include "base/glob.h"
#include "base/table.h"
#include "checkpoint/manifest.h"
#include "commands/complete.h"
#include "commands/names.h"
#include "graph/languages/languages.h"
#include "plan/load.h"
#include "report/text.h"
#include "rng/engines.h"
#include "spec/keys.h"
#include "tensor/dtype.h"

namespace shardinit {
namespace {

// Returns the spec or checkpoint on the line.
std::string PathOnLine(const TypedLine& line) {
  std::string path = line.Last("--spec");
  if (path.empty() && !line.positionals.empty()) path = line.positionals.front();
  const char* home = std::getenv("HOME");  // The shell passes `~/model.yaml` unexpanded.
  if (path.starts_with("~/") && home != nullptr) path.replace(0, 1, home);
  return path == "-" ? std::string() : path;
}

SpecRequest RequestOnLine(const TypedLine& line) {
  return {.path = PathOnLine(line),
          .sets = line.All("--set"),
          .mesh = line.Last("--mesh"),
          .sharding = line.Last("--sharding")};
}

// Reads the spec without resolving its names. Ignores mistakes that leave something to offer.
ModelSpec SpecOnLine(const SpecRequest& request, Diagnostics& diagnostics) {
  if (request.path.empty() || IsFolder(request.path)) return {};
  return LoadSpec(request, diagnostics).value_or(ModelSpec());
}

Plan PlanOnLine(const TypedLine& line) {
  Diagnostics diagnostics;
  PlanRequest request = {.spec = RequestOnLine(line), .layout = line.Last("--layout")};
  const std::string& path = request.spec.path;
  Digest plan_sha256;
  if (path.empty()) return {};
  return IsFolder(path) ? LoadCheckpointPlan(path, &plan_sha256) : LoadPlan(request, diagnostics);
}

// Returns the start of the part after `parts` parts, or npos if the name has fewer.
size_t BeginOfPart(std::string_view name, int64_t parts) {
  size_t begin = 0;
  for (; parts > 0; --parts) {
    begin = name.find('.', begin);
    if (begin == name.npos) break;
    ++begin;
  }
  return begin;
}

// Shortens names, whose parts are separated by dots, to the part after the typed ones: `layers.`
// for all layers. A typed part may be a pattern.
std::vector<Candidate> ByPart(const std::vector<Candidate>& names, std::string_view typed) {
  const std::string_view head = typed.substr(0, typed.rfind('.') + 1);
  const auto parts = std::count(head.begin(), head.end(), '.');
  const bool is_pattern = head.find_first_of("*?[") != head.npos;
  std::vector<Candidate> next;
  std::set<std::string> seen;
  for (const auto& [name, about] : names) {
    const size_t begin = BeginOfPart(name, parts);
    if (begin == name.npos) continue;
    const std::string_view before = std::string_view(name).substr(0, begin);
    if (is_pattern ? !PathMatches(head.substr(0, head.size() - 1), before.substr(0, begin - 1))
                   : head != before) {
      continue;
    }
    const size_t end = name.find('.', begin);
    const bool is_whole = end == name.npos;
    std::string text(head);
    text += name.substr(begin, is_whole ? end : end + 1 - begin);
    if (text.starts_with(typed) && seen.insert(text).second) {
      next.push_back({std::move(text), is_whole ? about : ""});
    }
  }
  const bool leads_on = next.size() == 1 && next[0].text.ends_with('.') && next[0].text != typed;
  return leads_on ? ByPart(names, next[0].text) : next;
}

// Adds the names of a kind, as `list` shows them.
void AddNames(std::string_view kind, Candidates* found) {
  for (const NameEntry& entry : FindNamed(KindsOfNames(), kind)->entries()) {
    found->words.push_back({entry.name, entry.description});
  }
}

Candidates Specs(const TypedLine&, std::string_view) {
  Candidates found{.files = true};
  AddNames("models", &found);
  return found;
}

Candidates Shardings(const TypedLine&, std::string_view) {
  Candidates found{.files = true};
  AddNames("shardings", &found);
  for (const LanguageRow* language : Languages()) {
    if (!language->is_word) continue;
    found.words.push_back({std::string(language->name), std::string(language->description)});
  }
  return found;
}

Candidates FormatsToWrite(const TypedLine&, std::string_view) {
  Candidates found;
  AddNames("formats", &found);
  return found;
}

Candidates Optimizers(const TypedLine&, std::string_view) {
  return {.words = {{"adamw", "AdamW of PyTorch"}}, .files = true};
}

Candidates Layouts(const TypedLine& line, std::string_view) {
  Candidates found;
  Diagnostics diagnostics;
  for (const auto& layout : SpecOnLine(RequestOnLine(line), diagnostics).layouts) {
    found.words.push_back({layout.name.value});
  }
  return found;
}

// Offers the axes that are not typed yet, appended to the typed axes.
Candidates MeshAxes(const TypedLine& line, std::string_view typed) {
  Candidates found;
  Diagnostics diagnostics;
  const std::string before(typed.substr(0, typed.rfind(',') + 1));
  for (const auto& axis : SpecOnLine(RequestOnLine(line), diagnostics).mesh) {
    const std::string text = axis.name.value + "=";
    if (("," + before).find("," + text) != before.npos) continue;
    found.words.push_back({before + text, axis.value ? TextOf(*axis.value) : ""});
  }
  return found;
}

void AddValuesOfKey(const SpecKey& key, Candidates* found) {
  const std::string begin = std::string(key.name) + "=";
  for (const std::string_view word : key.words) found->words.push_back({begin + std::string(word)});
  if (key.kind == SpecKind::kUneven) {
    for (const std::string_view word : kUnevenPolicies) {
      found->words.push_back({begin + std::string(word)});
    }
  } else if (key.kind == SpecKind::kEngine) {
    for (const Engine* engine : Engines()) {
      found->words.push_back({begin + std::string(engine->spec_name())});
    }
  } else if (key.kind == SpecKind::kDType) {
    for (const std::string& name : DTypeNames()) found->words.push_back({begin + name});
  }
}

// Offers keys with a single value, variables and mesh sizes; after a key, offers its words.
Candidates Settings(const TypedLine& line, std::string_view typed) {
  const auto keys = KeysOf(SpecMapping::kModel);
  Candidates found;
  if (const size_t end = typed.find('='); end != typed.npos) {
    const SpecKey* key = FindNamed(keys, typed.substr(0, end));
    if (key != nullptr) AddValuesOfKey(*key, &found);
    return found;
  }
  std::vector<Candidate> names;
  for (const SpecKey& key : keys) {
    if (IsScalar(key)) names.push_back({std::string(key.name) + "=", std::string(key.description)});
  }
  Diagnostics diagnostics;
  const ModelSpec spec = SpecOnLine(RequestOnLine(line), diagnostics);
  const auto add = [&names](const char* begin, const std::string& name, std::string value) {
    names.push_back({begin + name + "=", std::move(value)});
  };
  for (const auto& [name, value] : spec.vars) add("vars.", name.value, TextOf(value));
  for (const auto& [name, value] : spec.mesh)
    add("mesh.axes.", name.value, value ? TextOf(*value) : "");
  return {.words = ByPart(names, typed)};
}

Candidates TensorPaths(const TypedLine& line, std::string_view typed) {
  const Plan plan = PlanOnLine(line);
  std::vector<Candidate> names;
  const auto add = [&names](const std::vector<Tensor>& tensors) {
    for (const Tensor& tensor : tensors) {
      names.push_back({std::string(tensor.path()), std::string(InfoOf(tensor.dtype()).name) + " " +
                                                       InShape(tensor.shape_in_numbers())});
    }
  };
  add(plan.graph.tensors);
  if (plan.graph.drawn) add(*plan.graph.drawn);
  return {.words = ByPart(names, typed)};
}

// Rows are found by an option's last spelling or an argument's name. A row for a single command
// begins with the command's name.
constexpr struct {
  std::string_view name;
  Candidates (*values)(const TypedLine& line, std::string_view typed);
} kCompleters[] = {
    {"SPEC", Specs},
    {"SPEC|DIR", Specs},
    {"A", Specs},
    {"B", Specs},
    {"--spec", Specs},
    {"explain PATH", TensorPaths},
    {"--only", TensorPaths},
    {"--layout", Layouts},
    {"--from-layout", Layouts},
    {"--mesh", MeshAxes},
    {"--set", Settings},
    {"--sharding", Shardings},
    {"--to", FormatsToWrite},
    {"--optimizer", Optimizers},
};

// Returns all values of an option whose type lists them, such as `auto|always|never`.
std::vector<Candidate> FixedWords(std::string_view type) {
  const bool is_fixed =
      type.find('|') != type.npos &&
      std::none_of(type.begin(), type.end(), [](char c) { return c >= 'A' && c <= 'Z'; });
  std::vector<Candidate> words;
  while (is_fixed && !type.empty()) {
    const size_t end = std::min(type.find('|'), type.size());
    words.push_back({std::string(type.substr(0, end))});
    type.remove_prefix(std::min(end + 1, type.size()));
  }
  return words;
}

}  // namespace

Candidates FindCandidates(const CLI::App& command, const CLI::Option& option, const TypedLine& line,
                          std::string_view typed) {
  const bool is_argument = option.get_positional();
  const std::string name = is_argument ? option.get_name() : Spellings(option).back();
  for (const auto& [of, values] : kCompleters) {
    if (of == name || of == command.get_name() + " " + name) return values(line, typed);
  }
  const std::string type = option.get_type_name();
  Candidates found{.words = FixedWords(type)};
  for (const std::string_view word : {"FILE", "DIR", "PATH", "CONFIG"}) {
    found.files |= (is_argument ? name : type).find(word) != name.npos;
  }
  return found;
}

}  // namespace shardinit
