// manifest.json: written last. A folder is a checkpoint if and only if it has
// one; it says which tensors there are, who holds which box, and the digest of
// everything.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "manifest/receipt.h"
#include "plan/plan.h"

namespace shardinit {

enum class IndexMode { kAuto, kAlways, kNever };

struct FinalizeResult {
  std::vector<int64_t> missing;  // Ranks without a valid receipt; then nothing was written.
  bool has_index = false;
};

// A file that the manifest vouches for.
struct FileEntry {
  int64_t size;
  Digest sha256;
};

// What the manifest takes from a rank's receipt.
struct ReceiptEntry {
  int64_t size;                   // Of the rank file.
  Digest sha256;                  // Of the receipt.
  std::vector<uint32_t> tensors;  // Index in the graph, of each box in the file.
  std::vector<Digest> digests;    // Of each box.
};

ReceiptEntry EntryOf(const Plan& plan, const RankPlan& rank, const Receipt& receipt);

// The manifest follows from the plan with its devices, all receipts and the index file alone.
// Its text is passed on in pieces.
void WriteManifest(const Plan& plan, const Digest& plan_sha256,
                   const std::vector<ReceiptEntry>& ranks, const std::optional<FileEntry>& index,
                   const std::function<void(std::string_view)>& append);

// What devices.json says, to the mesh of the folder's plan. Throws Error (kRefused) if it is
// damaged.
void LoadDevices(const CheckpointFolder& folder, Plan* plan);

// Throws Error (kRefused) if there is a manifest and it lists other devices than devices.json, by
// which this mesh has them, or lists some and that file is not there: another manifest would lose
// them.
void RequireListedDevices(const CheckpointFolder& folder, const Mesh& mesh);

// Removes a manifest that lists other devices than this mesh has, which are those of devices.json:
// a process with others may have given it its name when that file was written.
void RemoveManifestOfOthers(const CheckpointFolder& folder, const Mesh& mesh);

// Whether the text of a manifest lists devices.
bool ListsDevices(std::string_view manifest);

// Whether the text of a manifest, which says that there is this `index`, is what WriteManifest()
// makes.
bool IsManifestOf(std::string_view manifest, const Plan& plan, const Digest& plan_sha256,
                  const std::vector<ReceiptEntry>& ranks, const std::optional<FileEntry>& index);

// Once every rank has its receipt, writes index.h5 and then manifest.json. Two
// processes may do this at once: they write the same bytes.
FinalizeResult Finalize(const CheckpointFolder& folder, const Plan& plan, const Digest& plan_sha256,
                        IndexMode index);

// Whether `plan` gets an index.h5 by default.
bool WantsIndex(const Plan& plan, IndexMode mode);

// What a manifest's text says of index.h5: nothing in `*index` if it lists none.
// False: it is no manifest of this tool.
bool ClaimedIndex(std::string_view manifest, std::optional<FileEntry>* index);

// Whether the manifest is there, and an index if and only if that is wanted.
bool IsFinalized(const CheckpointFolder& folder, bool wants_index);

// SHA-256 of a part of an open file, which is that long. `progress` receives the bytes of each
// step.
Digest HashRange(int fd, const std::string& path, int64_t offset, int64_t bytes,
                 const std::function<void(int64_t bytes)>& progress = {});

// Size and SHA-256 of an open file.
FileEntry HashFile(int fd, const std::string& path);

// plan.json of the checkpoint in `folder`, and its digest. Throws Error if there is none.
Plan LoadCheckpointPlan(const std::string& folder, Digest* plan_sha256);

using ReceiptVisitor = std::function<void(const RankPlan& rank, const Receipt& receipt)>;

// Ranks of `plan` that have no valid receipt in `folder`. `found` sees the others, ascending.
std::vector<int64_t> MissingRanks(const CheckpointFolder& folder, const Plan& plan,
                                  const Digest& plan_sha256, const ReceiptVisitor& found = {});
// Whether there are any: it looks no further than the first.
bool LacksRank(const CheckpointFolder& folder, const Plan& plan, const Digest& plan_sha256);

}  // namespace shardinit
