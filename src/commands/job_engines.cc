// Fills in the job template of each engine. JobEngines(), at the end, has a row for each engine.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "base/table.h"
#include "base/text.h"
#include "commands/job_engine.h"
#include "commands/job_text.h"
#include "report/text.h"

namespace shardinit {
namespace {

// Returns the words after the program's name that generate the ranks. Options have the form
// `--set=…`, so that a value cannot be mistaken for an option.
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

// Escapes `$` as `$$`: Kubernetes replaces `$(NAME)` by a variable, and `$$` by `$`.
std::string EscapeForKubernetes(std::string_view text) {
  std::string escaped;
  for (const char c : text) escaped.append(c == '$' ? 2 : 1, c);
  return escaped;
}

// Rejects words that contain the engine's own placeholder mark.
void RequireWithout(std::string_view mark, const Job& job, std::string_view engine) {
  std::vector<std::string> texts = GenWords(job);
  texts.push_back(job.spec_text);
  texts.push_back(job.mount);
  texts.push_back(job.directory);
  for (const auto& [name, value] : job.variables) texts.push_back(value);
  for (const std::string& text : texts) {
    if (text.find(mark) == text.npos) continue;
    throw Usage(fmt::format("{} would put something else in the place of `{}`, in {}", engine, mark,
                            Quote(text)),
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

// Returns a YAML key with its list, or an empty text for an empty list.
std::string YamlList(std::string_view key, const std::vector<std::string>& items) {
  return items.empty() ? "" : fmt::format("{}:\n  - {}", key, fmt::join(items, "\n  - "));
}

// Returns a YAML key with its value, or an empty text for an empty value.
std::string YamlLine(std::string_view key, const std::string& value) {
  return value.empty() ? "" : fmt::format("{}: {}", key, InYamlScalar(value));
}

// Sets the values that the YAML templates share.
void FillContainers(const Job& job, TemplateValues* values) {
  (*values)["image"] = InYamlScalar(job.options.image);
  (*values)["directory"] = YamlLine("workingDir", job.directory);
  (*values)["service_account"] = YamlLine("serviceAccountName", job.options.service_account);
  (*values)["folder"] = InYamlScalar(EscapeForKubernetes(job.folder));
  std::string args;
  for (const std::string& word : GenWords(job)) {
    args +=
        fmt::format("{}- {}", args.empty() ? "" : "\n", InYamlScalar(EscapeForKubernetes(word)));
  }
  (*values)["args"] = args;
  std::vector<std::string> variables;
  for (const auto& [name, value] : job.variables) {
    variables.push_back(fmt::format("{{name: {}, value: {}}}", InYamlScalar(name),
                                    InYamlScalar(EscapeForKubernetes(value))));
  }
  std::string environment = YamlList("env", variables);
  if (const std::string& secret = job.options.secret; !secret.empty()) {
    environment += fmt::format("{}envFrom: [{{secretRef: {{name: {}}}}}]",
                               environment.empty() ? "" : "\n", InYamlScalar(secret));
  }
  (*values)["environment"] = environment;
  // In a bucket, each look requests the receipt of every rank, which costs money.
  (*values)["pause"] = job.is_in_bucket() ? "300" : "30";
}

// Sets the volumes of pods: the claim's volume, if any, and the spec's volume.
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
    throw Usage(options.volume.empty() ? "`kubernetes` needs a volume that all nodes may write to"
                                       : "`--volume` and `--storage-class` exclude each other",
                "name an existing claim with `--volume`, or create one with `--storage-class`");
  }
  std::string documents, claim = options.volume;
  if (!options.storage_class.empty()) {
    // Add 10% to the size of the files: file systems and index.h5 need space.
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
  // A mistake that every part finds ends the job early. A few lost parts do not end it.
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

// Returns a shell line that enters the folder in which containers start.
std::string EnterFolderLine(const Job& job) {
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
                                                         {"cd", EnterFolderLine(job)},
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

}  // namespace

bool HasParent(const std::filesystem::path& path) {
  return std::ranges::find(path, "..") != path.end();
}

std::string WithoutRedundantParts(const std::filesystem::path& path) {
  std::string plain = (HasParent(path) ? path : path.lexically_normal()).string();
  while (plain.size() > 1 && plain.ends_with('/')) plain.pop_back();
  return plain;
}

std::string Absolute(const std::string& path) {
  return WithoutRedundantParts(std::filesystem::absolute(path));
}

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

JobsOptions::JobsOptions(CLI::App& app) : app(app) {
  const std::string names = fmt::format("{}", fmt::join(NamesOf(JobEngines()), "|"));
  app.add_option("ENGINE", engine, fmt::format("What runs the jobs: {}", names))
      ->required()
      ->type_name(names);
  spec.AddTo(app, "Model spec or config.json");
  spec.AddLayoutTo(app);
  spec.AddReplicasTo(app);
  TakesBucket(AddText(app, "-o,--output", "DIR", &folder,
                      "Folder of the checkpoint, or its URL; object-store: REMOTE:PATH of rclone"))
      ->required();
  app.add_option("--nodes", nodes, "Parts, each on its own node; default 1, batch: 2")
      ->type_name("N")
      ->check(WholeNumber(1, INT64_MAX, "a whole number from 1 on"));
  app.add_flag("--array", array, "slurm: an array of one-node jobs");
  AddText(app, "--image", "IMAGE", &image, "Container image that contains shardinit");
  AddText(app, "--volume", "NAME", &volume,
          "Claim, volume or file system (fs-…) that all containers write to");
  AddText(app, "--storage-class", "CLASS", &storage_class,
          "kubernetes: create a claim of this class instead");
  AddText(app, "--mount", "PATH", &mount, "Where containers see the volume; default /work");
  AddText(app, "--queue", "NAME", &queue, "batch: the queue of AWS Batch");
  AddText(app, "--env", "NAME=VALUE", &env,
          "Environment variable of the containers, such as AWS_REGION=eu-west-1; repeatable")
      ->allow_extra_args(false);
  AddText(app, "--service-account", "NAME", &service_account,
          "kubernetes, argo: the account of the pods, which may write to the bucket");
  AddText(app, "--secret", "NAME", &secret,
          "kubernetes, argo: a Secret with AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY");
  AddText(app, "--job-role", "ARN", &job_role,
          "batch: the role of the jobs, which may write to the bucket");
  AddText(app, "--name", "NAME", &name, "Name of the job; default: the model's name");
}

}  // namespace shardinit
