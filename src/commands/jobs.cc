// Prints what a cluster's engine takes to make a checkpoint: a template of configs/jobs/, filled
// in. One long file: an engine is a row, and what fills its template uses what all rows share.
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
#include "commands/command.h"
#include "commands/folders.h"
#include "commands/job_text.h"
#include "commands/options.h"
#include "report/template.h"
#include "report/text.h"
#include "spec/shipped.h"

namespace shardinit {
namespace {

namespace fs = std::filesystem;

struct JobEngine;
std::span<const JobEngine> JobEngines();

// The options that only some engines have.
enum JobFlag {
  kNodes,
  kArray,
  kImage,
  kVolume,
  kStorageClass,
  kMount,
  kQueue,
  kEnv,
  kSecret,
  kServiceAccount,
  kJobRole,
  kAllFlags
};
constexpr std::string_view kJobFlags[kAllFlags] = {
    "--nodes", "--array", "--image",  "--volume",          "--storage-class", "--mount",
    "--queue", "--env",   "--secret", "--service-account", "--job-role"};

std::string IsNodeCount(const std::string& text) {
  return ParseNumber<int64_t>(text).value_or(0) >= 1
             ? std::string()
             : fmt::format("`{}`: use a whole number from 1 on", text);
}

struct JobsOptions {
  explicit JobsOptions(CLI::App& app);

  SpecOptions spec;
  std::string engine, folder, name, image, volume, storage_class, mount, queue;
  std::string secret, service_account, job_role;
  std::vector<std::string> env;
  int64_t nodes = 0;  // 0: not given
  bool array = false;

  bool Has(JobFlag flag) const {
    switch (flag) {
      case kNodes:
        return nodes > 0;
      case kArray:
        return array;
      case kImage:
        return !image.empty();
      case kVolume:
        return !volume.empty();
      case kStorageClass:
        return !storage_class.empty();
      case kMount:
        return !mount.empty();
      case kQueue:
        return !queue.empty();
      case kEnv:
        return !env.empty();
      case kSecret:
        return !secret.empty();
      case kServiceAccount:
        return !service_account.empty();
      case kJobRole:
        return !job_role.empty();
      case kAllFlags:
        break;
    }
    return false;
  }
};

// A spec that goes along with a job: where containers find it.
constexpr char kSpecFolder[] = "/etc/shardinit";
constexpr size_t kMostSpecBytes = 512 << 10;  // A ConfigMap takes 1 MiB.

// An engine is asked to do this.
struct Job {
  const JobsOptions& options;
  const JobEngine& engine;
  Plan plan;
  int64_t parts = 1;
  std::string name = {};       // small letters, digits and `-`
  std::string spec = {};       // the path that the jobs know it by
  std::string spec_file = {};  // The name of a spec that goes along with the job; empty: none does.
  std::string spec_text = {};
  std::string folder = {};  // absolute, but for a URL and a remote of rclone
  // Of containers: where the volume is, and where they begin. They are empty without a volume.
  std::string mount = {}, directory = {};
  std::map<std::string, std::string> variables = {};  // of --env

