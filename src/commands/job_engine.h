// Describes the cluster engines that `jobs` writes for, and the jobs that they run.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "commands/options.h"
#include "place/place.h"
#include "plan/plan.h"
#include "report/template.h"

namespace shardinit {

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
inline constexpr std::string_view kJobFlags[kAllFlags] = {
    "--nodes", "--array", "--image",  "--volume",          "--storage-class", "--mount",
    "--queue", "--env",   "--secret", "--service-account", "--job-role"};

struct JobsOptions {
  explicit JobsOptions(CLI::App& app);

  const CLI::App& app;
  SpecOptions spec;
  std::string engine, folder, name, image, volume, storage_class, mount, queue;
  std::string secret, service_account, job_role;
  std::vector<std::string> env;
  int64_t nodes = 0;  // 0: not given
  bool array = false;

  bool Has(JobFlag flag) const {
    return flag == kArray ? array : app.count(std::string(kJobFlags[flag])) > 0;
  }
};

// The folder in which containers find a spec that is part of the job.
inline constexpr char kSpecFolder[] = "/etc/shardinit";
inline constexpr size_t kMostSpecBytes = 512 << 10;  // A ConfigMap takes 1 MiB.

struct JobEngine;

// The job that an engine's template describes.
struct Job {
  const JobsOptions& options;
  const JobEngine& engine;
  Plan plan;
  int64_t parts = 1;
  std::string name = {};       // lower-case letters, digits and `-`
  std::string spec = {};       // the path of the spec in the jobs
  std::string spec_file = {};  // The name of a spec that is part of the job, or empty.
  std::string spec_text = {};
  std::string folder = {};  // absolute, unless it is a URL or an rclone remote
  // Where containers mount the volume, and where they start. Both are empty without a volume.
  std::string mount = {}, directory = {};
  std::map<std::string, std::string> variables = {};  // of --env

  bool is_in_bucket() const { return Place::TraitsAt(folder).is_remote; }
};

// Where jobs run, which decides the files that they see.
enum class Sees {
  kAll,     // all files that this machine sees
  kVolume,  // the files of a volume, and the spec if `brings_spec`
};

struct JobEngine {
  std::string_view name, file;  // `file` is in configs/jobs/
  Sees sees = Sees::kAll;
  bool brings_spec = false, takes_urls = true;
  int64_t least = 1, most = 1'000'000;  // parts
  std::string_view limit = {};  // the reason for `least` and `most`; empty: nobody exceeds them
  std::vector<JobFlag> takes = {}, needs = {};
  std::vector<JobFlag> needs_in_folder = {};
  std::vector<JobFlag> credentials = {};  // for a bucket; one of them is required
  std::string_view own_variables = {};    // the prefix of the engine's own variables
  void (*fill)(const Job& job, TemplateValues* values);
};

std::span<const JobEngine> JobEngines();

bool HasParent(const std::filesystem::path& path);  // whether the path has a component `..`
// Return a path without redundant components. `..` stays: after a link, it means the parent of the
// link's target.
std::string WithoutRedundantParts(const std::filesystem::path& path);
std::string Absolute(const std::string& path);

// Slurm's limit, only for `--array`.
inline constexpr char kArrayLimit[] = "Slurm's default MaxArraySize allows an array of 1,001 tasks";

}  // namespace shardinit
