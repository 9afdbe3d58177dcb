// A receipt says what a rank's file holds, with digests. It is written beside the file once that is
// in place, and proves that the file is whole.
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
#include "place/digests.h"
#include "place/place.h"
#include "plan/plan.h"

namespace shardinit {

// A tensor of a source without a pin, from which values of the rank were made.
struct ReadSource {
  std::string source, tensor;
  Digest sha256;

  auto operator<=>(const ReadSource&) const = default;
};

// Returns those that the rank's boxes take elements of, in order. A plan that was read has none.
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

// Compares what the ranks of one checkpoint were made of.
class SourceDigests {
 public:
  // Returns what differs from a rank that was added before; empty: nothing does.
  std::string Add(const Plan& plan, const RankPlan& rank, const Receipt& receipt);

 private:
  int64_t told_ = -1, untold_ = -1;  // A rank that says what it was made of, and one that does not.
  std::map<std::pair<std::string, std::string>, std::pair<int64_t, Digest>> known_;
};

// Passes the text on in pieces: that of many boxes can be larger than their data.
void WriteReceipt(const RankPlan& rank, const Receipt& receipt,
                  const std::function<void(std::string_view)>& append);
std::string WriteReceipt(const RankPlan& rank, const Receipt& receipt);  // the whole text

// Throws Error (kRefused) if the text is not the receipt of this rank of this plan.
Receipt ReadReceipt(std::string_view text, const std::string& path, const RankPlan& rank);

// Does what ReadReceipt() does, three times as fast, and returns nothing if WriteReceipt() would
// not write that text: what this tool did not write proves nothing.
std::optional<Receipt> ReadWritten(std::string_view text, const std::string& path,
                                   const RankPlan& rank);

// Does the same, and returns nothing if the text is of another plan, or no receipt at all.
std::optional<Receipt> OwnReceipt(std::string_view text, const std::string& path,
                                  const RankPlan& rank, const Digest& plan_sha256);

// Sizes of rank files, by rank, from a listing.
using ListedSizes = std::map<int64_t, int64_t>;

// Returns the rank's receipt if it exists, belongs to this plan, and, unless `detached`, the rank
// file has the size that the receipt says. A damaged receipt counts as missing. `listed` saves the
// lookup of the size.
std::optional<Receipt> FindReceipt(const Place& place, const RankPlan& rank,
                                   const Digest& plan_sha256, bool detached = false,
                                   const ListedSizes* listed = nullptr);

// The most bytes a receipt of `shards` boxes can have.
size_t ReceiptLimit(size_t shards);

}  // namespace shardinit
