// Holds the folder of a checkpoint open: all work is done in that folder, whatever becomes of its
// name.
#pragma once

#include <sys/stat.h>

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "base/new_file.h"
#include "base/sha256.h"
#include "place/folder_place.h"
#include "spec/file_kind.h"

namespace shardinit {

// Names in the folder; others are in spec/file_kind.h, and those of ranks in plan/plan.h.
inline constexpr char kIndexName[] = "index.h5";
inline constexpr char kDevicesName[] = "devices.json";

// The most bytes a plan.json and a manifest.json may have.
inline constexpr size_t kPlanLimit = size_t{4} << 30;
inline constexpr size_t kManifestLimit = size_t{4} << 30;

// Return whether a checkpoint, of so many ranks, has a file of this name in its folder, or in the
// folder of ranks.
bool IsInRoot(std::string_view name);
bool IsInRanks(std::string_view name, int64_t world_size);

// Throws Error (kConflict): `place` holds `present` as its plan.json, and not `wanted`.
[[noreturn]] void ThrowOtherPlan(const std::string& place, std::string_view present,
                                 std::string_view wanted);

// Returns whether the text of a manifest says that its plan is this one.
bool IsManifestFor(std::string_view manifest, std::string_view plan_json);

// Returns the text of devices.json; empty: there is none. Throws Error (kConflict) if it is not a
// file that this tool wrote.
std::string ReadDevices(const Place& place);

class CheckpointFolder {
 public:
  // Opens what there is at `path`.
  explicit CheckpointFolder(const std::string& path);
  // Makes it the folder of this plan. Throws Error (kConflict) if it is another plan's; if two
  // processes try this at once with different plans, one succeeds. Unless it `may_make` the folder,
  // that must be there, or this throws Error (kWorld).
  CheckpointFolder(const std::string& path, const std::string& plan_json, bool may_make = true);

  const Folder& root() const { return *root_; }
  const Folder& ranks() const { return ranks_; }
  const Place& place() const { return *place_; }

  // Returns whether plan.json is there. Throws Error (kConflict) if it is another plan, if the
  // folder has an export, or if it has no plan.json but files that would be replaced.
  bool IsClaimed(const std::string& plan_json) const;

  // Throws Error (kConflict) if plan.json has another digest, and (kWorld) if it is not there. It
  // is called before anything gets its name: the folder may have been emptied and given to another
  // plan meanwhile.
  void RequirePlan(const Digest& plan_sha256) const;

  // Gives devices.json this text. If that changes the file, the checkpoint is unfinished until it
  // is finalized again.
  void WriteDevices(const std::string& devices_json) const;
  // Throws Error (kConflict) if devices.json has another text.
  void RequireDevices(const std::string& devices_json) const;

  // Returns a name in the folder that no checkpoint of so many ranks has; empty: there is none.
  std::string FirstForeign(int64_t world_size) const;

  // Removes what killed runs left, and nothing else: temporary files of the names above and of rank
  // files and receipts.
  void RemoveLeftOvers(Others others) const;

 private:
  [[noreturn]] void ThrowLost() const;
  std::string_view FindOther(const std::string& plan_json) const;

  std::shared_ptr<const Folder> root_;
  Folder ranks_;
  std::unique_ptr<const FolderPlace> place_;
  struct stat plan_ = {};  // the stat of the plan.json that was checked
};

}  // namespace shardinit
