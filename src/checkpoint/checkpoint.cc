#include "checkpoint/checkpoint.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/text.h"
#include "bucket/url.h"
#include "checkpoint/manifest.h"
#include "plan/plan.h"
#include "plan/read.h"
#include "report/text.h"

namespace shardinit {
namespace {

using Members = std::vector<std::pair<std::string_view, std::string_view>>;

// Returns the members (`"key": value`) on the line of a plan at byte `begin`, without braces.
Members MembersOf(std::string_view text, size_t begin) {
  std::string_view line = text.substr(std::min(text.size(), begin));
  line = line.substr(0, line.find('\n'));
  line.remove_prefix(std::min(line.find_first_not_of(' '), line.size()));
  if (line.ends_with(',')) line.remove_suffix(1);
  if (line.starts_with('{') && line.ends_with('}')) line = line.substr(1, line.size() - 2);
  Members members;
  while (line.starts_with('"')) {
    const size_t colon = line.find("\": ");
    if (colon == line.npos) break;
    size_t end = colon + 3;
    bool in_text = false;
    for (int depth = 0; end < line.size() && (in_text || depth > 0 || line[end] != ','); ++end) {
      const char c = line[end];
      if (c == '"' && line[end - 1] != '\\') in_text = !in_text;
      if (!in_text) depth += c == '{' || c == '[' ? 1 : c == '}' || c == ']' ? -1 : 0;
    }
    members.emplace_back(line.substr(1, colon - 1), line.substr(colon + 3, end - colon - 3));
    line.remove_prefix(std::min(end + 2, line.size()));
  }
  return members;
}

// Returns a JSON value as people write it: text without its quotes.
std::string AsWritten(std::string_view json) {
  const bool is_text = json.size() > 1 && json.starts_with('"');
  return Quote(is_text ? json.substr(1, json.size() - 2) : json);
}

// Describes the first value that differs.
std::string FirstDifference(std::string_view present, std::string_view wanted) {
  size_t line = 0;
  for (size_t i = 0; i < std::min(present.size(), wanted.size()) && present[i] == wanted[i]; ++i) {
    if (present[i] == '\n') line = i + 1;
  }
  const Members there = MembersOf(present, line), here = MembersOf(wanted, line);
  for (size_t i = 0; i < std::min(there.size(), here.size()); ++i) {
    if (there[i] == here[i]) continue;
    if (there[i].first != here[i].first) break;
    // The first member of a tensor is its path.
    const bool is_of_tensor = i > 0;
    return fmt::format("{}{} is {} there, but {} here", Quote(there[i].first),
                       is_of_tensor ? " of " + AsWritten(there[0].second) : "",
                       AsWritten(there[i].second), AsWritten(here[i].second));
  }
  const auto tensors_in = [](std::string_view plan) {
    constexpr std::string_view kTensor = "\n  {\"path\": ";
    int64_t count = 0;
    for (size_t at = 0; (at = plan.find(kTensor, at)) != plan.npos; at += kTensor.size()) ++count;
    return count;
  };
  if (tensors_in(present) == tensors_in(wanted)) {
    return fmt::format("the two differ from line {} of plan.json on",
                       1 + std::ranges::count(present.substr(0, line), '\n'));
  }
  return fmt::format("it has {} there, but {} here", Count(tensors_in(present), "tensor"),
                     Count(tensors_in(wanted), "tensor"));
}

// Removes the temporary files that killed runs left.
void RemoveTemporaries(const Folder& root, const Folder& ranks, Others others) {
  shardinit::RemoveLeftOvers(root, IsInRoot, others);
  shardinit::RemoveLeftOvers(
      ranks, [](std::string_view name) { return IsInRanks(name, INT64_MAX); }, others);
}

}  // namespace

std::unique_ptr<CheckpointWriter> CheckpointWriter::At(const std::string& path) {
  if (IsBucketUrl(path)) return BucketWriter(path);
  return std::make_unique<CheckpointFolder>(path);
}

bool IsInRoot(std::string_view name) {
  return name == kPlanName || name == kIndexName || name == kManifestName || name == kDevicesName;
}

bool IsInRanks(std::string_view name, int64_t world_size) {
  const int64_t rank = std::max(RankOf(name, ".h5"), RankOf(name, ".json"));
  return rank >= 0 && rank < world_size;
}

void ThrowOtherPlan(const std::string& place, std::string_view present, std::string_view wanted) {
  throw Error(ExitCode::kConflict,
              fmt::format("`{}` holds another plan: {}", place, FirstDifference(present, wanted)),
              "choose another folder with `-o`, or give the same spec and options as before");
}

bool IsManifestFor(std::string_view manifest, std::string_view plan_json) {
  const std::string claim =
      fmt::format("\n \"plan_sha256\": \"{}\",\n", ToHex(Sha256Of(plan_json)));
  return manifest.find(claim) != manifest.npos;
}

CheckpointFolder::CheckpointFolder(const std::string& path)
    : path_(path),
      root_(std::make_shared<Folder>(Folder::Open(path))),
      ranks_(root().OpenSub("ranks")),
      place_(std::make_unique<FolderPlace>(root_)) {}

void CheckpointFolder::Claim(const PlanClaim& claim) {
  const bool claimed = IsClaimed(claim.plan_json);  // Check before anything is created.
  if (claim.may_make) root_ = std::make_shared<Folder>(Folder::Make(path_));
  if (!root()) throw SystemError("open the folder", path_, ENOENT);
  place_ = std::make_unique<FolderPlace>(root_);
  if (!claimed) place().PutNew(kPlanName, claim.plan_json);
  // Look() precedes the read, so that RequirePlan() notices any later replacement.
  root().Look(kPlanName, &plan_);
  if (!IsClaimed(claim.plan_json)) ThrowLost();
  ranks_ = root().MakeSub("ranks");
  // An existing name may be from a run that was killed before its Sync().
  root().Sync();
}

// Returns a file that this plan's files would replace or mix with in a folder without a plan.json,
// or an empty string.
std::string_view CheckpointFolder::FindConflictingFile(const std::string& plan_json) const {
  if (root().Exists(kExportName)) return kExportName;
  std::string manifest;
  const bool is_ours =
      root().Read(kManifestName, kManifestLimit, &manifest) && IsManifestFor(manifest, plan_json);
  RequireKnownVersion(manifest, root().PathOf(kManifestName));
  for (const std::string_view name : {kManifestName, kIndexName, kDevicesName}) {
    if (!is_ours && root().Exists(std::string(name))) return name;
  }
  return {};
}

bool CheckpointFolder::IsClaimed(const std::string& plan_json) const {
  // FindConflictingFile() goes first, because every process writes plan.json before these files.
  const std::string_view other = FindConflictingFile(plan_json);
  if (other == kExportName) {
    throw Conflict(fmt::format("`{}` holds an export", root().path()));
  }
  std::string present;
  Folder::Found found = root().Find(kPlanName, kPlanLimit, &present);
  // Another machine may have written plan.json before that file, but it may appear here later.
  if (found == Folder::Found::kNothing && !other.empty() && root().ExistsSoon(kPlanName)) {
    found = root().Find(kPlanName, kPlanLimit, &present);
  }
  if (found == Folder::Found::kNothing) {
    if (other.empty()) return false;
    throw Conflict(fmt::format("`{}` exists without the {} that identifies its plan",
                               root().PathOf(other), kPlanName));
  }
  if (found != Folder::Found::kText) {
    throw Conflict(
        fmt::format("`{}` is not a file that this tool wrote", root().PathOf(kPlanName)));
  }
  if (present == plan_json) return true;
  if (present.empty()) return false;  // see NewFile::CommitNew for empty files
  ThrowOtherPlan(root().path(), present, plan_json);
}

void CheckpointFolder::RequirePlan(const Digest& plan_sha256) const {
  struct stat info = {};
  std::string present;
  if (root().Look(kPlanName, &info) && AreUnchanged(info, plan_)) return;
  const Folder::Found found = root().Find(kPlanName, kPlanLimit, &present);
  if (found == Folder::Found::kNothing) ThrowLost();
  if (found == Folder::Found::kText && Sha256Of(present) == plan_sha256) return;
  throw Conflict(fmt::format("another process has given `{}` another plan", root().path()));
}

std::string ReadDevices(const Place& place) {
  std::string text;
  const std::string_view wrong = place.Read(kDevicesName, kPlanLimit, &text);
  if (wrong.empty() || wrong == kIsMissing) return text;
  throw Error(ExitCode::kConflict,
              fmt::format("`{}` is not a file that this tool wrote", place.PathOf(kDevicesName)),
              "remove it");
}

void CheckpointFolder::WriteDevices(const Mesh& mesh) const {
  const std::string devices_json = WriteDeviceLayout(mesh);
  const bool is_equal = ReadDevices(place()) == devices_json;
  if (!is_equal || root().Exists(kDevicesName) == devices_json.empty()) {
    // The manifest lists the devices of this file, so no manifest with other devices may stay.
    root().Remove(kManifestName);
    root().Sync();
    if (devices_json.empty()) {
      root().Remove(kDevicesName);
    } else {
      place().Put(kDevicesName, [&](const auto& append) { append(devices_json); });
      root().Sync();
    }
  }
  // A process with other devices may have committed its manifest just when the file was written.
  std::string manifest;
  if (!root().Read(kManifestName, kManifestLimit, &manifest)) return;
  if (ListsOtherDevices(manifest, mesh)) root().Remove(kManifestName);
}

void CheckpointFolder::RequireDevices(const std::string& devices_json) const {
  if (ReadDevices(place()) == devices_json) return;
  if (!devices_json.empty() && root().ExistsSoon(kDevicesName) &&
      ReadDevices(place()) == devices_json) {
    return;
  }
  throw Error(ExitCode::kConflict,
              fmt::format("another process has given `{}` another {}", root().path(), kDevicesName),
              "give the same `slices` and `devices` to all commands that write to it");
}

void CheckpointFolder::ThrowLost() const {
  throw Error(
      ExitCode::kWorld,
      fmt::format("`{}` has lost its {}, or it is not visible here yet", root().path(), kPlanName),
      "do not change the folder while it is written, and run the same command again");
}

std::string CheckpointFolder::FirstForeign(int64_t world_size) const {
  std::string foreign;
  const auto look_in = [&](const Folder& folder, const auto& belongs) {
    folder.ForEachName([&](const std::string& name) {
      const std::string_view meant = NameOfTemporary(name);
      if (!belongs(meant.empty() ? name : meant)) foreign = folder.PathOf(name);
    });
  };
  look_in(root(), [](std::string_view name) { return name == "ranks" || IsInRoot(name); });
  look_in(ranks_, [&](std::string_view name) { return IsInRanks(name, world_size); });
  return foreign;
}

void CheckpointFolder::Prepare(bool) { RemoveTemporaries(root(), ranks_, Others::kOld); }

void CheckpointFolder::RemoveLeftOvers(int64_t) const {
  RemoveTemporaries(root(), ranks_, Others::kAll);
}

// The files are in the open folder, which may no longer be at the path that the user gave.
void CheckpointFolder::RequireInPlace() const {
  if (root().IsInPlace()) return;
  throw Error(ExitCode::kWorld,
              fmt::format("`{}` was moved or removed while it was written", root().path()),
              "leave it in place, and run the same command again");
}

}  // namespace shardinit
