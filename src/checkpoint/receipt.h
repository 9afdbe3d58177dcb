// Reads and writes receipts, which list the contents of rank files with digests. A receipt is
// written next to its file after that is in place, and proves that the file is complete.
#pragma once

#include <compare>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/sha256.h"
#include "checkpoint/checkpoint.h"
#include "place/place.h"
#include "plan/plan.h"

namespace shardinit {

// A tensor of a source without a pin that values of the rank were made from.
struct ReadSource {
  std::string source, tensor;
  Digest sha256;

  auto operator<=>(const ReadSource&) const = default;
};

// Returns the source tensors that the rank's boxes take elements from, in order. Returns nothing
// for a plan that was read from a file.
std::vector<ReadSource> SourcesRead(const Plan& plan, const RankPlan& rank);

struct Receipt {
  int64_t size = 0;  // size of the rank file
  Digest plan_sha256{};
  Digest metadata_sha256{};      // digest of all bytes that belong to no box, in order
  std::vector<int64_t> offsets;  // offsets in the file, one per shard of the rank's plan
  std::vector<Digest> digests;   // digest of each box's bytes
  std::vector<ReadSource> sources = {};
  Digest sha256{};  // digest of the text that it was read from
};

// Compares the sources of the ranks of one checkpoint.
class SourceDigests {
 public:
  // Adds a rank. Returns how it differs from a rank that was added before, or an empty string.
  std::string Add(const Plan& plan, const RankPlan& rank, const Receipt& receipt);

 private:
  int64_t told_ = -1, untold_ = -1;  // a rank that lists its sources, and one that does not
  std::map<std::pair<std::string, std::string>, std::pair<int64_t, Digest>> known_;
};

// Passes the text to `append` in pieces, because it can be larger than the data of its boxes.
void WriteReceipt(const RankPlan& rank, const Receipt& receipt,
                  const std::function<void(std::string_view)>& append);
std::string WriteReceipt(const RankPlan& rank, const Receipt& receipt);  // the whole text

// Reads the receipt of this rank of this plan. Throws Error (kRefused) if the text is not one.
Receipt ReadReceipt(std::string_view text, const std::string& path, const RankPlan& rank);

// Does the same, three times as fast. Returns nothing if WriteReceipt() would not write that text:
// a receipt that this tool did not write proves nothing.
std::optional<Receipt> ReadWritten(std::string_view text, const std::string& path,
                                   const RankPlan& rank);

// Does the same, but also returns nothing if the text is not a receipt or is of another plan.
std::optional<Receipt> OwnReceipt(std::string_view text, const std::string& path,
                                  const RankPlan& rank, const Digest& plan_sha256);

// Sizes of rank files, by rank, from a listing.
using ListedSizes = std::map<int64_t, int64_t>;

// Returns the rank's receipt if it exists, belongs to this plan and, unless `detached`, has the
// rank file's size. A damaged receipt counts as missing. `listed` saves the lookup of the size.
std::optional<Receipt> FindReceipt(const Place& place, const RankPlan& rank,
                                   const Digest& plan_sha256, bool detached = false,
                                   const ListedSizes* listed = nullptr);

// Returns the maximum size of a receipt with `shards` boxes, in bytes.
size_t ReceiptLimit(size_t shards);

}  // namespace shardinit
