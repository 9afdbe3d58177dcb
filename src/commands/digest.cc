#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>
#include <variant>

#include "base/glob.h"
#include "base/json.h"
#include "base/result_file.h"
#include "base/text.h"
#include "commands/command.h"
#include "commands/folders.h"
#include "commands/options.h"
#include "generate/digests.h"
#include "plan/relayout.h"
#include "report/text.h"
#include "rng/stream.h"

namespace shardinit {
namespace {

struct DigestOptions {
  explicit DigestOptions(CLI::App& app) {
    TakesUrl(spec.AddTo(
        app, "Model spec or config.json, `-` for standard input, or a folder of tensors"));
    spec.AddLayoutTo(app);
    AddOnly(app, &only);
    AddPartOfFile(app, &part);
    AddText(app, "--check", "FILE", &check,
            "Compare with a file that --write made; exit 1 if unequal");
    AddText(app, "--write", "FILE", &write, "Write the digests to a file");
    AddForce(app, &force);
    work.AddJobsTo(app, "generate and hash");
    work.AddProgressTo(app);
    AddJson(app, &json);
  }

  SpecOptions spec;
  WorkOptions work;
  std::string only, part, check, write;
  bool force = false, json = false;
};

// Returns whether the plan drew the values. Folders of other tools, and copies of them, do not
// record an engine or a seed.
bool IsDrawn(const Plan& plan) {
  return !std::ranges::all_of(plan.graph.tensors, [](const Tensor& tensor) {
    const auto* const source = std::get_if<FromSource>(&tensor.distribution());
    return source != nullptr && source->source == kSourceName;
  });
}

std::string InJson(const Plan& plan, const std::vector<TensorDigest>& digests, bool all) {
  JsonWriter out;
  out.BeginObject(JsonWriter::kLines);
  out.Member("contract_version", kContractVersion).Member("name", plan.graph.name);
  const bool is_drawn = IsDrawn(plan);
  out.MemberOrNull("engine", is_drawn, plan.graph.engine);
  out.MemberOrNull("seed", is_drawn, plan.graph.seed);
  out.MemberOrNull("model_digest", all, ToHex(ModelDigest(digests)));
  out.Key("tensors").BeginArray(JsonWriter::kLines);
  for (const TensorDigest& digest : digests) {
    out.BeginObject().Member("path", digest.tensor->path());
    out.Member("dtype", InfoOf(digest.tensor->dtype()).name)
        .Member("shape", digest.tensor->shape_in_numbers());
    out.Member("sha256", ToHex(digest.sha256)).EndObject();
  }
  out.EndArray().EndObject();
  return out.Finish();
}

// The output of InJson() begins with these marks.
const ResultKind kDigestsKind = {
    "--write",
    "list of digests",
    {"{\n \"contract_version\": ", ",\n \"model_digest\": ", ",\n \"tensors\": ["}};

// Returns the differences from the file, one per line. A tensor that only the file has is a
// difference if it matches `only`.
std::vector<std::string> Differences(const std::string& path, RecordedDigests expected,
                                     const std::vector<TensorDigest>& digests,
                                     const std::string& only) {
  std::vector<std::string> lines;
  for (const TensorDigest& digest : digests) {
    const Tensor& tensor = *digest.tensor;
    const auto it = expected.find(std::string(tensor.path()));
    if (it == expected.end()) {
      lines.push_back(fmt::format("{}: is not in {}", tensor.path(), path));
      continue;
    }
    const RecordedDigest& e = it->second;
    const auto dtype = InfoOf(tensor.dtype()).name;
    if (e.dtype != dtype || e.shape != tensor.shape_in_numbers()) {
      lines.push_back(fmt::format("{}: is {} {}, but {} has {} {}", tensor.path(), dtype,
                                  InShape(tensor.shape_in_numbers()), path, e.dtype,
                                  InShape(e.shape)));
    } else if (e.sha256 != ToHex(digest.sha256)) {
      lines.push_back(fmt::format("{}: has other values: sha256 {} instead of {}", tensor.path(),
                                  ToHex(digest.sha256).substr(0, 12), e.sha256.substr(0, 12)));
    }
    expected.erase(it);
  }
  for (const auto& [path_left, e] : expected) {
    if (!only.empty() && !PathMatches(only, path_left)) continue;
    lines.push_back(fmt::format("{}: is in {}, but not in the spec", path_left, path));
  }
  return lines;
}

// Returns the differences in engine and seed, one per line. They count even if the values do not
// depend on them: the list belongs to another model.
std::vector<std::string> OtherOrigins(const DigestList& list, const Plan& plan,
                                      const std::string& path) {
  std::vector<std::string> lines;
  if (!IsDrawn(plan)) return lines;
  if (list.engine && *list.engine != plan.graph.engine) {
    lines.push_back(
        fmt::format("engine: is {} here, but {} in {}", plan.graph.engine, *list.engine, path));
  }
  if (list.seed && *list.seed != plan.graph.seed) {
    lines.push_back(
        fmt::format("seed: is {} here, but {} in {}", plan.graph.seed, *list.seed, path));
  }
  return lines;
}

// Takes the values from `folder`, or generates them if `folder` is null.
std::vector<TensorDigest> SortedDigests(const std::vector<const Tensor*>& tensors,
                                        const TensorFolder* folder, const WorkerOptions& workers,
                                        ProgressMode mode, bool is_json) {
  int64_t bytes = 0;
  for (const Tensor* tensor : tensors) bytes += tensor->bytes();
  WorkCounters counters;
  Progress progress(mode, "hashing", bytes, is_json);
  std::vector<TensorDigest> digests = DigestTensors(
      tensors, workers, [&](const WorkCounters& c) { progress.Update(c.hashed_bytes); }, &counters,
      folder ? [&](const Tensor& t) { return folder->ElementsOf(t); } : SourceOf());
  if (folder) folder->RequireUnchanged();
  std::ranges::sort(digests, {},
                    [](const TensorDigest& each) { return std::string_view(each.tensor->path()); });
  return digests;
}

// Returns the text for people, with the model's digest if `all`.
std::string InLines(const std::vector<TensorDigest>& digests, bool all) {
  std::string text;
  for (const TensorDigest& digest : digests) {
    text += fmt::format("{}  {}\n", ToHex(digest.sha256), Escape(digest.tensor->path()));
  }
  if (all) text += fmt::format("{}  (model)\n", ToHex(ModelDigest(digests)));
  return text;
}

ExitCode RunDigest(const DigestOptions& options) {
  const WorkerOptions workers = options.work.Workers(false);
  const ProgressMode mode = options.work.Mode();
  const std::string& path = options.spec.request.path;
  std::optional<TensorFolder> folder;
  if (MayHoldTensors(path)) {
    RequireNoOverrides(options.spec);
    SayFolder(folder.emplace(path, options.part));
  } else {
    RequireNoPart(options.part, path);
  }
  const Plan loaded = folder ? Plan() : options.spec.LoadToMake();
  const Plan& plan = folder ? folder->plan() : loaded;
  DigestList expected;
  if (!options.check.empty()) expected = ReadDigests(options.check);
  std::optional<ResultFile> written;
  if (!options.write.empty()) written.emplace(kDigestsKind, options.write, options.force);
  const std::vector<Tensor>& known = folder ? plan.graph.tensors : plan.graph.logical();
  const std::vector<const Tensor*> tensors = Matching(known, options.only);
  const bool all = tensors.size() == known.size();
  const std::vector<TensorDigest> digests =
      SortedDigests(tensors, folder ? &*folder : nullptr, workers, mode, options.json);
  std::string json;
  if (options.json || written) json = InJson(plan, digests, all);
  std::vector<std::string> origins, differences;
  if (!options.check.empty()) {
    origins = OtherOrigins(expected, plan, options.check);
    differences = Differences(options.check, std::move(expected.tensors), digests, options.only);
  }
  if (written) written->Write(json);
  if (options.json) {
    Print(json);
  } else if (options.check.empty()) {
    Print(InLines(digests, all));
  } else if (origins.empty() && differences.empty()) {
    PrintUnlessQuiet(fmt::format("{} {} equal to {}\n", Count(std::ssize(digests), "tensor"),
                                 digests.size() == 1 ? "is" : "are", Escape(options.check)));
  }
  for (const auto* lines : {&origins, &differences}) {
    for (const std::string& line : *lines) Report(Escape(line) + "\n", options.json);
  }
  if (differences.empty()) return origins.empty() ? ExitCode::kOk : ExitCode::kDifferent;
  Report(fmt::format("shardinit: {} to {}\n",
                     Count(std::ssize(differences), "tensor is not equal", "tensors are not equal"),
                     Escape(options.check)),
         options.json);
  return ExitCode::kDifferent;
}

}  // namespace

extern const Command kDigest = {"digest",
                                "Compute SHA-256 digests of whole tensors, without writing them",
                                Configure<RunDigest>};

}  // namespace shardinit
