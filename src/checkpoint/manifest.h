// manifest.json is written last: a folder is a checkpoint if and only if it has one. It says which
// tensors there are, who holds which box, and the digest of everything.
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

// The parts of a rank's receipt that the manifest has.
struct ReceiptEntry {
  int64_t size;                   // size of the rank file
  Digest sha256;                  // SHA-256 of the receipt
  std::vector<uint32_t> tensors;  // index in the graph, of each box in the file
  std::vector<Digest> digests;    // digest of each box
};

// The receipt must have been read.
ReceiptEntry EntryOf(const Plan& plan, const RankPlan& rank, const Receipt& receipt);

// Writes the manifest, which follows from the plan with its devices, all receipts and the index
// file alone. Its text is passed on in pieces.
void WriteManifest(const Plan& plan, const Digest& plan_sha256,
                   const std::vector<ReceiptEntry>& ranks, const std::optional<FileEntry>& index,
                   const std::function<void(std::string_view)>& append);

// Reads devices.json into the mesh of the place's plan. Throws Error (kRefused) if it is damaged.
void LoadDevices(const Place& place, Plan* plan);

// Throws Error (kRefused) if there is a manifest that lists other devices than devices.json, from
// which this mesh has them, or that lists some while that file is missing: another manifest would
// lose them.
void RequireListedDevices(const Place& place, const Mesh& mesh);

// Returns whether the text of a manifest lists other devices than the mesh has.
bool ListsOtherDevices(std::string_view manifest, const Mesh& mesh);

// Returns whether the text of a manifest lists devices.
bool ListsDevices(std::string_view manifest);

// Returns what the text of a manifest follows from, as errors name it: the plan and the receipts,
// and devices.json if there is one or should be.
std::string_view WhatManifestFollows(std::string_view manifest, const Plan& plan);

// Returns whether the text of a manifest, which names this `index`, is what WriteManifest() makes.
bool IsManifestOf(std::string_view manifest, const Plan& plan, const Digest& plan_sha256,
                  const std::vector<ReceiptEntry>& ranks, const std::optional<FileEntry>& index);

// Once every rank has its receipt, writes index.h5 and then manifest.json. Two processes may do
// this at once: they write the same bytes.
//
// With `detached` the files of ranks are elsewhere, and receipts stand for them.
FinalizeResult Finalize(const CheckpointWriter& to, const Plan& plan, const Digest& plan_sha256,
                        IndexMode index, bool detached = false);

// Throws Error (kConflict) if there is a difference between the sources of the ranks in `place`.
void RequireOneSource(const std::string& place, const std::string& difference);

// Returns whether `plan` gets an index.h5 in this mode: with kAuto, if the index is worth its size.
bool WantsIndex(const Plan& plan, IndexMode mode);

// Reads what a manifest's text says of index.h5; `*index` is empty if it lists none. False: it is
// no manifest of this tool.
bool ClaimedIndex(std::string_view manifest, std::optional<FileEntry>* index);

// Returns whether the manifest is there, and lists an index if and only if that is wanted.
bool IsFinalized(const Place& place, bool wants_index);

// The versions of a manifest are in its first bytes.
inline constexpr int64_t kVersionsEnd = 1024;

// Reads plan.json of the checkpoint in `folder`, and its digest. Throws Error if there is none, and
// UnknownVersion if it, or the manifest, is of another release.
Plan LoadCheckpointPlan(const std::string& folder, Digest* plan_sha256);

using ReceiptVisitor = std::function<void(const RankPlan& rank, const Receipt& receipt)>;

// Returns the ranks among `ranks`, which must ascend, that have no valid receipt; see
// FindReceipt(). Calls `found` for the other ranks, in ascending order. Sets `*sizes` if the rank
// files were listed.
std::vector<int64_t> MissingRanks(const Place& place, const Plan& plan, const Digest& plan_sha256,
                                  const std::vector<int64_t>& ranks,
                                  const ReceiptVisitor& found = {}, bool detached = false,
                                  std::optional<ListedSizes>* sizes = nullptr);

// What `status` shows of a checkpoint, by its path or URL.
struct RanksThere {
  std::vector<int64_t> missing;
  bool has_manifest;
};
RanksThere LookForRanks(const std::string& folder, const Plan& plan, const Digest& plan_sha256);

// Returns whether a rank lacks its receipt or, in a bucket, its file. Only looks up names. Starts
// with the neighbors of rank `near`: if thousands of processes write one rank each, a neighbor is
// usually missing, so that most processes do not list all names.
bool LacksRank(const Place& place, int64_t world_size, int64_t near);

}  // namespace shardinit
