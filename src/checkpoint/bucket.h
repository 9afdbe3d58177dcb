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
#include "place/bucket_place.h"
#include "plan/plan.h"

namespace shardinit {

class BucketCheckpoint {
 public:
  explicit BucketCheckpoint(const std::string& url) : place_(url), store_(place_.store()) {}

  const Place& place() const { return place_; }
  Store& store() { return store_; }
  std::string UrlOf(std::string_view name) const { return place_.PathOf(name); }

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

  // Makes an object, or compares the one that is there. Throws Error (kConflict) if that is
  // another.
  void PutText(const std::string& name, const std::string& text);

  // Returns whether the rank's file is there. Throws Error (kConflict) if it is not of this plan.
  bool HasRankFile(int64_t rank, int64_t size, const Digest& plan_sha256);
  FinalizeResult Finalize(const Plan& plan, const Digest& plan_sha256, IndexMode index,
                          bool detached = false);

 private:
  FileEntry PutIndex(const Plan& plan, const Digest& plan_sha256);
  [[noreturn]] void ThrowLost() const;

  const BucketPlace place_;
  Store& store_;
  std::string plan_etag_;  // of the plan.json that was compared
};

// These do for a URL what the functions without `Bucket` do for a folder.
GenerateResult WhatIsLeftInBucket(const Plan& plan, const std::string& url,
                                  const std::vector<int64_t>& ranks);
GenerateResult GenerateInBucket(const Plan& plan, const GenerateRequest& request,
                                WorkCounters* counters);

}  // namespace shardinit
