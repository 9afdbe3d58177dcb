// Writes checkpoints to buckets. No object is ever replaced or removed: each is created only if its
// name is free, and an existing object is compared. shardinit-bucket(7) lists the steps.
#pragma once

#include <string>

#include "bucket/store.h"
#include "checkpoint/checkpoint.h"
#include "place/bucket_place.h"

namespace shardinit {

class BucketCheckpoint : public CheckpointWriter {
 public:
  explicit BucketCheckpoint(const std::string& url) : place_(url), store_(place_.store()) {}

  const Place& place() const override { return place_; }

  bool IsClaimed(const std::string& plan_json) const override;
  // Throws Error (kUsage) if the store would let another writer replace plan.json.
  void Claim(const PlanClaim& claim) override;
  void RequirePlan(const Digest& plan_sha256) const override;
  void WriteDevices(const Mesh& mesh) const override;
  void RequireDevices(const std::string& devices_json) const override;
  // Throws Error (kUsage) if the store would let another writer replace the file of a rank.
  void Prepare(bool writes_ranks) override;
  // Ends uploads, so that a process that still sends parts finds that the rank exists.
  void RemoveLeftOvers(int64_t world_size) const override;
  void RequireInPlace() const override {}

 private:
  [[noreturn]] void ThrowLost() const;

  const BucketPlace place_;
  Store& store_;
  PlanClaim claim_;
  std::string plan_etag_;  // of the plan.json that was compared
};

}  // namespace shardinit
