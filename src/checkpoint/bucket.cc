#include "checkpoint/bucket.h"

#include <fmt/format.h>

#include <cstdint>
#include <optional>
#include <string_view>

#include "base/error.h"
#include "base/text.h"
#include "bucket/made_once.h"
#include "plan/plan.h"
#include "spec/file_kind.h"

namespace shardinit {
namespace {

constexpr char kClaimKey[] = "claim";

// Returns the metadata of plan.json.
Metadata MetadataOf(const std::string& claim) {
  return claim.empty() ? Metadata() : Metadata{{kClaimKey, claim}};
}

}  // namespace

void BucketCheckpoint::ThrowLost() const {
  throw Conflict(fmt::format("`{}` has lost its {}, or was given to another plan meanwhile",
                             store_.url().text(), kPlanName));
}

bool BucketCheckpoint::IsClaimed(const std::string& plan_json) const {
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
    throw Conflict(fmt::format("`{}` exists without the {} that says which plan it belongs to",
                               place_.PathOf(other), kPlanName));
  }
  return false;
}

void BucketCheckpoint::Claim(const PlanClaim& claim) {
  const std::string& plan_json = claim.plan_json;
  claim_ = claim;
  IsClaimed(plan_json);
  const Metadata metadata = MetadataOf(claim.values);
  PutClaim(store_, kPlanName, plan_json, metadata);
  if (!IsClaimed(plan_json)) ThrowLost();
  // An `export` may have claimed the place at the same time. It then finds this plan.
  if (store_.Head(kExportClaim)) {
    throw Conflict(fmt::format("`{}` is there, of an export", place_.PathOf(kExportClaim)));
  }
  const std::optional<ObjectInfo> info = store_.Head(kPlanName);
  if (!info || info->size != std::ssize(plan_json)) ThrowLost();
  // Another tool that copies the object may add other metadata.
  const auto claim_of = [](const Metadata& of) {
    const auto found = of.find(kClaimKey);
    return found == of.end() ? std::string() : found->second;
  };
  if (claim_of(info->metadata) != claim_of(metadata)) {
    throw Error(ExitCode::kConflict,
                fmt::format("`{}` holds this plan with values from elsewhere", store_.url().text()),
                "choose another folder with `-o`, or copy the same source as before");
  }
  plan_etag_ = info->etag;
}

void BucketCheckpoint::RequirePlan(const Digest& plan_sha256) const {
  const std::optional<ObjectInfo> info = store_.Head(kPlanName);
  if (info && info->etag == plan_etag_ && !plan_etag_.empty()) return;
  const std::optional<std::string> present = store_.Get(kPlanName, kPlanLimit);
  if (!present || Sha256Of(*present) != plan_sha256) ThrowLost();
}

void BucketCheckpoint::WriteDevices(const Mesh& mesh) const {
  const std::string devices_json = WriteDeviceLayout(mesh);
  if (!devices_json.empty()) place_.PutNew(kDevicesName, devices_json);
  RequireDevices(devices_json);
}

void BucketCheckpoint::RequireDevices(const std::string& devices_json) const {
  if (ReadDevices(place_) == devices_json) return;
  throw Error(ExitCode::kConflict,
              fmt::format("`{}` lists other devices", place_.PathOf(kDevicesName)),
              "give the same `slices` and `devices` to all that write to it");
}

void BucketCheckpoint::Prepare(bool writes_ranks) {
  if (!writes_ranks) return;
  RequireConditionalUploads(store_, kPlanName, claim_.plan_json, MetadataOf(claim_.values));
}

void BucketCheckpoint::RemoveLeftOvers(int64_t world_size) const {
  store_.ListUploads([&](const std::string& name, const std::string& upload) {
    const std::string_view inner = name;
    if (IsInRoot(name) ||
        (inner.starts_with("ranks/") && IsInRanks(inner.substr(inner.find('/') + 1), world_size))) {
      store_.EndUpload(name, upload);
    }
  });
}

}  // namespace shardinit
