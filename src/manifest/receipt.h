// What a rank's file holds, with digests: written beside the file once that is
// in place, and the proof that it is whole.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/sha256.h"
#include "manifest/checkpoint.h"
#include "plan/plan.h"

namespace shardinit {

struct Receipt {
  int64_t size = 0;  // Of the file.
  Digest plan_sha256{};
  Digest metadata_sha256{};      // Of all bytes that belong to no box, in order.
  std::vector<int64_t> offsets;  // In the file, one per shard of the rank's plan.
  std::vector<Digest> digests;   // Of each box's bytes.
};

std::string WriteReceipt(const RankPlan& rank, const Receipt& receipt);

// Throws Error (kRefused) if the text is not the receipt of this rank of this plan.
Receipt ReadReceipt(std::string_view text, const std::string& path, const RankPlan& rank);

// The rank's receipt, if it is there, belongs to this plan and the rank file is
// there with the size that it says. What is damaged counts as missing.
std::optional<Receipt> FindReceipt(const CheckpointFolder& folder, const RankPlan& rank,
                                   const Digest& plan_sha256);

// The bytes of a rank file that belong to no box, hashed in order.
Digest HashMetadata(int fd, int64_t size, const RankPlan& rank,
                    const std::vector<int64_t>& offsets);

// The most bytes a receipt of `shards` boxes can have.
size_t ReceiptLimit(size_t shards);

}  // namespace shardinit