  bool is_in_bucket() const { return IsBucketUrl(folder); }
};

// Where jobs run, and so which files they see.
enum class Sees {
  kAll,     // the files that are seen here
  kVolume,  // the files of a volume, and the spec if the engine brings it along
};

struct JobEngine {
  std::string_view name, file;  // of configs/jobs/
  Sees sees = Sees::kAll;
  bool brings_spec = false, takes_urls = true;
  int64_t least = 1, most = 1'000'000;  // parts
  std::string_view limit = {};          // why there are no fewer or more; empty: nobody wants such
  std::vector<JobFlag> takes = {}, needs = {};
  std::vector<JobFlag> needs_in_folder = {};
  std::vector<JobFlag> credentials = {};  // for a bucket, of which one is needed
  std::string_view own_variables = {};    // what the names of the engine's own variables begin with
  void (*fill)(const Job& job, TemplateValues* values);
};

Error BadJob(const std::string& message, std::string hint) {
  return {ExitCode::kUsage, message, std::move(hint)};
}

// Returns the words of the run that makes the ranks, behind the name of the program. They have the
// form `--set=…`, so no value is taken for an option.
std::vector<std::string> GenWords(const Job& job, bool has_folder = true) {
  const SpecOptions& spec = job.options.spec;
  std::vector<std::string> words = {"gen", job.spec};
  const auto add = [&words](std::string_view flag, const std::string& value) {
    if (!value.empty()) words.push_back(fmt::format("{}={}", flag, value));
  };
  if (has_folder) add("--output", job.folder);
  for (const std::string& set : spec.request.sets) add("--set", set);
  add("--mesh", spec.request.mesh);
  add("--sharding", spec.request.sharding);
  for (const std::string& source : spec.request.sources) add("--source", source);
  add("--deny", spec.deny);
  add("--layout", spec.layout);
  add("--replicas", spec.replicas);
  return words;
}

// Tells whether a value may have the name of a file in it, and not only numbers.
bool MayNameFile(std::string_view value) {
  if (value.find_first_of("./") == value.npos) return false;
  return !ParseNumber<double>(value);
}

// Tells whether the words of the job may name files by paths that begin in the working directory.
bool MayBeRelative(const SpecRequest& request) {
  const auto value_of = [](std::string_view text) { return text.substr(text.find('=') + 1); };
  return MayNameFile(request.sharding) ||
         std::any_of(request.sets.begin(), request.sets.end(),
                     [&](const std::string& set) { return MayNameFile(value_of(set)); }) ||
         std::any_of(request.sources.begin(), request.sources.end(),
                     [&](const std::string& source) { return !value_of(source).starts_with('/'); });
}

bool HasParent(const fs::path& path) { return std::ranges::find(path, "..") != path.end(); }

// Returns a path without needless parts. What is above a folder is that of what a link leads to, so
// `..` stays.
std::string Plain(const fs::path& path) {
  std::string plain = (HasParent(path) ? path : path.lexically_normal()).string();
  while (plain.size() > 1 && plain.ends_with('/')) plain.pop_back();
  return plain;
}

std::string Absolute(const std::string& path) { return Plain(fs::absolute(path)); }

// Tells whether the name is that of something else in each process, such as an open file.
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

// Kubernetes puts variables in the place of `$(NAME)`, and `$` in that of `$$`.
std::string ForKubernetes(std::string_view text) {
  std::string escaped;
  for (const char c : text) escaped.append(c == '$' ? 2 : 1, c);
  return escaped;
}

// Refuses words in which the engine would see a place of its own to fill in.
void RequireWithout(std::string_view mark, const Job& job, std::string_view engine) {
  std::vector<std::string> texts = GenWords(job);
  texts.push_back(job.spec_text);
  texts.push_back(job.mount);
  texts.push_back(job.directory);
  for (const auto& [name, value] : job.variables) texts.push_back(value);
  for (const std::string& text : texts) {
    if (text.find(mark) == text.npos) continue;
    throw BadJob(fmt::format("{} would put something else in the place of `{}`, in {}", engine,
                             mark, Quote(text)),
                 "write the spec, or name its files, without it");
  }
}

void FillShell(const Job& job, TemplateValues* values) {
  (*values)["gen"] = InShell(GenWords(job));
  (*values)["folder"] = InShell(job.folder);
}

void FillObjectStore(const Job& job, TemplateValues* values) {
  (*values)["gen"] = InShell(GenWords(job, false));
  (*values)["remote"] = InShell(job.folder);
  (*values)["ranks"] = fmt::to_string(job.plan.world_size());
  (*values)["largest"] = InBytes(job.plan.max_rank_bytes);
}

// Returns a key of YAML with its list; nothing if the list is empty.
std::string YamlList(std::string_view key, const std::vector<std::string>& items) {
  return items.empty() ? "" : fmt::format("{}:\n  - {}", key, fmt::join(items, "\n  - "));
}

// Returns a key of YAML with its value; nothing if the value is empty.
std::string YamlLine(std::string_view key, const std::string& value) {
  return value.empty() ? "" : fmt::format("{}: {}", key, InYamlScalar(value));
}

// Sets what the templates in YAML have in common.
void FillContainers(const Job& job, TemplateValues* values) {
  (*values)["image"] = InYamlScalar(job.options.image);
  (*values)["directory"] = YamlLine("workingDir", job.directory);
  (*values)["service_account"] = YamlLine("serviceAccountName", job.options.service_account);
  (*values)["folder"] = InYamlScalar(ForKubernetes(job.folder));
  std::string args;
  for (const std::string& word : GenWords(job)) {
    args += fmt::format("{}- {}", args.empty() ? "" : "\n", InYamlScalar(ForKubernetes(word)));
  }
  (*values)["args"] = args;
  std::vector<std::string> variables;
  for (const auto& [name, value] : job.variables) {
    variables.push_back(fmt::format("{{name: {}, value: {}}}", InYamlScalar(name),
                                    InYamlScalar(ForKubernetes(value))));
  }
  std::string environment = YamlList("env", variables);
  if (const std::string& secret = job.options.secret; !secret.empty()) {
    environment += fmt::format("{}envFrom: [{{secretRef: {{name: {}}}}}]",
                               environment.empty() ? "" : "\n", InYamlScalar(secret));
  }
  (*values)["environment"] = environment;
  // A look at a bucket asks for the receipt of each rank, which costs money.
  (*values)["pause"] = job.is_in_bucket() ? "300" : "30";
}

// Sets the volumes of pods: that of a claim, if there is one, and that of a spec.
void FillVolumes(const Job& job, const std::string& claim, TemplateValues* values) {
  std::vector<std::string> mounts, volumes;
  if (!claim.empty()) {
    mounts.push_back(fmt::format("{{name: shared, mountPath: {}}}", InYamlScalar(job.mount)));
    volumes.push_back(fmt::format("{{name: shared, persistentVolumeClaim: {{claimName: {}}}}}",
                                  InYamlScalar(claim)));
  }
  if (values->contains("spec_volume")) {
    mounts.push_back(fmt::format("{{name: spec, mountPath: {}}}", kSpecFolder));
    volumes.push_back((*values)["spec_volume"]);
  }
  (*values)["mounts"] = YamlList("volumeMounts", mounts);
  (*values)["volumes"] = YamlList("volumes", volumes);
}

void FillKubernetes(const Job& job, TemplateValues* values) {
  FillContainers(job, values);
  const JobsOptions& options = job.options;
  if (!job.is_in_bucket() && options.volume.empty() == options.storage_class.empty()) {
    throw BadJob(options.volume.empty() ? "`kubernetes` needs a volume that all nodes may write to"
                                        : "`--volume` and `--storage-class` are two answers",
                 "name a claim that is there with `--volume`, or have one made with "
                 "`--storage-class`");
  }
  std::string documents, claim = options.volume;
  if (!options.storage_class.empty()) {
    // A tenth more than the files have: file systems and index.h5 need some.
    const auto bytes = static_cast<double>(BytesInFiles(job.plan)) * 1.1;
    TemplateValues of_volume = {
        {"name", job.name},
        {"class", InYamlScalar(options.storage_class)},
        {"gibibytes", fmt::to_string(static_cast<int64_t>(bytes / (1 << 30)) + 1)}};
    documents += FillJobTemplate("kubernetes-volume.yaml.in", of_volume);
    claim = job.name;
  }
  if (!job.spec_file.empty()) {
    documents += FillJobTemplate(
        "kubernetes-spec.yaml.in",
        {{"name", job.name}, {"file", job.spec_file}, {"text", InYamlScalar(job.spec_text)}});
    (*values)["spec_volume"] =
        fmt::format("{{name: spec, configMap: {{name: \"{}-spec\"}}}}", job.name);
  }
  FillVolumes(job, claim, values);
  if (documents.ends_with('\n')) documents.pop_back();
  (*values)["documents"] = documents;
  // A mistake that every part would find ends the job early, and not a few lost parts.
  (*values)["failed"] = fmt::to_string(std::min<int64_t>(job.parts, 10));
}

void FillArgo(const Job& job, TemplateValues* values) {
  RequireWithout("{{", job, "Argo");
  FillContainers(job, values);
  FillVolumes(job, job.options.volume, values);
  for (const char* own : {"item", "inputs.parameters.part"}) {
    (*values)[own] = fmt::format("{{{{{}}}}}", own);
  }
  (*values)["artifacts"] =
      job.spec_file.empty()
          ? ""
          : fmt::format("artifacts: [{{name: spec, path: {}, raw: {{data: {}}}}}]", job.spec,
                        InYamlScalar(job.spec_text));
}

// Returns the line of a shell that goes to the folder in which containers begin.
std::string GoThere(const Job& job) {
  return job.directory.empty() ? "" : fmt::format("cd -- {} || exit", InShell(job.directory));
}

void FillSkyPilot(const Job& job, TemplateValues* values) {
  FillContainers(job, values);
  (*values)["image"] = InYamlScalar("docker:" + job.options.image);
  (*values)["credentials"] =
      job.is_in_bucket() ? "#\n"
                           "# The nodes have the credentials that SkyPilot gives them. For others, "
                           "as those of another store than AWS:\n"
                           "#\n"
                           "#   sky launch --secret AWS_ACCESS_KEY_ID --secret "
                           "AWS_SECRET_ACCESS_KEY FILE"
                         : "";
  const auto mapping = [](std::string_view key, const std::string& name, const std::string& value) {
    return fmt::format("{}:\n  {}: {}", key, InYamlScalar(name), InYamlScalar(value));
  };
  (*values)["volumes"] =
      job.options.volume.empty() ? "" : mapping("volumes", job.mount, job.options.volume);
  (*values)["file_mounts"] =
      job.spec_file.empty()
          ? ""
          : mapping("file_mounts", job.spec, Absolute(job.options.spec.request.path));
  std::string envs;
  for (const auto& [name, value] : job.variables) {
    envs += fmt::format("{}\n  {}: {}", envs.empty() ? "envs:" : "", InYamlScalar(name),
                        InYamlScalar(value));
  }
  (*values)["envs"] = envs;
  (*values)["run"] =
      InYamlBlock(FillJobTemplate("skypilot-run.sh.in", {{"folder", InShell(job.folder)},
                                                         {"cd", GoThere(job)},
                                                         {"pause", (*values)["pause"]},
                                                         {"gen", InShell(GenWords(job))}}));
}

void FillBatch(const Job& job, TemplateValues* values) {
  RequireWithout("Ref::", job, "AWS Batch");
  std::vector<std::string> words = {
      "sh", "-c",
      fmt::format("{}exec \"$@\" --part \"$AWS_BATCH_JOB_ARRAY_INDEX/{}\"",
                  job.directory.empty() ? "" : "cd -- \"$1\" && shift && ", job.parts),
      "part"};
  if (!job.directory.empty()) words.push_back(job.directory);
  words.emplace_back("shardinit");
  for (std::string& word : GenWords(job)) words.push_back(std::move(word));
  (*values)["command"] = InJsonText(words);
  (*values)["image"] = InJsonText(job.options.image);
  (*values)["folder"] = InJsonText(job.folder);
  (*values)["queue"] = InShell(job.options.queue);
  std::vector<std::string> more;
  if (const std::string& role = job.options.job_role; !role.empty()) {
    more.push_back(fmt::format("\"jobRoleArn\": {},", InJsonText(role)));
  }
  std::vector<std::string> variables;
  for (const auto& [name, value] : job.variables) {
    variables.push_back(
        fmt::format("{{\"name\": \"{}\", \"value\": {}}}", name, InJsonText(value)));
  }
  if (!variables.empty()) {
    more.push_back(fmt::format("\"environment\": [{}],", fmt::join(variables, ", ")));
  }
  if (const std::string& volume = job.options.volume; !volume.empty()) {
    more.push_back(
        fmt::format("\"volumes\": [{{\"name\": \"shared\", \"efsVolumeConfiguration\": "
                    "{{\"fileSystemId\": {}, \"transitEncryption\": \"ENABLED\"}}}}],",
                    InJsonText(volume)));
    more.push_back(
        fmt::format("\"mountPoints\": [{{\"sourceVolume\": \"shared\", \"containerPath\": {}}}],",
                    InJsonText(job.mount)));
  }
  (*values)["more"] = fmt::format("{}", fmt::join(more, "\n"));
}

constexpr char kArrayLimit[] = "Slurm's default MaxArraySize allows an array of 1,001 tasks";

std::span<const JobEngine> JobEngines() {
  static const JobEngine kEngines[] = {
      {.name = "slurm", .file = "slurm.sh.in", .takes = {kNodes, kArray}, .fill = FillShell},
      {.name = "kubernetes",
       .file = "kubernetes.yaml.in",
       .sees = Sees::kVolume,
       .brings_spec = true,
       .most = 100'000,
       .limit = "an Indexed Job has at most 100,000 pods at a time",
       .takes = {kNodes, kImage, kVolume, kStorageClass, kMount, kEnv, kSecret, kServiceAccount},
       .needs = {kImage},
       .credentials = {kServiceAccount, kSecret},
       .own_variables = "JOB_COMPLETION_INDEX",
       .fill = FillKubernetes},
      {.name = "mpi", .file = "mpi.sh.in", .takes = {kNodes}, .fill = FillShell},
      {.name = "batch",
       .file = "batch.sh.in",
       .sees = Sees::kVolume,
       .least = 2,
       .most = 10'000,
       .limit = "an array of AWS Batch has 2 to 10,000 jobs",
       .takes = {kNodes, kImage, kVolume, kMount, kQueue, kEnv, kJobRole},
       .needs = {kImage, kQueue},
       .needs_in_folder = {kVolume},
       .credentials = {kJobRole},
       .own_variables = "AWS_BATCH",
       .fill = FillBatch},
      {.name = "argo",
       .file = "argo.yaml.in",
       .sees = Sees::kVolume,
       .brings_spec = true,
       .takes = {kNodes, kImage, kVolume, kMount, kEnv, kSecret, kServiceAccount},
       .needs = {kImage},
       .needs_in_folder = {kVolume},
       .credentials = {kServiceAccount, kSecret},
       .own_variables = "ARGO_",
       .fill = FillArgo},
      {.name = "skypilot",
       .file = "skypilot.yaml.in",
       .sees = Sees::kVolume,
       .brings_spec = true,
       .takes = {kNodes, kImage, kVolume, kMount, kEnv},
       .needs = {kImage},
       .needs_in_folder = {kVolume},
       .own_variables = "SKYPILOT_",
       .fill = FillSkyPilot},
      {.name = "object-store",
       .file = "object-store.sh.in",
       .takes_urls = false,
       .most = 1,
       .fill = FillObjectStore},
  };
  return kEngines;
}

JobsOptions::JobsOptions(CLI::App& app) {
  const std::string names = fmt::format("{}", fmt::join(NamesOf(JobEngines()), "|"));
  app.add_option("ENGINE", engine, fmt::format("What runs the jobs: {}", names))
      ->required()
      ->type_name(names);
  spec.AddTo(app, "Model spec or config.json");
  spec.AddLayoutTo(app);
  spec.AddReplicasTo(app);
  TakesUrl(AddText(app, "-o,--output", "DIR", &folder,
                   "Folder of the checkpoint, or its URL; object-store: REMOTE:PATH of rclone"))
      ->required();
  app.add_option("--nodes", nodes, "Parts, each on a node of its own; default 1, batch: 2")
      ->type_name("N")
      ->check(IsNodeCount);
  app.add_flag("--array", array, "slurm: an array of jobs, of one node each");
  AddText(app, "--image", "IMAGE", &image, "Image of the containers, which has shardinit");
  AddText(app, "--volume", "NAME", &volume,
          "Claim, volume or file system (fs-…) that all containers write to");
  AddText(app, "--storage-class", "CLASS", &storage_class,
          "kubernetes: make a claim of this class instead");
  AddText(app, "--mount", "PATH", &mount, "Where containers see the volume; default /work");
  AddText(app, "--queue", "NAME", &queue, "batch: the queue of AWS Batch");
  AddText(app, "--env", "NAME=VALUE", &env,
          "Variable of the containers, as AWS_REGION=eu-west-1; repeatable")
      ->allow_extra_args(false);
  AddText(app, "--service-account", "NAME", &service_account,
          "kubernetes, argo: the account of the pods, which may write to the bucket");
  AddText(app, "--secret", "NAME", &secret,
          "kubernetes, argo: a Secret with AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY");
  AddText(app, "--job-role", "ARN", &job_role,
          "batch: the role of the jobs, which may write to the bucket");
  AddText(app, "--name", "NAME", &name, "Name of the job; default: of the model");
}

const JobEngine& EngineOf(const JobsOptions& options) {
  const auto engines = JobEngines();
  if (const JobEngine* engine = FindNamed(engines, options.engine)) return *engine;
  const std::vector<std::string> names = NamesOf(engines);
  const std::string closest = Closest(options.engine, names);
  throw BadJob(fmt::format("there are no jobs for {}", Quote(options.engine)),
               closest.empty() ? fmt::format("one of `{}`", fmt::join(names, "`, `"))
                               : fmt::format("did you mean `{}`?", closest));
}

void RequireFlags(const JobsOptions& options, const JobEngine& engine) {
  for (int flag = 0; flag < kAllFlags; ++flag) {
    const auto given = static_cast<JobFlag>(flag);
    if (options.Has(given) && !Contains(engine.takes, given)) {
      throw BadJob(fmt::format("`{}` is not for `{}`", kJobFlags[flag], engine.name),
                   "leave it out; shardinit-jobs(1) says what it is for");
    }
    const bool is_needed =
        Contains(engine.needs, given) ||
        (!IsBucketUrl(options.folder) && Contains(engine.needs_in_folder, given));
    if (!options.Has(given) && is_needed) {
      throw BadJob(fmt::format("`{}` needs `{}`", engine.name, kJobFlags[flag]),
                   flag == kImage ? "`src/Containerfile` makes an image, for a registry of yours"
                                  : "shardinit-jobs(1) says what it is");
    }
  }
}

// Refuses a job in a bucket that would have no credentials, or a volume for nothing.
void RequireFlagsOfBucket(const JobsOptions& options, const JobEngine& engine) {
  if (!engine.takes_urls) {
    throw BadJob(fmt::format("`{}` writes to no URL", engine.name),
                 "name a remote of rclone, or use `shardinit gen -o URL`, which needs none");
  }
  ParseBucketUrl(options.folder);
  if (options.Has(kStorageClass)) {
    throw BadJob("`--storage-class` makes a volume for the checkpoint, which is in a bucket here",
                 "leave it out");
  }
  if (options.Has(kMount) && !options.Has(kVolume)) {
    throw BadJob("`--mount` says where containers see a volume, and there is none",
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
  throw BadJob(fmt::format("`{}` needs {} for a bucket: its jobs have no credentials of yours",
                           engine.name, names),
               "shardinit-jobs(1) says what it is");
}

// Returns the variables of the containers.
std::map<std::string, std::string> VariablesOf(const JobsOptions& options,
                                               const JobEngine& engine) {
  const auto is_in_name = [](char c) {
    return (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_';
  };
  std::map<std::string, std::string> variables;
  for (const std::string& text : options.env) {
    const size_t equal = text.find('=');
    const std::string name = text.substr(0, equal);
    if (equal == text.npos || name.empty() || !std::ranges::all_of(name, is_in_name) ||
        (name[0] >= '0' && name[0] <= '9')) {
      throw BadJob(fmt::format("`--env` of {} is no variable and its value", Quote(text)),
                   "write it as in `--env AWS_REGION=eu-west-1`");
    }
    if (name == "AWS_SECRET_ACCESS_KEY" || name == "AWS_SESSION_TOKEN") {
      throw BadJob(fmt::format("`--env {}=…` would print a secret", name),
                   "shardinit-jobs(1) says how jobs get credentials");
    }
    if (name.starts_with(engine.own_variables)) {
      throw BadJob(fmt::format("`--env {}=…`: `{}` sets this variable itself", name, engine.name),
                   "leave it out");
    }
    if (!variables.emplace(name, text.substr(equal + 1)).second) {
      throw BadJob(fmt::format("`--env {}=…` is given twice", name), "leave one of them out");
    }
  }
  return variables;
}

// The jobs would ask another store than this command's own would.
void SayIfElsewhere(const Job& job) {
  for (const char* name : {"AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"}) {
    if (Environment(name).empty() || job.variables.contains(name)) continue;
    Talk(
        fmt::format("shardinit: {} is set here, and the jobs do not have it: if they need it, give "
                    "`--env {}=…`\n",
                    name, name));
  }
}

int64_t PartsOf(const JobsOptions& options, const JobEngine& engine) {
  constexpr int64_t kMostOfArray = 1001;
  const int64_t parts = options.nodes > 0 ? options.nodes : engine.least;
  const int64_t most = options.array ? kMostOfArray : engine.most;
  if (parts >= engine.least && parts <= most) return parts;
  throw BadJob(fmt::format("`--nodes {}`: {}", parts,
                           options.array          ? kArrayLimit
                           : engine.limit.empty() ? "there cannot be so many"
                                                  : engine.limit),
               parts < engine.least
                   ? fmt::format("use {} at least", engine.least)
                   : fmt::format("use {} at most: a part may have many ranks", most));
}

// Returns the name of the job: that which is given, or one like the model's.
std::string JobNameOf(const JobsOptions& options, const std::string& model) {
  constexpr size_t kLongest = 40;  // Kubernetes has 63 for it and what it puts behind it.
  const auto is_plain = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-';
  };
  std::string name = options.name;
  if (!name.empty()) {
    if (name.size() > kLongest || !std::all_of(name.begin(), name.end(), is_plain) ||
        name.front() == '-' || name.back() == '-') {
      throw BadJob(
          fmt::format("{} is not the name of a job", Quote(name)),
          fmt::format("use up to {} small letters, digits and `-` between them", kLongest));
    }
    return name;
  }
  name = "shardinit";
  bool is_apart = true;
  for (char c : model) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
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

// Remembers the folders that a spec takes tensors from.
SourceOpener OpenAndNote(std::vector<std::string>* folders) {
  return [folders](const SourceRequest& request) {
    folders->push_back(request.folder);
    return OpenRecorded(request);
  };
}

Error NotSeen(const std::string& path, const Job& job) {
  if (job.mount.empty()) {
    return BadJob(fmt::format("the containers do not see `{}`: they have no volume", path),
                  "copy it to a volume that they can read, name that with `--volume` and "
                  "`--mount`, and run this where the volume has the same path");
  }
  return BadJob(
      fmt::format("the containers do not see `{}`: they see the volume at `{}`", path, job.mount),
      "copy it to the volume, and run this where the volume has the same path; or say "
      "with `--mount` where containers see it");
}

// Takes the text of a spec that is not on the volume along, if nothing in it depends on where it
// is.
void BringSpec(const JobsOptions& options, const std::string& path, Job* job) {
  job->spec_text = ReadFile(path);
  job->spec_file = path.ends_with(".json") ? "config.json" : "spec.yaml";
  job->spec = fmt::format("{}/{}", kSpecFolder, job->spec_file);
  if (job->spec_text.size() > kMostSpecBytes) {
    throw BadJob(fmt::format("`{}` has {}, too many to go along with a job", path,
                             Count(static_cast<int64_t>(job->spec_text.size()), "byte")),
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
  throw BadJob(
      fmt::format("`{}` names other files by where it is, so it cannot go along with a job", path),
      "copy them to a volume, and run this where the volume has the same path");
}

// Settles where containers see the volume, and where they begin.
void PlaceVolume(const JobsOptions& options, Job* job) {
  job->mount = options.mount.empty() ? "/work" : options.mount;
  if (!job->mount.starts_with('/')) {
    throw BadJob(fmt::format("`--mount {}` is no absolute path", job->mount),
                 "containers see the volume at such a path: `--mount /work`");
  }
  job->mount = Absolute(job->mount);
  const std::string here = Absolute(".");
  job->directory = here == job->mount || IsBelow(here, job->mount) ? here : job->mount;
}

// Settles what containers see: the folder, the spec, and all files that were read for it.
void PlaceInContainers(const JobsOptions& options, const std::vector<std::string>& sources,
                       Job* job) {
  if (!job->is_in_bucket() || options.Has(kVolume)) PlaceVolume(options, job);
  const auto is_seen = [job](const std::string& file) {
    return !job->mount.empty() && IsBelow(file, job->mount);
  };
  if (!job->is_in_bucket()) {
    job->folder = Plain(fs::path(job->directory) / options.folder);
    if (!is_seen(job->folder)) throw NotSeen(job->folder, *job);
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

// Returns the path of the spec that holds in another folder, too.
std::string LastingPath(const SpecRequest& request) {
  const std::string path = PathOfSpec({}, request.path);
  if (IsShipped(path)) return path;
  if (!fs::is_regular_file(path) || IsOfProcess(Absolute(path))) {
    throw BadJob(fmt::format("`{}` is no file that a job can read later", path),
                 "write the spec to a file");
  }
  return Absolute(path);
}

ExitCode RunJobs(const JobsOptions& options) {
  const JobEngine& engine = EngineOf(options);
  RequireFlags(options, engine);
  const int64_t parts = PartsOf(options, engine);
  const bool is_in_bucket = IsBucketUrl(options.folder);
  if (is_in_bucket) RequireFlagsOfBucket(options, engine);
  if (options.spec.request.path == "-") {
    throw BadJob("a job cannot read the standard input of this command",
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
      throw BadJob(fmt::format("`-o {}` is no remote of rclone", options.folder),
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
                     parts - job.plan.world_size(), Count(parts, "part"),
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
  Print(FillJobTemplate(options.array ? "slurm-array.sh.in" : engine.file, values));
  return ExitCode::kOk;
}

}  // namespace

extern const Command kJobs = {"jobs", "Print a script that has a cluster make a checkpoint",
                              Configure<RunJobs>};

}  // namespace shardinit
