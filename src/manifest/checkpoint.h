// The folder of a checkpoint, open: what is done in it is done there, whatever becomes of its name.
#pragma once

#include <sys/stat.h>

#include <string>
#include <string_view>

#include "base/new_file.h"
#include "base/sha256.h"

namespace shardinit {

// Names in it; those of ranks are in plan/plan.h.
inline constexpr char kPlanName[] = "plan.json";
inline constexpr char kManifestName[] = "manifest.json";
inline constexpr char kIndexName[] = "index.h5";
inline constexpr char kDevicesName[] = "devices.json";
// The record of an export, beside its files: where they come from, and the digest of every byte. It
// is in no checkpoint's folder.
inline constexpr char kExportName[] = "shardinit-export.json";

// The most bytes a plan.json and a manifest.json may have.
inline constexpr size_t kPlanLimit = size_t{4} << 30;
inline constexpr size_t kManifestLimit = size_t{4} << 30;

// Whether the text of a manifest says that its plan is this one.
bool IsManifestFor(std::string_view manifest, std::string_view plan_json);

class CheckpointFolder {
 public:
  // What is at `path`, as far as it is there.
  explicit CheckpointFolder(const std::string& path);
  // Makes it the folder of this plan. Throws Error (kConflict) if it is another's; of two processes
  // that try it at once with different plans, one succeeds.
  CheckpointFolder(const std::string& path, const std::string& plan_json);

  const Folder& root() const { return root_; }
  const Folder& ranks() const { return ranks_; }

  // Whether plan.json is there; throws Error (kConflict) if it is not this plan, or the folder has
  // an export, or without a plan.json what would be replaced.
  bool IsClaimed(const std::string& plan_json) const;

  // Throws Error (kConflict) unless plan.json is there and has this digest. Called before anything
  // gets its name: the folder may have been emptied and given to another plan meanwhile.
  void RequirePlan(const Digest& plan_sha256) const;

  // The text of devices.json; empty: there is none.
  std::string ReadDevices() const;
  // Makes it this text. If it is another one, or none, what is here is unfinished until it is
  // finalized again.
  void WriteDevices(const std::string& devices_json) const;
  // Throws Error (kConflict) if it is another one.
  void RequireDevices(const std::string& devices_json) const;

  // A name in it that is not a checkpoint's of so many ranks; empty: there is none.
  std::string FirstForeign(int64_t world_size) const;

  // Removes what killed runs left, and nothing else: temporary files of the names above and of rank
  // files and receipts.
  void RemoveLeftOvers(Others others) const;

 private:
  [[noreturn]] void ThrowLost() const;
  std::string_view FindOther(const std::string& plan_json) const;

  Folder root_, ranks_;
  struct stat plan_ = {};  // Of the plan.json that was found right.
};

}  // namespace shardinit
