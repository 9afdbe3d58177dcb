#include "checkpoint/bucket.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/error.h"
#include "base/interrupt.h"
#include "base/parallel.h"
#include "base/text.h"
#include "bucket/made_once.h"
#include "checkpoint/object.h"
#include "formats/hdf5/writer.h"
#include "plan/read.h"

namespace shardinit {
namespace {

// Metadata of a rank's file, and of plan.json.
constexpr char kPlanKey[] = "plan-sha256";
constexpr char kClaimKey[] = "claim";

Metadata MetadataOf(const std::string& claim) {
  return claim.empty() ? Metadata() : Metadata{{kClaimKey, claim}};
}

}  // namespace

void BucketCheckpoint::ThrowLost() const {
  throw Conflict(fmt::format("`{}` has lost its {}, or was given to another plan meanwhile",
                             store_.url().text(), kPlanName));
}

bool BucketCheckpoint::IsClaimed(const std::string& plan_json) {
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
    // Another process may have made plan.json, and then this, since the first look.
    if (is_there()) return true;
    throw Conflict(fmt::format("`{}` exists without the {} that says which plan it belongs to",
                               UrlOf(other), kPlanName));
  }
  return false;
}

void BucketCheckpoint::Claim(const std::string& plan_json, const std::string& claim) {
  IsClaimed(plan_json);
  const Metadata metadata = MetadataOf(claim);
  PutClaim(store_, kPlanName, plan_json, metadata);
  if (!IsClaimed(plan_json)) ThrowLost();
  // An `export` may have taken it at the same time; then it finds this plan.
  if (store_.Head(kExportClaim)) {
    throw Conflict(fmt::format("`{}` is there, of an export", UrlOf(kExportClaim)));
  }
  const std::optional<ObjectInfo> info = store_.Head(kPlanName);
  if (!info || info->size != std::ssize(plan_json)) ThrowLost();
  // A copy by another tool may have metadata of its own.
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

void BucketCheckpoint::RequireConditionalUploads(const std::string& plan_json,
                                                 const std::string& claim) {
  shardinit::RequireConditionalUploads(store_, kPlanName, plan_json, MetadataOf(claim));
}

void BucketCheckpoint::RequirePlan(const Digest& plan_sha256) {
  const std::optional<ObjectInfo> info = store_.Head(kPlanName);
  if (info && info->etag == plan_etag_ && !plan_etag_.empty()) return;
  const std::optional<std::string> present = store_.Get(kPlanName, kPlanLimit);
  if (!present || Sha256Of(*present) != plan_sha256) ThrowLost();
}

void BucketCheckpoint::ClaimDevices(const std::string& devices_json) {
  if (!devices_json.empty()) store_.PutNew(kDevicesName, devices_json);
  RequireDevices(devices_json);
}

void BucketCheckpoint::RequireDevices(const std::string& devices_json) {
  if (ReadDevices(place_) == devices_json) return;
  throw Error(ExitCode::kConflict, fmt::format("`{}` lists other devices", UrlOf(kDevicesName)),
              "give the same `slices` and `devices` to all that write to it");
}

void BucketCheckpoint::PutText(const std::string& name, const std::string& text) {
  shardinit::PutText(store_, name, text);
}

bool BucketCheckpoint::HasRankFile(int64_t rank, int64_t size, const Digest& plan_sha256) {
  const std::string name = RankFile(rank);
  const std::optional<ObjectInfo> info = store_.Head(name);
  if (!info) return false;
  const auto plan = info->metadata.find(kPlanKey);
  if (plan != info->metadata.end() && plan->second == ToHex(plan_sha256) && info->size == size) {
    return true;
  }
  throw Error(
      ExitCode::kConflict,
      fmt::format("`{}` is there without a receipt, and {}", UrlOf(name),
                  plan == info->metadata.end() ? "no shardinit wrote it"
                  : info->size != size ? fmt::format("has {} bytes instead of {}", info->size, size)
                                       : "is another plan's"),
      "choose another folder with `-o`, or remove it with the store's own tool");
}

FileEntry BucketCheckpoint::PutIndex(const Plan& plan, const Digest& plan_sha256) {
  const FileLayout layout = hdf5::LayOutIndex(kIndexName, plan, plan_sha256);
  Sha256 hash;
  ForEachGap(layout, [&](std::string_view bytes) { hash.Update(bytes); });
  const FileEntry entry{layout.size(), hash.Finish()};
  const std::string digest = ToHex(entry.sha256);
  for (int attempt = 0; attempt < kTriesAmongWriters; ++attempt) {
    std::optional<ObjectInfo> info = store_.Head(kIndexName);
    if (!info) {
      Object object(&store_, kIndexName, layout, {{"sha256", digest}});
      if (object.Complete([&] { RequirePlan(plan_sha256); })) return entry;
      info = store_.Head(kIndexName);
    }
    if (!info) continue;  // A `finalize` with another `--index` ended the upload.
    if (info->size == entry.size && info->metadata["sha256"] == digest) return entry;
    std::unique_ptr<PlaceFile> file;
    if (info->size == entry.size && place_.Open(kIndexName, &file).empty() &&
        HashFile(place_, *file, {}, kOneFile).rest == entry.sha256) {
      return entry;
    }
    break;
  }
  throw Error(ExitCode::kConflict,
              fmt::format("`{}` is there already, and is not this plan's", UrlOf(kIndexName)),
              "remove it with the store's own tool, and run the same command again");
}

FinalizeResult BucketCheckpoint::Finalize(const Plan& plan, const Digest& plan_sha256,
                                          IndexMode index, bool detached) {
  FinalizeResult result;
  std::vector<ReceiptEntry> ranks;
  SourceDigests sources;
  result.missing = MissingRanks(
      place_, plan, plan_sha256, AllRanks(plan.graph.mesh),
      [&](const RankPlan& rank, const Receipt& receipt) {
        if (std::ssize(ranks) != rank.rank) return;  // A rank is missing.
        ranks.push_back(EntryOf(plan, rank, receipt));
        RequireOneSource(store_.url().text(), sources.Add(plan, rank, receipt));
      },
      detached);
  if (!result.missing.empty()) return result;
  std::optional<FileEntry> entry;
  if (WantsIndex(plan, index)) entry = PutIndex(plan, plan_sha256);
  result.has_index = entry.has_value();
  std::string manifest;
  WriteManifest(plan, plan_sha256, ranks, entry, [&](std::string_view text) { manifest += text; });
  RequirePlan(plan_sha256);
  RequireDevices(WriteDeviceLayout(plan.graph.mesh));
  PutText(kManifestName, manifest);
  // Now no upload is needed: whoever still sends parts finds that the rank is there.
  store_.ListUploads([&](const std::string& name, const std::string& upload) {
    const std::string_view inner = name;
    if (IsInRoot(name) || (inner.starts_with("ranks/") &&
                           IsInRanks(inner.substr(inner.find('/') + 1), plan.world_size()))) {
      store_.EndUpload(name, upload);
    }
  });
  return result;
}

}  // namespace shardinit
