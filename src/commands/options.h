// Defines the options that several commands share, each spelled and explained once.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>
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
  std::string output;  // where Print() writes; empty or `-`: standard output
  bool force = false, quiet = false, verbose = false;
  std::string color = "auto";

  // Adds --output and --force unless the command has its own.
  void AddTo(CLI::App& app);
  bool redirects() const { return !output.empty() && output != "-"; }
};

// The hint if HasOverrides() but a spec is missing.
inline constexpr char kOverridesAreForSpecs[] =
    "`--set`, `--source`, `--mesh`, `--sharding` and `--layout` need a spec";

// The options SPEC, --set, --mesh, --sharding, --source and --deny. Commands can add --layout,
// --replicas, --tokens and --memory-per-rank.
struct SpecOptions {
  SpecRequest request;
  std::string deny, replicas, layout, tokens, memory_per_rank;
  Places places = Places::kFound;
  bool says_warnings = true;
  bool layout_is_optional = false;  // as in PlanRequest

  // Returns SPEC.
  CLI::Option* AddTo(CLI::App& app,
                     const char* help = "Model spec or config.json, or `-` for standard input");
  void AddOverridesTo(CLI::App& app);  // --set, --mesh, --sharding, --source and --deny only
  void AddLayoutTo(CLI::App& app,
                   const char* help = "Store the tensors in this layout of the spec");
  void AddReplicasTo(CLI::App& app);
  // Adds all of the above, for commands that show a plan.
  void AddAllTo(CLI::App& app);
  // Returns whether --set, --mesh, --sharding, --source or --layout, which are for specs, is given.
  bool HasOverrides() const;
  // Returns the value of --replicas.
  std::optional<Replicas> FindReplicas() const;
  // Returns how to treat warnings. --quiet omits them unless they are data.
  Warnings FindWarnings(bool are_data = false) const;
  // Loads the plan and prints the spec's warnings to standard error. The places in an `explanation`
  // are valid as long as `diagnostics` exists.
  Plan Load() const;
  // Does the same for a command that generates values. Throws Error (kUsage) if the layout would
  // change the meaning of a source's elements.
  Plan LoadToMake() const;
  // Does the same for a request that already has other settings, such as an explanation.
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

  // Returns the selected ranks, ascending; by default, all ranks. A part may be empty. Throws Error
  // (kUsage).
  std::vector<int64_t> Ranks(const Plan& plan) const;
  // Returns the selected ranks, or nothing if no option selects any.
  std::optional<std::vector<int64_t>> SelectedRanks(const Plan& plan) const;
  // Returns the value of --part, or nothing if it is not given. Throws Error (kUsage).
  std::optional<JobPart> FindPart() const;
};
void AddRanks(CLI::App& app, RankOptions* options);
// Adds only `--part I/N`.
void AddPart(CLI::App& app, std::string* part, const char* what);
// Throws Error (kUsage) if `option` cannot have `count` parts.
void RequirePartCount(std::string_view option, int64_t count);

// Adds `--only GLOB`, for Matching().
void AddOnly(CLI::App& app, std::string* only);
// Adds `--part-of-file KEY`, for TensorFolder.
void AddPartOfFile(CLI::App& app, std::string* part);
// Throws Error (kUsage) if `part` is given for a spec.
void RequireNoPart(const std::string& part, const std::string& spec);

// Returns the tensor's distribution or, for a view, its description.
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

// Returns the index of the option's value in `words`, which follow an enumeration. Throws Error
// (kUsage) for other values.
size_t ChoiceOf(std::string_view option, const std::string& value,
                const std::vector<std::string_view>& words);

// Rejects an empty value, as from an unset shell variable: it does not mean the default.
std::string NotEmpty(const std::string& value);

// Returns a check that a value is a whole number of that range. The error recommends `what`.
std::function<std::string(const std::string&)> WholeNumber(int64_t least, int64_t most,
                                                           std::string_view what);

// Let an option or argument accept a URL as well as a path: any URL to read, or the URL of a folder
// in a bucket, which can also be written.
CLI::Option* TakesUrl(CLI::Option* option);
CLI::Option* TakesBucket(CLI::Option* option);
// Throws Error (kUsage) if the value is a URL that the option does not accept.
void RequireKnownPlace(const CLI::Option& option, const std::string& value);

// Adds an option whose value is a non-empty text, or a list of them. `type` is the name of the
// value in the help.
template <typename T>
CLI::Option* AddText(CLI::App& app, const std::string& name, const char* type, T* value,
                     const std::string& help) {
  return app.add_option(name, *value, help)->type_name(type)->check(NotEmpty);
}

// Parses the value of `option`: bytes, or a number with K, M, G, T or KiB, MiB, GiB, TiB (of 1024)
// or KB, MB, GB, TB (of 1000). Throws Error (kUsage) for other text and for values below `least`.
int64_t ParseSize(std::string_view option, const std::string& text, int64_t least);

// Throws Error (kUsage) if `folder`, which a command creates, is named like another tool's file or
// is in a mounted bucket.
void RequireFolderName(const std::string& folder);

// Throws Error (kUsage) if `folder`, a new folder, is inside the checkpoint that is copied, which
// it would not belong to. Also rejects the checkpoint's own folder unless `may_be_it`: a user who
// reads that it is in the way might remove it.
void RequireOutside(const std::string& folder, const std::string& checkpoint, bool may_be_it);

}  // namespace shardinit
