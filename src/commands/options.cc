// Defines the options that several commands share, and checks their values.
#include "commands/options.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <functional>
#include <iterator>

#include "base/error.h"
#include "base/mount.h"
#include "base/parallel.h"
#include "base/parse_number.h"
#include "base/suggest.h"
#include "base/talk.h"
#include "base/text.h"
#include "bucket/url.h"
#include "checkpoint/source.h"
#include "formats/parts.h"
#include "graph/stored/view.h"
#include "plan/conventions.h"
#include "plan/part.h"
#include "report/text.h"

namespace shardinit {
namespace {

// The names of the validators that mark options that accept URLs.
constexpr char kUrlValidator[] = "url", kBucketValidator[] = "bucket";

// Removes a decimal number from the front of `*text`.
bool TakeNumber(std::string_view* text, int64_t* number) {
  const auto [end, error] = std::from_chars(text->data(), text->data() + text->size(), *number);
  if (error != std::errc() || *number < 0) return false;
  text->remove_prefix(static_cast<size_t>(end - text->data()));
  return true;
}

struct Range {
  int64_t first, last;
};

// Parses `0,3-5` as 0-0, 3-5: ascending ranges that do not touch each other.
std::vector<Range> ParseRanges(std::string_view option, const std::string& text) {
  std::vector<Range> ranges;
  std::string_view rest = text;
  while (true) {
    Range range{0, 0};
    if (!TakeNumber(&rest, &range.first)) break;
    range.last = range.first;
    if (rest.starts_with('-')) {
      rest.remove_prefix(1);
      if (!TakeNumber(&rest, &range.last)) break;
    }
    if (range.first > range.last) {
      throw Usage(fmt::format("`{} {}`: {} comes after {}", option, text, range.first, range.last));
    }
    ranges.push_back(range);
    if (rest.empty()) {
      std::sort(ranges.begin(), ranges.end(),
                [](const Range& a, const Range& b) { return a.first < b.first; });
      std::vector<Range> joined;
      for (const Range& each : ranges) {
        if (joined.empty() || each.first > joined.back().last) {
          joined.push_back(each);
        } else {
          joined.back().last = std::max(joined.back().last, each.last);
        }
      }
      return joined;
    }
    if (!rest.starts_with(',')) break;
    rest.remove_prefix(1);
  }
  throw Usage(fmt::format("`{}` is not a list of {}", text, option.substr(2)),
              "write it as in `0,3-5`");
}

// Parses `0,3-5` as 0 3 4 5: ascending, without repeats, each below `world_size`.
std::vector<int64_t> ParseRanks(const std::string& text, int64_t world_size) {
  std::vector<int64_t> ranks;
  for (const Range& range : ParseRanges("--ranks", text)) {
    if (range.last >= world_size) {
      throw Usage(
          fmt::format("rank {} does not exist: the mesh has {} ranks", range.last, world_size),
          fmt::format("use ranks from 0 to {}", world_size - 1));
    }
    for (int64_t rank = range.first; rank <= range.last; ++rank) ranks.push_back(rank);
  }
  return ranks;
}

// Parses `2/8` as part 2 of the parts 0 to 7.
JobPart ParsePart(const std::string& text) {
  std::string_view rest = text;
  int64_t index = 0, count = 0;
  const bool is_part = TakeNumber(&rest, &index) && rest.starts_with('/') &&
                       (rest.remove_prefix(1), TakeNumber(&rest, &count)) && rest.empty();
  if (!is_part) {
    throw Usage(fmt::format("`--part {}` is not a part", text),
                "write it as in `0/8`, for the first of 8");
  }
  RequirePartCount("--part", count);
  if (index >= count) {
    throw Usage(fmt::format("`--part {}`: parts count from 0", text),
                fmt::format("use parts from `0/{0}` to `{1}/{0}`", count, count - 1));
  }
  return {index, count};
}

// Returns the ranks of a part.
std::vector<int64_t> RanksOf(const JobPart& part, const Plan& plan) {
  const std::vector<int64_t> first = RanksOfParts(plan, part.count);
  std::vector<int64_t> ranks;
  for (int64_t rank = first[part.index]; rank < first[part.index + 1]; ++rank) {
    ranks.push_back(rank);
  }
  return ranks;
}

// Parses such a list of device ids, and returns the ranks on them, ascending.
std::vector<int64_t> ParseDevices(const std::string& text, const Mesh& mesh) {
  const std::vector<Range> ranges = ParseRanges("--devices", text);
  const DeviceMap devices(mesh);
  std::vector<int64_t> ranks, found;
  for (int64_t rank = 0; rank < mesh.world_size(); ++rank) {
    const int64_t id = devices.At(rank).id;
    const auto after =
        std::upper_bound(ranges.begin(), ranges.end(), id,
                         [](int64_t i, const Range& range) { return i < range.first; });
    if (after == ranges.begin() || std::prev(after)->last < id) continue;
    ranks.push_back(rank);
    found.push_back(id);
  }
  std::sort(found.begin(), found.end());
  auto next = found.begin();
  for (const Range& range : ranges) {
    for (int64_t id = range.first; id <= range.last; ++id, ++next) {
      if (next != found.end() && *next == id) continue;
      throw Usage(fmt::format("the mesh has no device {}", id),
                  mesh.devices.ids
                      ? "`shardinit plan --devices` shows which it has"
                      : fmt::format("use devices from 0 to {}", mesh.world_size() - 1));
    }
  }
  return ranks;
}

}  // namespace

void CommonOptions::AddTo(CLI::App& app) {
  constexpr char kGroup[] = "Options of every command";
  if (app.get_option_no_throw("--output") == nullptr) {
    AddText(app, "-o,--output", "FILE", &output, "Write the output to a new file")->group(kGroup);
    if (app.get_option_no_throw("--force") == nullptr) {
      app.add_flag("--force", force, "Overwrite an existing file, whoever wrote it")->group(kGroup);
    }
  }
  AddText(app, "--color", "auto|always|never", &color,
          "Colour the output; default auto: in a terminal")
      ->group(kGroup);
  app.add_flag("-q,--quiet", quiet, "Print errors and results only")->group(kGroup);
  app.add_flag("-v,--verbose", verbose, "Report time and memory at the end")->group(kGroup);
}

CLI::Option* SpecOptions::AddTo(CLI::App& app, const char* help) {
  CLI::Option* const option = app.add_option("SPEC", request.path, help)->required();
  AddOverridesTo(app);
  return option;
}

void SpecOptions::AddReplicasTo(CLI::App& app) {
  AddText(app, "--replicas", "dedupe|full", &replicas,
          "Store a replicated box once, or in every rank's file");
}

void SpecOptions::AddOverridesTo(CLI::App& app) {
  AddText(app, "--set", "KEY=VALUE", &request.sets,
          "Override a value of the spec, such as seed=7; repeatable")
      ->allow_extra_args(false);
  AddText(app, "--mesh", "AXIS=SIZE,...", &request.mesh, "Use this mesh, such as fsdp=8,tensor=4");
  AddText(app, "--sharding", "FILE|WORD", &request.sharding,
          "Use this sharding (a file or word) instead of the spec's");
  AddText(app, "--source", "NAME=DIR", &request.sources,
          "Use this folder as a source of the spec; repeatable")
      ->allow_extra_args(false);
  AddText(app, "--deny", "warnings", &deny, "Treat warnings about the spec as errors");
}

void SpecOptions::AddLayoutTo(CLI::App& app, const char* help) {
  AddText(app, "--layout", "NAME", &layout, help);
}

bool SpecOptions::HasOverrides() const {
  return !(request.sets.empty() && request.sources.empty() && request.mesh.empty() &&
           request.sharding.empty() && layout.empty());
}

std::optional<Replicas> SpecOptions::FindReplicas() const {
  if (replicas.empty()) return {};
  return static_cast<Replicas>(ChoiceOf("--replicas", replicas, {"dedupe", "full"}));
}

void SpecOptions::AddAllTo(CLI::App& app) {
  AddTo(app);
  AddLayoutTo(app);
  AddReplicasTo(app);
  places = Places::kLeast;
  AddText(app, "--tokens", "COUNT", &tokens,
          "Tokens of a training step, such as 4M, for the cost of a sharding");
  AddText(app, "--memory-per-rank", "SIZE", &memory_per_rank,
          "Memory of a rank that `sharding: auto` may use, such as 80G");
}

Warnings SpecOptions::FindWarnings(bool are_data) const {
  if (!deny.empty()) {
    if (deny != "warnings") throw Usage(fmt::format("`--deny {}`: use `warnings`", deny));
    return Warnings::kDeny;
  }
  const bool are_said = says_warnings && LoudnessOfTalk() != Loudness::kQuiet;
  return are_said || are_data ? Warnings::kReport : Warnings::kIgnore;
}

Plan SpecOptions::Load() const {
  Diagnostics diagnostics;
  return Load(diagnostics, {});
}

Plan SpecOptions::Load(Diagnostics& diagnostics, PlanRequest wanted) const {
  wanted.spec = request;
  if (!wanted.open_source) wanted.open_source = OpenSource;
  wanted.replicas = FindReplicas();
  wanted.layout = layout;
  wanted.layout_is_optional = layout_is_optional;
  wanted.places = places;
  wanted.warnings = FindWarnings();
  auto* training = &wanted.spec.training;
  if (!tokens.empty()) training->push_back({"--tokens", "tokens", tokens});
  if (!memory_per_rank.empty()) {
    training->push_back({"--memory-per-rank", "memory_per_rank", memory_per_rank});
  }
  Plan plan = LoadPlan(wanted, diagnostics);
  Talk(Render(diagnostics.all()));
  return plan;
}

Plan SpecOptions::LoadToMake() const {
  Plan plan = Load();
  RequireConventions(plan);
  const std::vector<std::string> shifted = ShiftedTensors(plan);
  if (!shifted.empty()) {
    TalkUnlessQuiet(
        fmt::format("shardinit: the trainer of this layout has another convention for {}, such as "
                    "{}: values are written unchanged, in the spec's convention\n",
                    Count(std::ssize(shifted), "tensor"), Quote(shifted.front())));
  }
  return plan;
}

void WorkOptions::AddJobsTo(CLI::App& app, const char* what_jobs_do) {
  app.add_option("-j,--jobs", jobs,
                 fmt::format("Threads that {}; default: the cores this job may use", what_jobs_do))
      ->type_name("N")
      ->check(WholeNumber(0, 4096, "a number from 1 to 4096, or 0 for all cores"));
}

void WorkOptions::AddProgressTo(CLI::App& app) {
  app.add_option("--progress", progress, "Show progress; default auto: unless --json is given")
      ->type_name("auto|always|never");
}

void WorkOptions::AddMemoryTo(CLI::App& app) {
  app.add_option("--memory", memory, "Most memory for data before it is written; default 160M")
      ->type_name("SIZE");
}

int WorkOptions::Jobs() const { return jobs > 0 ? jobs : AvailableCores(); }

WorkerOptions WorkOptions::Workers(bool writes) const {
  return {.jobs = Jobs(),
          .writers = writes ? kDefaultWriters : 0,
          .memory = ParseSize("--memory", memory, 1 << 20)};
}

ProgressMode WorkOptions::Mode() const {
  return static_cast<ProgressMode>(ChoiceOf("--progress", progress, {"auto", "always", "never"}));
}

void AddOnly(CLI::App& app, std::string* only) {
  AddText(app, "--only", "GLOB", only, "Only tensors whose path matches, such as '**.norm.weight'");
}

void AddPartOfFile(CLI::App& app, std::string* part) {
  AddText(app, kPartOption, "KEY", part,
          "Read this part of a folder or file of tensors, such as ema or app.model");
}

void RequireNoPart(const std::string& part, const std::string& path) {
  if (part.empty()) return;
  throw Usage(
      fmt::format("`{}` is for folders and files of tensors of other tools, but `{}` is not one",
                  kPartOption, path),
      fmt::format("leave out `{}`", kPartOption));
}

std::string InitText(const Tensor& tensor) {
  return tensor.view() ? Describe(*tensor.view()) : InText(tensor);
}

std::string MeshText(const Mesh& mesh) {
  return mesh.axes.empty() ? "" : fmt::format(" ({})", InText(mesh));
}

std::string InSpeed(int64_t bytes, double seconds) {
  return fmt::format("{} in {:.2f} s ({:.2f} GB/s)", InBytes(bytes), seconds,
                     static_cast<double>(bytes) / seconds / 1e9);
}

void AddRank(CLI::App& app, int64_t* rank, const char* what) {
  app.add_option("--rank", *rank, what)->type_name("R")->check([](const std::string& text) {
    return !text.empty() && text.find_first_not_of("0123456789") == text.npos
               ? std::string()
               : fmt::format("`{}` is not a rank", text);
  });
}

void CheckRank(int64_t rank, const Plan& plan) {
  if (rank < plan.world_size()) return;
  throw Usage(fmt::format("rank {} does not exist: the mesh has {}", rank,
                          Count(plan.world_size(), "rank")),
              fmt::format("use a rank from 0 to {}", plan.world_size() - 1));
}

void AddRanks(CLI::App& app, RankOptions* options) {
  AddText(app, "--ranks", "LIST", &options->ranks, "Only these ranks, such as 0,3-5; default: all");
  AddText(app, "--devices", "LIST", &options->devices,
          "Only the ranks on these devices, by their ids");
  AddPart(app, &options->part, "Only part I (from 0) of the ranks in N parts of equal bytes");
}

void AddPart(CLI::App& app, std::string* part, const char* what) {
  AddText(app, "--part", "I/N", part, what);
}

void RequirePartCount(std::string_view option, int64_t count) {
  constexpr int64_t kMost = 1'000'000;
  if (count > 0 && count <= kMost) return;
  throw Usage(fmt::format("`{}`: there cannot be {}", option, Count(count, "part")),
              fmt::format("use a number from 1 to {}", kMost));
}

std::optional<JobPart> RankOptions::FindPart() const {
  if (!ranks.empty() + !devices.empty() + !part.empty() > 1) {
    throw Usage(
        fmt::format("`{}` and `{}` both select what to write",
                    ranks.empty() ? "--devices" : "--ranks", part.empty() ? "--devices" : "--part"),
        "give one of them");
  }
  if (part.empty()) return {};
  return ParsePart(part);
}

std::vector<int64_t> RankOptions::Ranks(const Plan& plan) const {
  const Mesh& mesh = plan.graph.mesh;
  if (const auto asked = FindPart()) return RanksOf(*asked, plan);
  if (!devices.empty()) return ParseDevices(devices, mesh);
  if (!ranks.empty()) return ParseRanks(ranks, mesh.world_size());
  return AllRanks(mesh);
}

std::optional<std::vector<int64_t>> RankOptions::SelectedRanks(const Plan& plan) const {
  if (ranks.empty() && devices.empty() && part.empty()) return {};
  return Ranks(plan);
}

void AddJson(CLI::App& app, bool* json) {
  app.add_flag("--json", *json, "Write JSON to standard output");
}

void AddForce(CLI::App& app, bool* force) {
  app.add_flag("--force", *force, "Overwrite an existing file, whoever wrote it");
}

void AddIndex(CLI::App& app, std::string* index) {
  app.add_option("--index", *index,
                 "Write index.h5; default auto: up to 2,000,000 boxes, 10,000 of a tensor")
      ->type_name("auto|always|never");
}

IndexMode FindIndexMode(const std::string& name) {
  return static_cast<IndexMode>(ChoiceOf("--index", name, {"auto", "always", "never"}));
}

size_t ChoiceOf(std::string_view option, const std::string& value,
                const std::vector<std::string_view>& words) {
  const auto word = std::find(words.begin(), words.end(), value);
  if (word != words.end()) return static_cast<size_t>(word - words.begin());
  const std::string closest = Closest(value, {words.begin(), words.end()});
  throw Usage(fmt::format("`{} {}`: use `{}` or `{}`", option, value,
                          fmt::join(words.begin(), words.end() - 1, "`, `"), words.back()),
              closest.empty() ? closest : fmt::format("did you mean `{}`?", closest));
}

std::string NotEmpty(const std::string& value) {
  return value.empty() ? "its value is empty" : std::string();
}

std::function<std::string(const std::string&)> WholeNumber(int64_t least, int64_t most,
                                                           std::string_view what) {
  return [=](const std::string& text) {
    const auto number = ParseNumber<int64_t>(text);
    return number && *number >= least && *number <= most ? std::string()
                                                         : fmt::format("`{}`: use {}", text, what);
  };
}

int64_t ParseSize(std::string_view option, const std::string& text, int64_t least) {
  const auto bytes = SizeInBytes(text);
  if (!bytes) {
    throw Usage(fmt::format("`{} {}` is not a size", option, text),
                fmt::format("write a number of bytes, or one with K, M, G or KiB, MiB, GiB (of "
                            "1024) or KB, MB, GB (of 1000): `{} 160MiB`",
                            option));
  }
  if (*bytes >= least) return *bytes;
  throw Usage(fmt::format("`{} {}` is too little: {} at least", option, text, Count(least, "byte")),
              fmt::format("write a larger size: `{} 160MiB`", option));
}

namespace {

CLI::Option* AddUrlValidator(CLI::Option* option, const char* name) {
  // `s3://bucket/x/` means the folder `s3://bucket/x`; a path may also end in `/`.
  const auto without_end = [](std::string& text) {
    while (IsUrl(text) && text.ends_with('/') && !text.ends_with("://")) text.pop_back();
    return std::string();
  };
  return option->transform(CLI::Validator(without_end, "", name));
}

bool HasValidator(const CLI::Option& option, const char* name) {
  try {
    // CLI11 requires a mutable option, but does not change it.
    return const_cast<CLI::Option&>(option).get_validator(name) != nullptr;
  } catch (const CLI::OptionNotFound&) {
    return false;
  }
}

}  // namespace

CLI::Option* TakesUrl(CLI::Option* option) { return AddUrlValidator(option, kUrlValidator); }
CLI::Option* TakesBucket(CLI::Option* option) { return AddUrlValidator(option, kBucketValidator); }

void RequireKnownPlace(const CLI::Option& option, const std::string& value) {
  const bool takes_bucket = HasValidator(option, kBucketValidator);
  if (takes_bucket && IsBucketUrl(value)) return;
  if (IsUrl(value) && HasValidator(option, kUrlValidator)) return;
  if (takes_bucket && IsUrl(value)) {
    throw Usage(
        fmt::format("`{}` is not a local folder or a bucket, and other URLs can only be read "
                    "as tensors",
                    Escape(value)),
        "use a local folder, and copy it with the server's own tool");
  }
  RequireLocal(value);
}

void RequireFolderName(const std::string& folder) {
  if (IsBucketUrl(folder)) return;
  RequireNoBucketMount(folder);
  if (IsFolder(folder)) return;
  const std::filesystem::path path(folder);
  const std::string ending = path.extension();
  for (const char* of_file : {".safetensors", ".distcp", ".pt", ".pth", ".bin", ".h5", ".hdf5",
                              ".keras", ".npz", ".json", ".yaml"}) {
    if (ending != of_file) continue;
    throw Usage(fmt::format("`{}` looks like a file name, but the output is a folder", folder),
                fmt::format("name a folder, as in `-o {}`", path.stem().string()));
  }
}

void RequireOutside(const std::string& folder, const std::string& checkpoint, bool may_be_it) {
  const auto refuse = [&] {
    return Usage(fmt::format("`{}` is in `{}`, the checkpoint that is copied", folder, checkpoint),
                 "choose another folder with `-o`");
  };
  if (IsBucketUrl(folder) && IsBucketUrl(checkpoint)) {
    const auto begin_of = [](const std::string& url) { return ParseBucketUrl(url).UrlOf(""); };
    if (begin_of(folder).starts_with(begin_of(checkpoint))) throw refuse();
  }
  if (IsUrl(folder) || IsUrl(checkpoint)) return;
  // The code that reads or creates a path reports a missing one.
  const auto canonical = [](const std::string& name, auto function) {
    std::error_code error;
    const std::filesystem::path path = function(std::filesystem::path(name), error);
    const int number = error.value();
    if (number != 0 && number != ENOENT && number != ENOTDIR && number != ELOOP &&
        number != ENAMETOOLONG) {
      throw SystemError("read", name, number);
    }
    return path;
  };
  const auto path = canonical(folder, [](const auto& name, auto& error) {
    return std::filesystem::weakly_canonical(name, error);
  });
  const auto of = canonical(checkpoint, [](const auto& name, auto& error) {
    return std::filesystem::canonical(name, error);
  });
  // If the checkpoint is a file, its folder counts too.
  if (!may_be_it && (path == of || (!IsFolder(checkpoint) && path == of.parent_path()))) {
    throw Usage(
        fmt::format("`{}` contains the tensors that are copied, so `-o` cannot name it", folder),
        "choose another folder with `-o`");
  }
  const auto within = path.lexically_relative(of);
  if (within.empty() || within == "." || *within.begin() == "..") return;
  throw refuse();
}

}  // namespace shardinit
