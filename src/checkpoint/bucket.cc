// Writes checkpoints to buckets. No object is ever replaced or removed: each is created only if its
// name is free, and an existing object is compared. shardinit-bucket(7) lists the steps.
#include <fmt/format.h>

#include <cstdint>
#include <optional>
#include <string_view>

#include "base/error.h"
#include "bucket/made_once.h"
#include "bucket/store.h"
#include "checkpoint/checkpoint.h"
#include "place/bucket_place.h"
#include "plan/plan.h"
#include "spec/file_kind.h"

namespace shardinit {
namespace {

constexpr char kClaimKey[] = "claim";

// Returns the metadata of plan.json.
Metadata MetadataOf(const std::string& claim) {
  return claim.empty() ? Metadata() : Metadata{{kClaimKey, claim}};
}

class BucketCheckpoint : public CheckpointWriter {
 public:
  explicit BucketCheckpoint(const std::string& url) : place_(url), store_(place_.store()) {}

  const Place& place() const override { return place_; }

  bool IsClaimed(const std::string& plan_json) const override {
    const auto is_there = [&] {
      const std::optional<std::string> present = store_.Get(kPlanName, kPlanLimit);
      if (present && *present != plan_json) {
        ThrowOtherPlan(store_.url().text(), *present, plan_json);
      }
      return present.has_value();
    };
    if (is_there()) return true;
    for (const std::string_view other :
         {std::string_view(kExportName), std::string_view(kExportClaim),
          std::string_view(kManifestName), std::string_view(kIndexName),
          std::string_view(kDevicesName)}) {
      if (!store_.Head(std::string(other))) continue;
      // Another process may have written plan.json and then this file since the first look.
      if (is_there()) return true;
      throw Conflict(fmt::format("`{}` exists without the {} that identifies its plan",
                                 place_.PathOf(other), kPlanName));
    }
    return false;
  }

  // Throws Error (kUsage) if the store would let another writer replace plan.json.
  void Claim(const PlanClaim& claim) override {
    const std::string& plan_json = claim.plan_json;
    claim_ = claim;
    IsClaimed(plan_json);
    const Metadata metadata = MetadataOf(claim.values);
    PutClaim(store_, kPlanName, plan_json, metadata);
    if (!IsClaimed(plan_json)) ThrowLost();
    // An `export` may have claimed the place at the same time. It then finds this plan.
    if (store_.Head(kExportClaim)) {
      throw Conflict(
          fmt::format("`{}`, of an export, is already there", place_.PathOf(kExportClaim)));
    }
    const std::optional<ObjectInfo> info = store_.Head(kPlanName);
    if (!info || info->size != std::ssize(plan_json)) ThrowLost();
    // Another tool that copies the object may add other metadata.
    const auto claim_of = [](const Metadata& of) {
      const auto found = of.find(kClaimKey);
      return found == of.end() ? std::string() : found->second;
    };
    if (claim_of(info->metadata) != claim_of(metadata)) {
      throw Error(
          ExitCode::kConflict,
          fmt::format("`{}` has this plan, but values from another source", store_.url().text()),
          "choose another folder with `-o`, or copy the same source as before");
    }
    plan_etag_ = info->etag;
  }

  void RequirePlan(const Digest& plan_sha256) const override {
    const std::optional<ObjectInfo> info = store_.Head(kPlanName);
    if (info && info->etag == plan_etag_ && !plan_etag_.empty()) return;
    const std::optional<std::string> present = store_.Get(kPlanName, kPlanLimit);
    if (!present || Sha256Of(*present) != plan_sha256) ThrowLost();
  }

  void WriteDevices(const Mesh& mesh) const override {
    const std::string devices_json = WriteDeviceLayout(mesh);
    if (!devices_json.empty()) place_.PutNew(kDevicesName, devices_json);
    RequireDevices(devices_json);
  }

  void RequireDevices(const std::string& devices_json) const override {
    if (ReadDevices(place_) == devices_json) return;
    throw Error(ExitCode::kConflict,
                fmt::format("`{}` lists different devices", place_.PathOf(kDevicesName)),
                "give the same `slices` and `devices` to all commands that write to it");
  }

  // Throws Error (kUsage) if the store would let another writer replace the file of a rank.
  void Prepare(bool writes_ranks) override {
    if (!writes_ranks) return;
    RequireConditionalUploads(store_, kPlanName, claim_.plan_json, MetadataOf(claim_.values));
  }

  // Ends uploads, so that a process that still sends parts finds that the rank exists.
  void RemoveLeftOvers(int64_t world_size) const override {
    store_.ListUploads([&](const std::string& name, const std::string& upload) {
      const std::string_view inner = name;
      if (IsInRoot(name) || (inner.starts_with("ranks/") &&
                             IsInRanks(inner.substr(inner.find('/') + 1), world_size))) {
        store_.EndUpload(name, upload);
      }
    });
  }

  void RequireInPlace() const override {}

 private:
  [[noreturn]] void ThrowLost() const {
    throw Conflict(fmt::format("`{}` has lost its {}, or another process has given it another plan",
                               store_.url().text(), kPlanName));
  }

  const BucketPlace place_;
  Store& store_;
  PlanClaim claim_;
  std::string plan_etag_;  // of the plan.json that was compared
};

}  // namespace

std::unique_ptr<CheckpointWriter> BucketWriter(const std::string& url) {
  return std::make_unique<BucketCheckpoint>(url);
}

}  // namespace shardinit
