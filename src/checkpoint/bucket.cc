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

namespace shardinit {
namespace {

// Metadata of a rank's file, and of plan.json.
constexpr char kPlanKey[] = "plan-sha256";
constexpr char kClaimKey[] = "claim";

// Requests of small objects under way at once.
constexpr int kRequestsAtOnce = 16;
// A process with fewer ranks asks for each of them, and lists none.
constexpr size_t kFewRanks = 32;

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

std::string BucketCheckpoint::ReadDevices() {
  return store_.Get(kDevicesName, kPlanLimit).value_or("");
}

void BucketCheckpoint::ClaimDevices(const std::string& devices_json) {
  if (!devices_json.empty()) store_.PutNew(kDevicesName, devices_json);
  RequireDevices(devices_json);
}

void BucketCheckpoint::RequireDevices(const std::string& devices_json) {
  if (ReadDevices() == devices_json) return;
  throw Error(ExitCode::kConflict, fmt::format("`{}` lists other devices", UrlOf(kDevicesName)),
              "give the same `slices` and `devices` to all that write to it");
}

void BucketCheckpoint::LoadDevices(Plan* plan) {
  const std::string text = ReadDevices();
  if (text.empty()) return;
  Mesh& mesh = plan->graph.mesh;
  mesh.devices = ReadDeviceLayout(text, UrlOf(kDevicesName), mesh);
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

std::optional<Receipt> BucketCheckpoint::FindReceipt(const RankPlan& rank,
                                                     const Digest& plan_sha256, bool detached) {
  const std::string name = ReceiptFile(rank.rank);
  const std::optional<std::string> text = store_.Get(name, ReceiptLimit(rank.shards.size()));
  if (!text) return {};
  std::optional<Receipt> receipt = OwnReceipt(*text, UrlOf(name), rank, plan_sha256);
  if (!receipt || detached) return receipt;
  if (sizes_) {
    const auto listed = sizes_->find(rank.rank);
    if (listed != sizes_->end() && listed->second == receipt->size) return receipt;
  }
  const std::optional<ObjectInfo> info = store_.Head(RankFile(rank.rank));
  if (!info || info->size != receipt->size) return {};
  return receipt;
}

std::vector<int64_t> BucketCheckpoint::MissingRanks(const Plan& plan, const Digest& plan_sha256,
                                                    const std::vector<int64_t>& ranks,
                                                    const ReceiptVisitor& found, bool detached) {
  std::vector<bool> named(static_cast<size_t>(plan.world_size()));
  const bool lists = ranks.size() > kFewRanks;
  sizes_.reset();
  if (lists) {
    sizes_.emplace();
    store_.List("ranks/", [&](std::string_view name, const ObjectInfo& info) {
      name.remove_prefix(name.find('/') + 1);
      if (const int64_t rank = RankOf(name, ".h5"); rank >= 0) (*sizes_)[rank] = info.size;
      if (const int64_t rank = RankOf(name, ".json"); rank >= 0 && rank < plan.world_size()) {
        named[static_cast<size_t>(rank)] = true;
      }
      return true;
    });
  }
  struct Look {
    RankPlan rank;
    std::optional<Receipt> receipt;
  };
  std::vector<int64_t> missing;
  size_t at_once = 1;
  for (size_t begin = 0; begin < ranks.size();) {
    ThrowIfInterrupted();
    std::vector<Look> looks(std::min(at_once, ranks.size() - begin));
    ParallelFor(std::ssize(looks), kRequestsAtOnce, [&](int64_t i) {
      const int64_t r = ranks[begin + static_cast<size_t>(i)];
      // Who is to make a manifest of all asks for each: a store may list new names late.
      if (lists && !named[static_cast<size_t>(r)] && !found) return;
      Look& look = looks[static_cast<size_t>(i)];
      look.rank = PlanRank(plan, r);
      look.receipt = FindReceipt(look.rank, plan_sha256, detached);
    });
    for (size_t i = 0; i < looks.size(); ++i) {
      if (!looks[i].receipt) missing.push_back(ranks[begin + i]);
      if (looks[i].receipt && found) found(looks[i].rank, *looks[i].receipt);
    }
    begin += looks.size();
    // Memory is bounded by boxes, of which ranks have few or very many.
    size_t boxes = 0;
    for (const Look& look : looks) boxes = std::max(boxes, look.rank.shards.size());
    if (boxes > 0) at_once = std::clamp<size_t>(200'000 / boxes, 1, 256);
  }
  return missing;
}

bool BucketCheckpoint::LacksRank(int64_t world_size) {
  int64_t receipts = 0;
  bool lacks = false;
  store_.List("ranks/", [&](std::string_view name, const ObjectInfo&) {
    name.remove_prefix(name.find('/') + 1);
    const int64_t rank = RankOf(name, ".json");
    if (rank < 0 || rank >= world_size) return true;
    // Names of five digits are in the order of ranks, so that the first gap is seen at once.
    lacks = rank > receipts && rank < 100'000;
    ++receipts;
    return !lacks;
  });
  return lacks || receipts < world_size;
}

bool BucketCheckpoint::IsFinalized(bool wants_index) {
  const std::optional<std::string> manifest = store_.Get(kManifestName, kManifestLimit);
  std::optional<FileEntry> index;
  if (!manifest || !ClaimedIndex(*manifest, &index) || index.has_value() != wants_index) {
    return false;
  }
  const std::optional<ObjectInfo> info = index ? store_.Head(kIndexName) : std::nullopt;
  return !index || (info && info->size == index->size);
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
    if (info->size == entry.size && HashObject(kIndexName, *info) == entry.sha256) return entry;
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
      plan, plan_sha256, AllRanks(plan.graph.mesh),
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

Digest BucketCheckpoint::HashObject(const std::string& name, const ObjectInfo& info) {
  Sha256 hash;
  ReadObject(store_, name, info, [&](std::string_view piece) { hash.Update(piece); });
  return hash.Finish();
}

void BucketCheckpoint::CompareRank(const RankPlan& rank, const Receipt& receipt,
                                   const ObjectInfo& info,
                                   const std::function<void(size_t box)>& box_differs,
                                   const std::function<void()>& metadata_differs,
                                   const std::function<void(int64_t bytes)>& progress) {
  std::vector<size_t> order(receipt.offsets.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::sort(order.begin(), order.end(),
            [&](size_t a, size_t b) { return receipt.offsets[a] < receipt.offsets[b]; });
  Sha256 metadata, box;
  int64_t at = 0;
  size_t next = 0;  // in `order`
  bool overlap = false;
  const auto begin_of = [&](size_t i) { return receipt.offsets[order[i]]; };
  const auto end_of = [&](size_t i) { return begin_of(i) + rank.shards[order[i]].bytes(); };
  // Ends the boxes that end here.
  const auto settle = [&] {
    while (next < order.size() && at >= end_of(next)) {
      overlap = overlap || at > end_of(next);
      if (std::exchange(box, Sha256()).Finish() != receipt.digests[order[next]]) {
        box_differs(order[next]);
      }
      ++next;
    }
  };
  settle();
  ReadObject(store_, RankFile(rank.rank), info, [&](std::string_view piece) {
    if (progress) progress(std::ssize(piece));
    while (!piece.empty()) {
      const bool is_in_box = next < order.size() && at >= begin_of(next);
      const int64_t end = next == order.size() ? info.size
                          : is_in_box          ? end_of(next)
                                               : begin_of(next);
      const std::string_view part =
          piece.substr(0, static_cast<size_t>(std::min(end - at, std::ssize(piece))));
      (is_in_box ? box : metadata).Update(part);
      at += std::ssize(part);
      piece.remove_prefix(part.size());
      settle();
    }
  });
  if (overlap || metadata.Finish() != receipt.metadata_sha256) metadata_differs();
}

Plan LoadBucketPlan(const std::string& url, Digest* plan_sha256) {
  Store store(ParseBucketUrl(url));
  const std::optional<std::string> text = store.Get(kPlanName, kPlanLimit);
  if (!text) {
    throw Error(ExitCode::kUsage,
                fmt::format("`{}` is not a checkpoint: it has no {}", url, kPlanName),
                "name a folder that `shardinit gen` wrote");
  }
  *plan_sha256 = Sha256Of(*text);
  return ReadPlan(*text, store.UrlOf(kPlanName));
}

}  // namespace shardinit
