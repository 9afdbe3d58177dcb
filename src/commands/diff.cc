#include "plan/diff.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <memory>
#include <span>

#include "base/file.h"
#include "base/json.h"
#include "checkpoint/manifest.h"
#include "commands/command.h"
#include "commands/options.h"
#include "report/text.h"

namespace shardinit {
namespace {

struct DiffOptions {
  std::string before, after;
  bool json = false;
};

// Tells whether JSON is a plan.json and not a config.json.
bool IsPlan(std::string_view text) {
  return text.find("\"format_version\"") != text.npos || text.find("\"model_type\"") == text.npos;
}

// Loads a checkpoint's folder, a plan.json, or a spec.
Plan Load(const std::string& path) {
  Digest plan_sha256;
  if (path != "-" && IsFolder(path)) return LoadCheckpointPlan(path, &plan_sha256);
  if (path.ends_with(".json")) {
    const std::string text = ReadFile(path, kPlanLimit);
    if (IsPlan(text)) return ReadPlan(text, path);
  }
  SpecOptions spec;
  spec.request.path = path;
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

// Shows tensors of a repeat that changed alike as one line.
std::string InLines(const std::vector<TensorDifference>& tensors) {
  struct Line {
    std::string head, changes;
    int64_t tensors = 0;
  };
  std::vector<Line> lines;
  std::map<std::pair<std::string, std::string>, size_t> places;
  for (const TensorDifference& tensor : tensors) {
    std::string changes;
    for (const Change& change : tensor.changes) {
      changes += fmt::format("  {}: {} → {}\n", change.what, change.before, change.after);
    }
    const char mark = !tensor.before ? '+' : !tensor.after ? '-' : '~';
    const std::string head = fmt::format("{} {}", mark, WithoutNumbers(tensor.path));
    const auto [it, is_new] = places.try_emplace({head, changes}, lines.size());
    if (is_new) lines.push_back({fmt::format("{} {}", mark, tensor.path), changes});
    Line& line = lines[it->second];
    if (++line.tensors == 2) line.head = head;
  }
  std::string text;
  const size_t shown = std::min(lines.size(), kMostRows);
  for (const Line& line : std::span(lines.data(), shown)) {
    text += line.head;
    if (line.tensors > 1) text += fmt::format(" ({})", Count(line.tensors, "tensor"));
    text += "\n" + line.changes;
  }
  return text + AndMore(lines.size() - shown, "line");
}

std::string InText(const PlanDifference& difference) {
  std::string text;
  for (const Change& change : difference.changes) {
    text += fmt::format("{}: {} → {}\n", change.what, change.before, change.after);
  }
  text += InLines(difference.tensors);
  if (!difference.stored.empty()) text += "stored:\n" + InLines(difference.stored);
  return text + fmt::format("{} differ{}, {} equal\n",
                            Count(std::ssize(difference.tensors), "tensor"),
                            difference.tensors.size() == 1 ? "s" : "", difference.equal);
}

ExitCode RunDiff(const DiffOptions& options) {
  if (options.before == "-" && options.after == "-") {
    throw Error(ExitCode::kUsage, "`-` stands twice, but standard input is one spec");
  }
  const Plan before = Load(options.before), after = Load(options.after);
  const PlanDifference difference = Compare(before, after);
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

extern const Command kDiff = {
    .name = "diff",
    .summary = "Show which tensors differ between two specs, plans or checkpoints",
    .configure = [](CLI::App& app) -> std::function<ExitCode()> {
      auto options = std::make_shared<DiffOptions>();
      app.add_option("A", options->before, "Model spec, plan.json or folder of a checkpoint")
          ->required();
      app.add_option("B", options->after, "What to compare it with, likewise")->required();
      AddJson(app, &options->json);
      return [options] { return RunDiff(*options); };
    },
};

}  // namespace shardinit
