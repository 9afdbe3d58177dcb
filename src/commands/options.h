// Options that several commands share are spelt and explained once, here.
#pragma once

#include <CLI/CLI.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/diagnostics.h"
#include "checkpoint/manifest.h"
#include "generate/workers.h"
#include "plan/load.h"
#include "plan/part.h"
#include "report/progress.h"

namespace shardinit {

// The options of every command.
struct CommonOptions {
  std::string output;  // where Print() goes; empty, or `-`: standard output
  bool force = false, quiet = false, verbose = false;
  std::string color = "auto";

  // Adds --output and --force unless the command has its own.
  void AddTo(CLI::App& app);
  bool redirects() const { return !output.empty() && output != "-"; }
};

// The hint where HasOverrides() holds and there is no spec.
inline constexpr char kOverridesAreForSpecs[] =
    "`--set`, `--source`, `--mesh`, `--sharding` and `--layout` are for specs";

// The options SPEC, --set, --mesh, --sharding, --source, --deny and, where commands add them,
// --layout, --replicas, --tokens and --memory-per-rank.
struct SpecOptions {
  SpecRequest request;
  std::string deny, replicas, layout, tokens, memory_per_rank;
  Places places = Places::kFound;
  bool says_warnings = true;
  bool layout_is_optional = false;  // as of PlanRequest

  // Returns SPEC.
  CLI::Option* AddTo(CLI::App& app,
                     const char* help = "Model spec or config.json, or `-` for standard input");
  void AddOverridesTo(CLI::App& app);  // --set, --mesh, --sharding, --source and --deny alone
  void AddLayoutTo(CLI::App& app,
                   const char* help = "Store the tensors in this layout of the spec");
  void AddReplicasTo(CLI::App& app);
  // Adds all of them, for commands that show a plan.
  void AddAllTo(CLI::App& app);
  // Tells whether --set, --mesh, --sharding, --source or --layout is given, which are for specs
  // alone.
  bool HasOverrides() const;
  // Returns the value of --replicas.
  std::optional<Replicas> FindReplicas() const;
  // Returns what to do about warnings, which --quiet leaves out unless they are data.
  Warnings FindWarnings(bool are_data = false) const;
  // Loads the plan and prints the spec's warnings to standard error. The places in an `explanation`
  // live as long as `diagnostics`.
  Plan Load() const;
  // Does the same for a command that makes the values. Throws Error (kUsage) if the layout would
  // give elements of a source another meaning.
  Plan LoadToMake() const;
  // `wanted` says what else to find.
  Plan Load(Diagnostics& diagnostics, PlanRequest wanted) const;
};

// The options --jobs, --memory and --progress.
struct WorkOptions {
  int jobs = 0;
  std::string memory = "160M";
  std::string progress = "auto";

  void AddJobsTo(CLI::App& app, const char* what_jobs_do);
  void AddMemoryTo(CLI::App& app);
  void AddProgressTo(CLI::App& app);
  int Jobs() const;
  WorkerOptions Workers(bool writes) const;
  ProgressMode Mode() const;
};

// The options --ranks, --devices and --part.
struct RankOptions {
  std::string ranks, devices, part;

  // Returns the ranks asked for, ascending; all ranks by default. A part may have none. Throws
  // Error (kUsage).
  std::vector<int64_t> Ranks(const Plan& plan) const;
  // Returns the ranks asked for; nothing if no option asks for some.
  std::optional<std::vector<int64_t>> Some(const Plan& plan) const;
  // Returns the value of --part; nothing if it is not given. Throws Error (kUsage).
  std::optional<JobPart> FindPart() const;
};
void AddRanks(CLI::App& app, RankOptions* options);
// Adds `--part I/N` alone.
void AddPart(CLI::App& app, std::string* part, const char* what);
// Throws Error (kUsage) if this is no number of parts that an option may have.
void RequirePartCount(std::string_view option, int64_t count);

// Adds `--only GLOB`, for Matching().
void AddOnly(CLI::App& app, std::string* only);
// Adds `--part-of-file KEY`, for TensorFolder.
void AddPartOfFile(CLI::App& app, std::string* part);
// Throws Error (kUsage) if a part is asked for of a spec.
void RequireNoPart(const std::string& part, const std::string& spec);

// Returns the tensor's distribution, or what it is a view of.
std::string InitText(const Tensor& tensor);

// Returns ` (fsdp=128, tensor=4)`; empty for a mesh without axes.
std::string MeshText(const Mesh& mesh);

// Returns `7.1 GB in 3.50 s (2.03 GB/s)`.
std::string InSpeed(int64_t bytes, double seconds);

// Adds `--rank R`.
void AddRank(CLI::App& app, int64_t* rank, const char* what);
// Throws Error (kUsage) if the mesh has no such rank.
void CheckRank(int64_t rank, const Plan& plan);
void AddJson(CLI::App& app, bool* json);
// Adds `--force`, for a ResultFile.
void AddForce(CLI::App& app, bool* force);
void AddIndex(CLI::App& app, std::string* index);
IndexMode FindIndexMode(const std::string& name);

// Returns the number of the word that the value of an option is, in the order of an enumeration.
// Throws Error (kUsage) for others.
size_t ChoiceOf(std::string_view option, const std::string& value,
                const std::vector<std::string_view>& words);

// Rejects an option's value that a shell left empty, by an unset variable say: it is a mistake and
// not the default.
std::string NotEmpty(const std::string& value);

// Lets an option or argument take the URL of a folder in a bucket as well as a path.
CLI::Option* TakesUrl(CLI::Option* option);
bool MayBeUrl(const CLI::Option& option);

// Adds an option whose value is text, or a list of such, and is not empty. `type` is its name in
// the help.
template <typename T>
CLI::Option* AddText(CLI::App& app, const std::string& name, const char* type, T* value,
                     const std::string& help) {
  return app.add_option(name, *value, help)->type_name(type)->check(NotEmpty);
}

// Reads the value of `option`: bytes, or with K, M, G, T or KiB, MiB, GiB, TiB of 1024 and KB, MB,
// GB, TB of 1000. Throws Error (kUsage) for other text, and below `least`.
int64_t ParseSize(std::string_view option, const std::string& text, int64_t least);

// Throws Error (kUsage) if `folder`, which a command makes, is named as a file of another tool, or
// is in a bucket that is mounted.
void RequireFolderName(const std::string& folder);

// Throws Error (kUsage) if `folder`, a new folder, is within the checkpoint that is copied: it
// would not belong to it. The checkpoint's own folder is refused, too, unless `may_be_it`: who is
// told that it is in the way might remove it.
void RequireOutside(const std::string& folder, const std::string& checkpoint, bool may_be_it);

}  // namespace shardinit
