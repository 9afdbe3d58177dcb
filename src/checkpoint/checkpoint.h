// Names in a checkpoint, and the steps by which one is written, in a folder or a bucket.
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

// Writes a checkpoint to a place. Several processes may do so at once, and each of them may end at
// any moment.
class CheckpointWriter {
 public:
  // Looks at what is there, and makes nothing.
  static std::unique_ptr<CheckpointWriter> At(const std::string& path);
  virtual ~CheckpointWriter() = default;

  virtual const Place& place() const = 0;

  // Returns whether plan.json is there. Throws Error (kConflict) if it is another plan, if there is
  // an export, or if there are files of a checkpoint without a plan.json.
  virtual bool IsClaimed(const std::string& plan_json) const = 0;
  // Makes it the place of this plan. Throws Error (kConflict) if it is another plan's; if two
  // processes try this at once with different plans, one succeeds.
  struct PlanClaim {
    std::string plan_json;
    std::string values = {};  // what else than the plan decides the values; kept in buckets only
    bool may_make = true;     // whether to make a missing folder; if not, that is an Error (kWorld)
  };
  virtual void Claim(const PlanClaim& claim) = 0;
  // Throws Error unless plan.json is there and has this digest. It is called before anything gets
  // its name: the place may have been emptied and given to another plan meanwhile.
  virtual void RequirePlan(const Digest& plan_sha256) const = 0;

  // Gives the place the devices of a mesh. If that changes devices.json, the checkpoint is
  // unfinished until it is finalized again.
  virtual void WriteDevices(const Mesh& mesh) const = 0;
  // Throws Error (kConflict) if devices.json has another text; empty: there is none.
  virtual void RequireDevices(const std::string& devices_json) const = 0;

  // Prepares for files of ranks, if any are to be written.
  virtual void Prepare(bool writes_ranks) = 0;
  // Removes what killed runs left, and nothing else: temporary files, or uploads, of names of a
  // checkpoint with so many ranks.
  virtual void RemoveLeftOvers(int64_t world_size) const = 0;
  // Throws Error (kWorld) if the place is no longer where it was.
  virtual void RequireInPlace() const = 0;
};

// Holds a folder open: all work is done in that folder, whatever becomes of its name.
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

  // Returns a name in the folder that no checkpoint of so many ranks has; empty: there is none.
  std::string FirstForeign(int64_t world_size) const;

 private:
  [[noreturn]] void ThrowLost() const;
  std::string_view FindOther(const std::string& plan_json) const;

  const std::string path_;
  std::shared_ptr<const Folder> root_;
  Folder ranks_;
  std::unique_ptr<const FolderPlace> place_;
  struct stat plan_ = {};  // the stat of the plan.json that was checked
};

}  // namespace shardinit
