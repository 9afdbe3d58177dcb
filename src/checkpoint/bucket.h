// A checkpoint in a bucket. Several processes may write it at once, and any of them may end at any
// moment: no object is ever replaced or removed, every one is made under the condition that there
// is none of its name, and what is there already is compared. shardinit-bucket(7) has the steps.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "bucket/store.h"
#include "checkpoint/manifest.h"
#include "checkpoint/receipt.h"
#include "checkpoint/verify.h"
#include "checkpoint/write.h"
#include "plan/plan.h"

namespace shardinit {

class BucketCheckpoint {
 public:
  explicit BucketCheckpoint(const std::string& url) : store_(ParseBucketUrl(url)) {}

  Store& store() { return store_; }
  std::string UrlOf(std::string_view name) const { return store_.UrlOf(name); }

  // Returns whether plan.json is there. Throws Error (kConflict) if it is another plan, or if there
  // are other files of a checkpoint or an export without it.
  bool IsClaimed(const std::string& plan_json);
  // Makes it the place of this plan and of this `claim`. Throws Error (kConflict) if it is
  // another's, and (kUsage) if the store would let another writer replace it.
  void Claim(const std::string& plan_json, const std::string& claim);
  // Throws Error (kUsage) if the store would let another writer replace what is completed.
  void RequireConditionalUploads(const std::string& plan_json, const std::string& claim);
  // Throws Error (kConflict) unless plan.json is there and has this digest.
  void RequirePlan(const Digest& plan_sha256);

  // Throw Error (kConflict) if devices.json has another text; empty: none. Claim makes it.
  void ClaimDevices(const std::string& devices_json);
  void RequireDevices(const std::string& devices_json);
  std::string ReadDevices();
  // Reads devices.json into the mesh of the plan. Throws Error (kRefused) if it is damaged.
  void LoadDevices(Plan* plan);

  // Makes an object, or compares the one that is there. Throws Error (kConflict) if that is
  // another.
  void PutText(const std::string& name, const std::string& text);

  // Returns whether the rank's file is there. Throws Error (kConflict) if it is not of this plan.
  bool HasRankFile(int64_t rank, int64_t size, const Digest& plan_sha256);
  // Returns false if the rank's file was not there when MissingRanks() listed all.
  bool MayHaveRankFile(int64_t rank) const { return !sizes_ || sizes_->contains(rank); }

  // Returns the rank's receipt, as the function of that name does for a folder.
  std::optional<Receipt> FindReceipt(const RankPlan& rank, const Digest& plan_sha256,
                                     bool detached = false);
  // Returns those of the ranks, which are ascending, that have no valid receipt, or, unless
  // `detached`, no file of the size that it says. `found` sees the others, ascending.
  std::vector<int64_t> MissingRanks(const Plan& plan, const Digest& plan_sha256,
                                    const std::vector<int64_t>& ranks,
                                    const ReceiptVisitor& found = {}, bool detached = false);
  // Returns whether some rank has no receipt by its name.
  bool LacksRank(int64_t world_size);
  // Returns whether the manifest is there, and lists an index if and only if that is wanted.
  bool IsFinalized(bool wants_index);
  FinalizeResult Finalize(const Plan& plan, const Digest& plan_sha256, IndexMode index,
                          bool detached = false);

  // Returns the SHA-256 of an object.
  Digest HashObject(const std::string& name, const ObjectInfo& info);
  // Reads a rank's file, tells of each box that has other bytes than the receipt says, and whether
  // the rest of the file has. `progress` receives the bytes of each step.
  void CompareRank(const RankPlan& rank, const Receipt& receipt, const ObjectInfo& info,
                   const std::function<void(size_t box)>& box_differs,
                   const std::function<void()>& metadata_differs,
                   const std::function<void(int64_t bytes)>& progress = {});

 private:
  FileEntry PutIndex(const Plan& plan, const Digest& plan_sha256);
  [[noreturn]] void ThrowLost() const;

  Store store_;
  std::string plan_etag_;                            // of the plan.json that was compared
  std::optional<std::map<int64_t, int64_t>> sizes_;  // of ranks' files, when they were listed
};

// These do for a URL what the functions without `Bucket` do for a folder.
Plan LoadBucketPlan(const std::string& url, Digest* plan_sha256);
GenerateResult WhatIsLeftInBucket(const Plan& plan, const std::string& url,
                                  const std::vector<int64_t>& ranks);
GenerateResult GenerateInBucket(const Plan& plan, const GenerateRequest& request,
                                WorkCounters* counters);
VerifyResult VerifyBucket(const std::string& url, int jobs, const VerifyProgress& progress);

}  // namespace shardinit
