// Prints the script or manifest with which a cluster makes a checkpoint. Settles the request step
// by step for all engines, then fills in a template of configs/jobs/.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/file.h"
#include "base/parse_number.h"
#include "base/suggest.h"
#include "base/table.h"
#include "base/talk.h"
#include "base/text.h"
#include "bucket/profile.h"
#include "bucket/url.h"
#include "checkpoint/source.h"
#include "commands/command.h"
#include "commands/job_engine.h"
#include "commands/job_text.h"
#include "commands/options.h"
#include "place/place.h"
#include "report/template.h"
#include "report/text.h"
#include "spec/shipped.h"

namespace shardinit {
namespace {

namespace fs = std::filesystem;

// Returns whether a value may contain a file name, rather than only numbers.
bool MayNameFile(std::string_view value) {
  if (value.find_first_of("./") == value.npos) return false;
  return !ParseNumber<double>(value);
}

// Returns whether the words of the job may contain paths relative to the working directory.
bool MayBeRelative(const SpecRequest& request) {
  const auto value_of = [](std::string_view text) { return text.substr(text.find('=') + 1); };
  return MayNameFile(request.sharding) ||
         std::any_of(request.sets.begin(), request.sets.end(),
                     [&](const std::string& set) { return MayNameFile(value_of(set)); }) ||
         std::any_of(request.sources.begin(), request.sources.end(),
                     [&](const std::string& source) { return !value_of(source).starts_with('/'); });
}

// Returns whether the name means something else in each process, such as an open file.
bool IsOfProcess(const std::string& path) {
  return path.starts_with("/proc/") || path.starts_with("/dev/");
}

bool IsBelow(const std::string& path, const std::string& folder) {
  return !HasParent(path) && (folder == "/" || path.starts_with(folder + "/"));
}

std::string TitleOf(const Job& job) {
  return fmt::format("Makes {}: {}, {}, in {}. Written by `shardinit jobs {}`.",
                     Escape(job.plan.graph.name), Count(job.plan.world_size(), "rank"),
                     InBytes(BytesInFiles(job.plan)), Count(job.parts, "part"), job.engine.name);
}

const JobEngine& EngineOf(const JobsOptions& options) {
  const auto engines = JobEngines();
  if (const JobEngine* engine = FindNamed(engines, options.engine)) return *engine;
  const std::vector<std::string> names = NamesOf(engines);
  const std::string closest = Closest(options.engine, names);
  throw Usage(fmt::format("unknown job engine {}", Quote(options.engine)),
              closest.empty() ? fmt::format("one of `{}`", fmt::join(names, "`, `"))
                              : fmt::format("did you mean `{}`?", closest));
}

void RequireFlags(const JobsOptions& options, const JobEngine& engine) {
  for (int flag = 0; flag < kAllFlags; ++flag) {
    const auto given = static_cast<JobFlag>(flag);
    if (options.Has(given) && !Contains(engine.takes, given)) {
      throw Usage(fmt::format("`{}` does not apply to `{}`", kJobFlags[flag], engine.name),
                  "leave it out; shardinit-jobs(1) describes it");
    }
    const bool is_needed =
        Contains(engine.needs, given) ||
        (!Place::TraitsAt(options.folder).is_remote && Contains(engine.needs_in_folder, given));
    if (!options.Has(given) && is_needed) {
      throw Usage(fmt::format("`{}` needs `{}`", engine.name, kJobFlags[flag]),
                  flag == kImage ? "build it with `src/Containerfile` for a registry"
                                 : "shardinit-jobs(1) describes it");
    }
  }
}

// Rejects a job that lacks credentials for its bucket, or has a useless volume.
void RequireFlagsOfBucket(const JobsOptions& options, const JobEngine& engine) {
  if (!engine.takes_urls) {
    throw Usage(fmt::format("`{}` cannot write to a URL", engine.name),
                "name a remote of rclone, or use `shardinit gen -o URL`, which needs none");
  }
  ParseBucketUrl(options.folder);
  if (options.Has(kStorageClass)) {
    throw Usage("`--storage-class` creates a volume, but the checkpoint goes to a bucket",
                "leave it out");
  }
  if (options.Has(kMount) && !options.Has(kVolume)) {
    throw Usage("`--mount` needs a volume, but none is given",
                "leave it out, or name the volume that has the files of the spec with `--volume`");
  }
  const auto& flags = engine.credentials;
  if (flags.empty() || std::ranges::any_of(flags, [&](JobFlag f) { return options.Has(f); })) {
    return;
  }
  std::string names;
  for (const JobFlag flag : flags) {
    names += fmt::format("{}`{}`", names.empty() ? "" : " or ", kJobFlags[flag]);
  }
  throw Usage(fmt::format("`{}` needs {} for a bucket: its jobs do not have your credentials",
                          engine.name, names),
              "shardinit-jobs(1) describes it");
}

// Returns the environment variables of the containers.
std::map<std::string, std::string> VariablesOf(const JobsOptions& options,
                                               const JobEngine& engine) {
  const auto is_in_name = [](char c) { return IsAlphanumeric(c) || c == '_'; };
  std::map<std::string, std::string> variables;
  for (const std::string& text : options.env) {
    const size_t equal = text.find('=');
    const std::string name = text.substr(0, equal);
    if (equal == text.npos || name.empty() || !std::ranges::all_of(name, is_in_name) ||
        (name[0] >= '0' && name[0] <= '9')) {
      throw Usage(fmt::format("`--env` must be NAME=VALUE, but is {}", Quote(text)),
                  "write it as in `--env AWS_REGION=eu-west-1`");
    }
    if (name == "AWS_SECRET_ACCESS_KEY" || name == "AWS_SESSION_TOKEN") {
      throw Usage(fmt::format("`--env {}=…` would print a secret", name),
                  "shardinit-jobs(1) describes how jobs get credentials");
    }
    if (name.starts_with(engine.own_variables)) {
      throw Usage(fmt::format("`--env {}=…`: `{}` sets this variable itself", name, engine.name),
                  "leave it out");
    }
    if (!variables.emplace(name, text.substr(equal + 1)).second) {
      throw Usage(fmt::format("`--env {}=…` is given twice", name), "leave one of them out");
    }
  }
  return variables;
}

// Warns if the jobs would use another store than this command.
void SayIfElsewhere(const Job& job) {
  for (const char* name : {"AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"}) {
    if (Environment(name).empty() || job.variables.contains(name)) continue;
    Talk(fmt::format(
        "shardinit: {} is set here, but not in the jobs: add `--env {}=…` if they need it\n", name,
        name));
  }
}

int64_t PartsOf(const JobsOptions& options, const JobEngine& engine) {
  constexpr int64_t kMostOfArray = 1001;
  const int64_t parts = options.nodes > 0 ? options.nodes : engine.least;
  const int64_t most = options.array ? kMostOfArray : engine.most;
  if (parts >= engine.least && parts <= most) return parts;
  throw Usage(fmt::format("`--nodes {}`: {}", parts,
                          options.array          ? kArrayLimit
                          : engine.limit.empty() ? "the number is out of range"
                                                 : engine.limit),
              parts < engine.least
                  ? fmt::format("use {} at least", engine.least)
                  : fmt::format("use {} at most: a part may have many ranks", most));
}

// Returns the name of the job: the given name, or one derived from the model's name.
std::string JobNameOf(const JobsOptions& options, const std::string& model) {
  constexpr size_t kLongest = 40;  // Kubernetes allows 63 with the suffix that it adds.
  const auto is_plain = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-';
  };
  std::string name = options.name;
  if (!name.empty()) {
    if (name.size() > kLongest || !std::all_of(name.begin(), name.end(), is_plain) ||
        name.front() == '-' || name.back() == '-') {
      throw Usage(fmt::format("{} is not a valid name of a job", Quote(name)),
                  fmt::format("use up to {} lower-case letters, digits and inner `-`", kLongest));
    }
    return name;
  }
  name = "shardinit";
  bool is_apart = true;
  for (const char c : Lower(model)) {
    if (!is_plain(c) || c == '-') {
      is_apart = true;
      continue;
    }
    if (is_apart) name += '-';
    is_apart = false;
    name += c;
  }
  name.resize(std::min(name.size(), kLongest));
  while (name.back() == '-') name.pop_back();
  return name;
}

// Returns an opener that also records the folders from which a spec takes tensors.
SourceOpener OpenAndNote(std::vector<std::string>* folders) {
  return [folders](const SourceRequest& request) {
    folders->push_back(request.folder);
    return OpenSource(request);
  };
}

// Returns the error for a file that was read, or for the output folder.
Error NotSeen(const std::string& path, const Job& job, bool is_written = false) {
  if (job.mount.empty()) {
    return Usage(fmt::format("the containers do not see `{}`: they have no volume", path),
                 "copy it to a volume that they can read, name it with `--volume` and `--mount`, "
                 "and run this where the volume has the same path");
  }
  return Usage(
      fmt::format("the containers do not see `{}`: they see the volume at `{}`", path, job.mount),
      is_written ? "choose a folder on the volume with `-o`, or name the containers' mount point "
                   "with `--mount`"
                 : "copy it to the volume, and run this where the volume has the same path; or "
                   "name the containers' mount point with `--mount`");
}

// Embeds a spec that is not on the volume in the job, if the spec does not depend on its location.
void BringSpec(const JobsOptions& options, const std::string& path, Job* job) {
  job->spec_text = ReadFile(path);
  job->spec_file = path.ends_with(".json") ? "config.json" : "spec.yaml";
  job->spec = fmt::format("{}/{}", kSpecFolder, job->spec_file);
  if (job->spec_text.size() > kMostSpecBytes) {
    throw Usage(fmt::format("`{}` has {}, too many to include in a job", path,
                            Count(std::ssize(job->spec_text), "byte")),
                "copy it to a volume, and run this where the volume has the same path");
  }
  SpecOptions moved = options.spec;
  moved.request.path = job->spec;
  moved.request.text = job->spec_text;
  moved.says_warnings = false;
  try {
    Diagnostics diagnostics;
    if (WritePlan(moved.Load(diagnostics, {})) == WritePlan(job->plan)) return;
  } catch (const Error&) {
  } catch (const InvalidSpec&) {
  }
  throw Usage(
      fmt::format("`{}` names other files by relative paths, so a job cannot include it", path),
      "copy them to a volume, and run this where the volume has the same path");
}

// Settles where containers mount the volume, and where they start.
void PlaceVolume(const JobsOptions& options, Job* job) {
  job->mount = options.mount.empty() ? "/work" : options.mount;
  if (!job->mount.starts_with('/')) {
    throw Usage(fmt::format("`--mount {}` is not an absolute path", job->mount),
                "use an absolute path, such as `--mount /work`");
  }
  job->mount = Absolute(job->mount);
  const std::string here = Absolute(".");
  job->directory = here == job->mount || IsBelow(here, job->mount) ? here : job->mount;
}

// Settles what containers see: the folder, the spec and all files that were read for it.
void PlaceInContainers(const JobsOptions& options, const std::vector<std::string>& sources,
                       Job* job) {
  if (!job->is_in_bucket() || options.Has(kVolume)) PlaceVolume(options, job);
  const auto is_seen = [job](const std::string& file) {
    return !job->mount.empty() && IsBelow(file, job->mount);
  };
  if (!job->is_in_bucket()) {
    job->folder = WithoutRedundantParts(fs::path(job->directory) / options.folder);
    if (!is_seen(job->folder)) throw NotSeen(job->folder, *job, true);
  }
  const std::string& path = options.spec.request.path;
  std::string moved;
  if (!IsShipped(job->spec) && !is_seen(job->spec)) {
    if (!job->engine.brings_spec) throw NotSeen(job->spec, *job);
    moved = job->spec;
    BringSpec(options, path, job);
  }
  std::vector<std::string> read = sources;
  for (std::string& file : InputPaths()) {
    if (!IsOfProcess(file)) read.push_back(std::move(file));
  }
  for (const std::string& file : read) {
    const std::string absolute = Absolute(file);
    if (absolute != moved && !is_seen(absolute)) throw NotSeen(absolute, *job);
  }
}

// Returns a path of the spec that is also valid in other folders.
std::string LastingPath(const SpecRequest& request) {
  const std::string path = PathOfSpec({}, request.path);
  if (IsShipped(path)) return path;
  if (!fs::is_regular_file(path) || IsOfProcess(Absolute(path))) {
    throw Usage(fmt::format("`{}` is not a file that a job can read later", path),
                "write the spec to a file");
  }
  return Absolute(path);
}

void RunJobs(const JobsOptions& options) {
  const JobEngine& engine = EngineOf(options);
  RequireFlags(options, engine);
  const int64_t parts = PartsOf(options, engine);
  const bool is_in_bucket = Place::TraitsAt(options.folder).is_remote;
  if (is_in_bucket) RequireFlagsOfBucket(options, engine);
  if (options.spec.request.path == "-") {
    throw Usage("a job cannot read the standard input of this command",
                "name the file that has the spec");
  }
  std::vector<std::string> sources;
  PlanRequest request;
  request.open_source = OpenAndNote(&sources);
  Diagnostics diagnostics;
  Job job = {options, engine, options.spec.Load(diagnostics, std::move(request)), parts};
  job.spec = LastingPath(options.spec.request);
  job.name = JobNameOf(options, job.plan.graph.name);
  if (engine.name == "object-store") {
    job.folder = options.folder;
    if (!Contains(job.folder, ':') || job.folder.starts_with('-')) {
      throw Usage(fmt::format("`-o {}` is not a remote of rclone", options.folder),
                  "name it as in `-o store:bucket/checkpoint`; `rclone listremotes` shows them");
    }
    while (job.folder.ends_with('/')) job.folder.pop_back();
  } else if (is_in_bucket) {
    job.folder = options.folder;
  } else {
    RequireFolderName(options.folder);
    job.folder = Absolute(options.folder);
  }
  if (engine.sees == Sees::kVolume) {
    job.variables = VariablesOf(options, engine);
    PlaceInContainers(options, sources, &job);
    if (is_in_bucket) SayIfElsewhere(job);
  }
  if (parts > job.plan.world_size()) {
    Talk(fmt::format("shardinit: {} of {} have nothing to do: there {} {}\n",
                     Grouped(parts - job.plan.world_size()), Count(parts, "part"),
                     job.plan.world_size() == 1 ? "is" : "are",
                     Count(job.plan.world_size(), "rank")));
  }
  TemplateValues values = {{"title", TitleOf(job)},
                           {"name", job.name},
                           {"parts", fmt::to_string(parts)},
                           {"cd", MayBeRelative(options.spec.request)
                                      ? fmt::format("cd -- {} || exit", InShell(Absolute(".")))
                                      : ""}};
  engine.fill(job, &values);
  PrintExactly(FillJobTemplate(options.array ? "slurm-array.sh.in" : engine.file, values));
}

}  // namespace

extern const Command kJobs = {"jobs", "Print a script that has a cluster make a checkpoint",
                              Configure<RunJobs>};

}  // namespace shardinit
