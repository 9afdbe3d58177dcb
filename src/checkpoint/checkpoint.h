// Defines the file names of a checkpoint, and the steps that write one to a folder or a bucket.
#pragma once

#include <sys/stat.h>

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "base/new_file.h"
#include "base/sha256.h"
#include "place/folder_place.h"
#include "sharding/mesh.h"
#include "spec/file_kind.h"

namespace shardinit {

// Names in the folder. Others are in spec/file_kind.h, and names of rank files in plan/plan.h.
inline constexpr char kIndexName[] = "index.h5";
inline constexpr char kDevicesName[] = "devices.json";

// The maximum sizes of plan.json and manifest.json, in bytes.
inline constexpr size_t kPlanLimit = size_t{4} << 30;
inline constexpr size_t kManifestLimit = size_t{4} << 30;

// Return whether a checkpoint of `world_size` ranks has a file of this name in its folder, or in
// its folder `ranks`.
bool IsInRoot(std::string_view name);
bool IsInRanks(std::string_view name, int64_t world_size);

// Throws Error (kConflict): the plan.json of `place` is `present` instead of `wanted`.
[[noreturn]] void ThrowOtherPlan(const std::string& place, std::string_view present,
                                 std::string_view wanted);

// Returns whether the text of a manifest has the digest of this plan.
bool IsManifestFor(std::string_view manifest, std::string_view plan_json);

// Returns the text of devices.json, or an empty string if it does not exist. Throws Error
// (kConflict) if this tool did not write it.
std::string ReadDevices(const Place& place);

// Writes a checkpoint to a place. Several processes may write at once, and each of them may end at
// any moment.
class CheckpointWriter {
 public:
  // Returns a writer for a folder or a bucket. Creates nothing there.
  static std::unique_ptr<CheckpointWriter> At(const std::string& path);
  virtual ~CheckpointWriter() = default;

  virtual const Place& place() const = 0;

  // Returns whether plan.json exists. Throws Error (kConflict) if it has another plan, if the place
  // has an export, or if it has files of a checkpoint but no plan.json.
  virtual bool IsClaimed(const std::string& plan_json) const = 0;
  // Claims the place for a plan. Throws Error (kConflict) if it belongs to another plan. If two
  // processes claim it for different plans at once, one succeeds.
  struct PlanClaim {
    std::string plan_json;
    std::string values = {};  // what decides the values, apart from the plan; kept in buckets only
    bool may_make = true;     // whether to create a missing folder; if not, throws (kWorld)
  };
  virtual void Claim(const PlanClaim& claim) = 0;
  // Throws Error unless plan.json exists and has this digest. Called before any file gets its name,
  // because the place may have been emptied and claimed for another plan meanwhile.
  virtual void RequirePlan(const Digest& plan_sha256) const = 0;

  // Makes devices.json list the devices of a mesh. If this changes devices.json, the checkpoint is
  // unfinished until it is finalized again.
  virtual void WriteDevices(const Mesh& mesh) const = 0;
  // Throws Error (kConflict) if devices.json has another text; empty: the file must not exist.
  virtual void RequireDevices(const std::string& devices_json) const = 0;

  // Prepares the place for rank files, if this process will write any.
  virtual void Prepare(bool writes_ranks) = 0;
  // Removes only what killed runs left: temporary files or uploads with names of a checkpoint of
  // `world_size` ranks.
  virtual void RemoveLeftOvers(int64_t world_size) const = 0;
  // Throws Error (kWorld) if the place was moved or removed.
  virtual void RequireInPlace() const = 0;
};

// Returns a writer for a bucket.
std::unique_ptr<CheckpointWriter> BucketWriter(const std::string& url);

// Keeps a folder open: all work is done in that folder, even if it is renamed.
class CheckpointFolder : public CheckpointWriter {
 public:
  explicit CheckpointFolder(const std::string& path);

  const Folder& root() const { return *root_; }
  const Folder& ranks() const { return ranks_; }
  const Place& place() const override { return *place_; }

  bool IsClaimed(const std::string& plan_json) const override;
  void Claim(const PlanClaim& claim) override;
  void RequirePlan(const Digest& plan_sha256) const override;
  void WriteDevices(const Mesh& mesh) const override;
  void RequireDevices(const std::string& devices_json) const override;
  void Prepare(bool writes_ranks) override;
  void RemoveLeftOvers(int64_t world_size) const override;
  void RequireInPlace() const override;

  // Returns the path of an entry that no checkpoint of `world_size` ranks has, or an empty string.
  std::string FirstForeign(int64_t world_size) const;

 private:
  [[noreturn]] void ThrowLost() const;
  std::string_view FindConflictingFile(const std::string& plan_json) const;

  const std::string path_;
  std::shared_ptr<const Folder> root_;
  Folder ranks_;
  std::unique_ptr<const FolderPlace> place_;
  struct stat plan_ = {};  // the stat of the plan.json that was checked
};

}  // namespace shardinit
