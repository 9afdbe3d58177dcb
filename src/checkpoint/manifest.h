// Reads and writes manifest.json, which lists all tensors, boxes, ranks and digests. It is written
// last: a folder is a checkpoint if and only if it has one.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/receipt.h"
#include "plan/plan.h"

namespace shardinit {

enum class IndexMode { kAuto, kAlways, kNever };

struct FinalizeResult {
  // Ranks without a valid receipt. If there are any, nothing was written.
  std::vector<int64_t> missing;
  bool has_index = false;
};

// A file that the manifest vouches for.
struct FileEntry {
  int64_t size;
  Digest sha256;
};

// The parts of a rank's receipt that go into the manifest.
struct ReceiptEntry {
  int64_t size;                   // size of the rank file
  Digest sha256;                  // SHA-256 of the receipt
  std::vector<uint32_t> tensors;  // for each box in the file, its tensor's index in the graph
  std::vector<Digest> digests;    // digest of each box
};

// Returns a rank's entry in the manifest. The receipt must have been read.
ReceiptEntry EntryOf(const Plan& plan, const RankPlan& rank, const Receipt& receipt);

// Writes the manifest, which depends only on the plan with its devices, all receipts and the index
// file. Passes the text to `append` in pieces.
void WriteManifest(const Plan& plan, const Digest& plan_sha256,
                   const std::vector<ReceiptEntry>& ranks, const std::optional<FileEntry>& index,
                   const std::function<void(std::string_view)>& append);

// Reads devices.json into the mesh of `plan`. Throws Error (kRefused) if the file is damaged.
void LoadDevices(const Place& place, Plan* plan);

// Throws Error (kRefused) if the manifest lists other devices than `mesh`, whose devices come from
// devices.json, or if it lists devices but that file is missing. A new manifest would lose them.
void RequireListedDevices(const Place& place, const Mesh& mesh);

// Returns whether the text of a manifest lists other devices than the mesh has.
bool ListsOtherDevices(std::string_view manifest, const Mesh& mesh);

// Returns whether the text of a manifest lists devices.
bool ListsDevices(std::string_view manifest);

// Lists, for error messages, what the manifest's contents are computed from: the plan, the receipts
// and, if the mesh has devices, devices.json.
std::string_view ManifestInputs(std::string_view manifest, const Plan& plan);

// Returns whether the text of a manifest, which lists this `index`, is what WriteManifest() writes.
bool IsManifestOf(std::string_view manifest, const Plan& plan, const Digest& plan_sha256,
                  const std::vector<ReceiptEntry>& ranks, const std::optional<FileEntry>& index);

// If every rank has a receipt, writes index.h5 and then manifest.json. Two processes may do this at
// once, because they write the same bytes.
//
// With `detached`, the rank files are elsewhere, and their receipts suffice.
FinalizeResult Finalize(const CheckpointWriter& to, const Plan& plan, const Digest& plan_sha256,
                        IndexMode index, bool detached = false);

// Throws Error (kConflict) if `difference`, between sources of ranks in `place`, is not empty.
void RequireOneSource(const std::string& place, const std::string& difference);

// Returns whether `plan` gets an index.h5 in this mode. With kAuto, it does if the index is worth
// its size.
bool WantsIndex(const Plan& plan, IndexMode mode);

// Reads the entry of index.h5 from a manifest's text; `*index` is empty if it lists none. Returns
// false if the text is not a manifest of this tool.
bool ClaimedIndex(std::string_view manifest, std::optional<FileEntry>* index);

// Returns whether the manifest exists, and lists an index if and only if `wants_index`.
bool IsFinalized(const Place& place, bool wants_index);

// A manifest's versions are in its first kVersionsEnd bytes.
inline constexpr int64_t kVersionsEnd = 1024;

// Reads plan.json of the checkpoint in `folder`, and its digest. Throws Error if the file does not
// exist, and UnknownVersion if another release wrote it or the manifest.
Plan LoadCheckpointPlan(const std::string& folder, Digest* plan_sha256);

using ReceiptVisitor = std::function<void(const RankPlan& rank, const Receipt& receipt)>;

// Returns the ranks among `ranks`, which must ascend, that have no valid receipt; see
// FindReceipt(). Calls `found` for the other ranks, in ascending order. Sets `*sizes` if the rank
// files were listed.
std::vector<int64_t> MissingRanks(const Place& place, const Plan& plan, const Digest& plan_sha256,
                                  const std::vector<int64_t>& ranks,
                                  const ReceiptVisitor& found = {}, bool detached = false,
                                  std::optional<ListedSizes>* sizes = nullptr);

// What `status` prints about a checkpoint, by its path or URL.
struct ExistingRanks {
  std::vector<int64_t> missing;
  bool has_manifest;
};
ExistingRanks LookForRanks(const std::string& folder, const Plan& plan, const Digest& plan_sha256);

// Returns whether a rank lacks its receipt or, in a bucket, its file. Only looks up names. Starts
// near rank `near`: if thousands of processes write one rank each, a neighbor is usually missing,
// so most processes need not list all names.
bool LacksRank(const Place& place, int64_t world_size, int64_t near);

}  // namespace shardinit
