#include "plan/diff.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <span>
#include <utility>

#include "base/colour.h"
#include "base/file.h"
#include "base/json.h"
#include "base/text.h"
#include "checkpoint/manifest.h"
#include "commands/command.h"
#include "commands/diff_folders.h"
#include "commands/folders.h"
#include "commands/options.h"
#include "formats/input.h"
#include "report/text.h"

namespace shardinit {
namespace {

struct DiffOptions {
  explicit DiffOptions(CLI::App& app) {
    TakesUrl(app.add_option("A", before, "Model spec, plan.json or folder of tensors"))->required();
    TakesUrl(app.add_option(
        "B", after, "The same, to compare with A; default: A with the changes of these options"));
    spec.AddOverridesTo(app);
    spec.AddLayoutTo(app);
    AddOnly(app, &only);
    AddPartOfFile(app, &part);
    app.add_flag("--values", values, "Compare all elements of two folders of tensors, bit by bit");
    work.AddJobsTo(app, "read and compare");
    work.AddProgressTo(app);
    AddJson(app, &json);
  }

  std::string before, after, only, part;
  SpecOptions spec;  // without its path
  WorkOptions work;  // for --values
  bool values = false, json = false;
};

// Returns whether the file is a plan.json. Only its name identifies a damaged one. A config.json
// may reveal its kind late.
bool IsPlan(const std::string& path) {
  const FileKind* kind = KindOfPath(path);
  if (kind != nullptr || !path.ends_with(".json")) return kind == &kPlanKind;
  kind = KindOfText(path, ReadFile(path, kPlanLimit));
  return kind == nullptr || kind == &kPlanKind;
}

// Loads a checkpoint folder, a plan.json or a spec. Only for a spec, applies the options and sets
// `*is_spec`.
Plan Load(const std::string& path, SpecOptions spec, bool* is_spec) {
  Digest plan_sha256;
  if (path != "-" && IsInputFolder(path)) return LoadCheckpointPlan(path, &plan_sha256);
  if (path != "-" && IsPlan(path)) return ReadPlan(ReadFile(path, kPlanLimit), path);
  *is_spec = true;
  spec.request.path = path;
  spec.says_warnings = false;  // They are about one spec, but would be printed for both.
  return spec.Load();
}

void WriteChanges(const std::vector<Change>& changes, JsonWriter& out) {
  out.Key("changes").BeginArray();
  for (const Change& change : changes) {
    out.BeginObject().Member("what", change.what).Member("before", change.before);
    out.Member("after", change.after).EndObject();
  }
  out.EndArray();
}

const char* KindOf(const TensorDifference& tensor) {
  return !tensor.before ? "added" : !tensor.after ? "removed" : "changed";
}

void WriteTensors(std::string_view key, const std::vector<TensorDifference>& tensors,
                  JsonWriter& out) {
  out.Key(key).BeginArray(JsonWriter::kLines);
  for (const TensorDifference& tensor : tensors) {
    out.BeginObject().Member("path", tensor.path).Member("kind", KindOf(tensor));
    if (tensor.before && tensor.after) WriteChanges(tensor.changes, out);
    out.EndObject();
  }
  out.EndArray();
}

std::string InJson(const PlanDifference& difference) {
  JsonWriter out;
  out.BeginObject(JsonWriter::kLines).Member("equal", difference.empty());
  out.Member("equal_tensors", difference.equal);
  WriteChanges(difference.changes, out);
  WriteTensors("tensors", difference.tensors, out);
  WriteTensors("stored", difference.stored, out);
  out.EndObject();
  return out.Finish();
}

std::string InLine(const Change& change) {
  return fmt::format("{}: {} → {}\n", change.what, Paint(Role::kBad, Escape(change.before)),
                     Paint(Role::kGood, Escape(change.after)));
}

// Shows tensors of a repeat with the same changes as one line.
std::string InLines(const std::vector<TensorDifference>& tensors) {
  struct Line {
    Role role;
    std::string head, changes;
    int64_t tensors = 0;
  };
  std::vector<Line> lines;
  std::map<std::pair<std::string, std::string>, size_t> places;
  for (const TensorDifference& tensor : tensors) {
    std::string changes;
    for (const Change& change : tensor.changes) changes += "  " + InLine(change);
    const auto [mark, role] = !tensor.before  ? std::pair('+', Role::kGood)
                              : !tensor.after ? std::pair('-', Role::kBad)
                                              : std::pair('~', Role::kChanged);
    const std::string head = fmt::format("{} {}", mark, WithoutNumbers(Escape(tensor.path)));
    const auto [it, is_new] = places.try_emplace({head, changes}, lines.size());
    if (is_new) lines.push_back({role, fmt::format("{} {}", mark, Escape(tensor.path)), changes});
    Line& line = lines[it->second];
    if (++line.tensors == 2) line.head = head;
  }
  std::string text;
  const size_t shown = std::min(lines.size(), kMostRows);
  for (const Line& line : std::span(lines.data(), shown)) {
    text += Paint(line.role, line.head);
    if (line.tensors > 1) text += fmt::format(" ({})", Count(line.tensors, "tensor"));
    text += "\n" + line.changes;
  }
  return text + AndMore(lines.size() - shown, "line");
}

std::string InText(const PlanDifference& difference) {
  std::string text;
  for (const Change& change : difference.changes) text += InLine(change);
  text += InLines(difference.tensors);
  if (!difference.stored.empty()) text += "stored:\n" + InLines(difference.stored);
  return text + fmt::format("{} differ{}, {} equal\n",
                            Count(std::ssize(difference.tensors), "tensor"),
                            difference.tensors.size() == 1 ? "s" : "", difference.equal);
}

// Returns whether only a folder's tensors can be compared: folders of other tools have no plan.
bool IsForeign(const std::string& path) {
  return MayHoldTensors(path) && !InputExists(path + "/" + kPlanName);
}

// Throws Error (kUsage) unless both arguments have values to compare.
void RequireFolders(const DiffOptions& options) {
  for (const std::string& path : {options.before, options.after}) {
    if (!path.empty() && MayHoldTensors(path)) continue;
    // Report an error in the other argument first.
    for (const std::string& other : {options.before, options.after}) {
      if (IsForeign(other)) static_cast<void>(TensorFolder(other, options.part));
    }
    throw Usage(path.empty()
                    ? "nothing to compare the values with"
                    : fmt::format("`{}` is not a folder of tensors, so it has no values", path),
                "name two folders; `shardinit verify DIR --spec SPEC` compares one with a spec");
  }
  if (options.spec.HasOverrides()) {
    throw Usage("the options change specs, but folders have fixed values", kOverridesAreForSpecs);
  }
}

// Without B, compares a spec with itself, changed by the options.
std::pair<Plan, Plan> LoadBoth(const DiffOptions& options) {
  const bool alone = options.after.empty(), changes = options.spec.HasOverrides();
  if (alone && !changes) {
    throw Usage(fmt::format("nothing to compare `{}` with", options.before),
                "name another spec, plan.json or checkpoint, or what to change, with `--set`");
  }
  if (alone && options.before == "-") {
    throw Usage("standard input cannot be read twice", "name the spec's file");
  }
  bool has_spec = false;
  std::pair<Plan, Plan> both;
  both.first = Load(options.before, alone ? SpecOptions() : options.spec, &has_spec);
  if (!alone || has_spec) {
    both.second = Load(alone ? options.before : options.after, options.spec, &has_spec);
  }
  if (has_spec || !changes) return both;
  throw Usage("the options change specs, but plans and checkpoints are fixed",
              kOverridesAreForSpecs);
}

ExitCode RunDiff(const DiffOptions& options) {
  if (options.before == "-" && options.after == "-") {
    throw Usage("`-` is given twice, but standard input is only one spec");
  }
  if (options.values || IsForeign(options.before) || IsForeign(options.after)) {
    RequireFolders(options);
    return DiffFolders(
        {options.before, options.after, options.only, options.part, options.values, options.json},
        options.work);
  }
  RequireNoPart(options.part, options.before);
  const auto [before, after] = LoadBoth(options);
  const PlanDifference difference = Compare(before, after, options.only);
  if (!options.only.empty() && difference.tensors.empty() && difference.equal == 0) {
    Matching(before.graph.logical(), options.only);  // throws: no tensor matches
  }
  if (options.json) {
    Print(InJson(difference));
  } else if (difference.empty()) {
    Print(fmt::format("no difference: {}\n", Count(difference.equal, "tensor")));
  } else {
    Print(InText(difference));
  }
  return difference.empty() ? ExitCode::kOk : ExitCode::kDifferent;
}

}  // namespace

extern const Command kDiff = {"diff",
                              "Show which tensors differ between two specs, plans or checkpoints",
                              Configure<RunDiff>};

}  // namespace shardinit
