#include "checkpoint/verify.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "base/error.h"
#include "base/file.h"
#include "base/folder.h"
#include "base/interrupt.h"
#include "base/new_file.h"
#include "base/parallel.h"
#include "checkpoint/bucket.h"
#include "checkpoint/manifest.h"
#include "checkpoint/signature.h"
#include "plan/plan.h"

namespace shardinit {
namespace {

class Verifier {
 public:
  Verifier(const std::string& folder, const Plan& plan, const Digest& plan_sha256, int jobs,
           int64_t total, const VerifyProgress& progress)
      : folder_(folder),
        plan_(plan),
        plan_sha256_(plan_sha256),
        files_(folder, jobs, total, progress) {}

  // Returns the ranks that have a receipt, ascending. A name that does not belong is a finding, or
  // foreign.
  std::vector<int64_t> List() {
    std::vector<int64_t> ranks;
    Walk(folder_, [&](const std::string& name, NameKind kind) {
      const std::string_view file = std::string_view(name).substr(name.rfind('/') + 1);
      const bool inner = file.size() != name.size();
      if (name == "ranks" && kind == NameKind::kFolder) return true;
      if (name == "ranks" && kind == NameKind::kLink) {
        Find(name, "is a link to elsewhere");
        return false;
      }
      if (inner && RankOf(file, ".json") >= 0 && RankOf(file, ".json") < plan_.world_size()) {
        ranks.push_back(RankOf(file, ".json"));
      } else if (!Belongs(file, inner) && !IsTemporary(file, inner, kind)) {
        const bool is_like_a_part =
            inner &&
            (file.ends_with(".h5") || (file.starts_with("rank-") && file.ends_with(".json")));
        (is_like_a_part ? files_.result.findings : files_.result.foreign)
            .Add({name, "", "does not belong to the checkpoint"});
      }
      return false;
    });
    std::sort(ranks.begin(), ranks.end());
    return ranks;
  }

  // Returns whether the receipt is valid. Adds a finding unless the rank's file is what the receipt
  // says.
  bool VerifyRank(const RankPlan& rank, ReceiptEntry* entry) {
    const std::string receipt_file = ReceiptFile(rank.rank);
    Receipt receipt;
    try {
      std::string text;
      const std::string_view wrong =
          ReadIfFile(folder_ + "/" + receipt_file, ReceiptLimit(rank.shards.size()), &text);
      if (!wrong.empty()) {
        Find(receipt_file, std::string(wrong));
        return false;
      }
      std::optional<Receipt> written = ReadWritten(text, receipt_file, rank);
      if (!written) {
        Find(receipt_file, "is damaged: it is not what this tool wrote");
        return false;
      }
      receipt = *std::move(written);
    } catch (const Error& e) {
      if (e.code() == ExitCode::kWorld) throw;
      Find(receipt_file, fmt::format("is damaged: {}", e.what()));
      return false;
    }
    if (receipt.plan_sha256 != plan_sha256_) {
      Find(receipt_file, "belongs to another plan");
      return false;
    }
    *entry = EntryOf(plan_, rank, receipt);
    if (std::string difference = sources_.Add(plan_, rank, receipt); !difference.empty()) {
      Find(receipt_file, std::move(difference));
    }
    VerifyRankFile(rank, receipt);
    ++files_.result.files;
    return true;
  }

  void VerifyManifest(std::string_view manifest, const std::vector<ReceiptEntry>& entries) {
    std::optional<FileEntry> index;
    if (!ClaimedIndex(manifest, &index)) {
      Find(kManifestName, "is damaged: it does not say whether there is an index");
      return;
    }
    if (index) VerifyIndex(*index);
    if (!IsManifestOf(manifest, plan_, plan_sha256_, entries, index)) {
      Find(kManifestName,
           fmt::format("is damaged: it does not match {}", WhatManifestFollows(manifest, plan_)));
    }
  }

  void Find(std::string file, std::string message) {
    files_.Find(std::move(file), "", std::move(message));
  }

  const VerifyResult& result() const { return files_.result; }

 private:
  // An index that the manifest does not list belongs, too: a run leaves it that was killed before
  // its end.
  bool Belongs(std::string_view file, bool inner) const {
    if (inner) return IsInRanks(file, plan_.world_size());
    return IsInRoot(file) || file == SignatureOf(kManifestName);
  }

  // Returns whether it is a temporary file, of a run that goes on or was killed: the next run
  // removes it.
  bool IsTemporary(std::string_view file, bool inner, NameKind kind) const {
    return kind == NameKind::kFile && Belongs(NameOfTemporary(file), inner);
  }

  void VerifyRankFile(const RankPlan& rank, const Receipt& receipt) {
    FileToVerify file = {.path = RankFile(rank.rank),
                         .size = receipt.size,
                         .origin = "its receipt",
                         .ranges = {},
                         .place = fmt::format("rank {}, ", rank.rank)};
    for (size_t i = 0; i < rank.shards.size(); ++i) {
      const Shard& shard = rank.shards[i];
      file.ranges.push_back(
          {shard.tensor->path(), receipt.offsets[i], shard.bytes(), &receipt.digests[i]});
    }
    const bool is_there = files_.Verify(file, [&](int fd) {
      if (HashMetadata(fd, receipt.size, rank, receipt.offsets) == receipt.metadata_sha256) return;
      Find(file.path, "has damaged metadata: its HDF5 structure is not what was written");
    });
    if (!is_there) return;
    files_.result.boxes += std::ssize(rank.shards);
    files_.result.bytes += rank.bytes();
  }

  void VerifyIndex(const FileEntry& claimed) {
    const std::string path = folder_ + "/" + kIndexName;
    Fd fd;
    int64_t size = 0;
    if (const std::string_view wrong = OpenIfFile(path, &fd, &size); !wrong.empty()) {
      Find(kIndexName, fmt::format("{}, but the manifest lists it", wrong));
      return;
    }
    if (size != claimed.size || HashFile(fd.get(), path).sha256 != claimed.sha256) {
      Find(kIndexName, "is damaged: its digest is not the one in the manifest");
    }
  }

  const std::string folder_;
  const Plan& plan_;
  const Digest plan_sha256_;
  FileVerifier files_;
  SourceDigests sources_;
};

VerifyResult OneFinding(std::string file, std::string message) {
  VerifyResult result;
  result.findings.Add({std::move(file), "", std::move(message)});
  return result;
}

// Reads devices.json into the plan's mesh. Returns what is wrong, or nothing. The file must be
// there if the manifest lists devices.
std::string ReadDevices(const std::string& folder, std::string_view manifest, Plan* plan) {
  std::string text;
  const std::string_view wrong = ReadIfFile(folder + "/" + kDevicesName, kPlanLimit, &text);
  if (!wrong.empty()) {
    if (ListsDevices(manifest)) return fmt::format("{}, but the manifest lists devices", wrong);
    return Exists(folder + "/" + kDevicesName) ? std::string(wrong) : std::string();
  }
  try {
    plan->graph.mesh.devices = ReadDeviceLayout(text, kDevicesName, plan->graph.mesh);
    return {};
  } catch (const Error& e) {
    if (e.code() != ExitCode::kRefused) throw;
    return fmt::format("is damaged: {}", e.what());
  }
}

}  // namespace

void FindMissingRanges(const std::vector<int64_t>& present, int64_t world_size,
                       const std::function<void(std::string file, std::string message)>& find) {
  int64_t next = 0;
  const auto find_until = [&](int64_t end) {
    if (next < end) {
      find(ReceiptFile(next),
           end - next == 1 ? "is missing"
                           : fmt::format("is missing, and so are those up to rank {}", end - 1));
    }
    next = end + 1;
  };
  for (const int64_t rank : present) find_until(rank);
  find_until(world_size);
}

void FileVerifier::Find(std::string file, std::string_view tensor, std::string message) {
  const std::lock_guard lock(mutex_);
  result.findings.Add({std::move(file), std::string(tensor), std::move(message)});
}

bool FileVerifier::Verify(const FileToVerify& file, const std::function<void(int fd)>& more) {
  const std::string path = folder_ + "/" + file.path;
  Fd fd;
  int64_t size = 0;
  if (const std::string_view wrong = OpenIfFile(path, &fd, &size); !wrong.empty()) {
    Find(file.path, "", std::string(wrong));
    return false;
  }
  if (size != file.size) {
    Find(file.path, "", fmt::format("has {} bytes, but {} says {}", size, file.origin, file.size));
    return false;
  }
  if (more) more(fd.get());
  const auto progress = [&](int64_t bytes) {
    hashed_ += bytes;
    if (progress_) progress_(hashed_, total_);
  };
  ParallelFor(std::ssize(file.ranges), jobs_, [&](int64_t i) {
    const FileToVerify::Range& range = file.ranges[static_cast<size_t>(i)];
    if (HashRange(fd.get(), path, range.offset, range.bytes, progress) == *range.digest) return;
    Find(file.path, range.tensor,
         fmt::format("has other data than was written ({}bytes {} to {} of the file)", file.place,
                     range.offset, range.offset + range.bytes - 1));
  });
  return true;
}

VerifyResult Verify(const std::string& folder, int jobs, const VerifyProgress& progress) {
  if (IsBucketUrl(folder)) return VerifyBucket(folder, jobs, progress);
  if (!Exists(folder + "/" + kManifestName)) {
    const bool is_unfinished = Exists(folder + "/" + kPlanName);
    const auto wrong = WrongKind(folder, "a checkpoint or an export");
    if (wrong && !is_unfinished) throw *wrong;
    RequireFolder(folder);
    throw Error(ExitCode::kUsage,
                fmt::format("`{}` is not a checkpoint: it has no {}", folder, kManifestName),
                is_unfinished ? fmt::format("it is unfinished: see `shardinit status {}`", folder)
                              : "name a folder that `shardinit gen` or `shardinit export` wrote");
  }
  std::string manifest, plan_json;
  const std::string_view bad_manifest =
      ReadIfFile(folder + "/" + kManifestName, kManifestLimit, &manifest);
  const std::string_view bad_plan = ReadIfFile(folder + "/" + kPlanName, kPlanLimit, &plan_json);
  if (!bad_plan.empty()) {
    return OneFinding(kPlanName, fmt::format("{}, so nothing else can be checked", bad_plan));
  }
  const Digest plan_sha256 = Sha256Of(plan_json);
  Plan plan;
  try {
    plan = ReadPlan(std::exchange(plan_json, {}), folder + "/" + kPlanName);
  } catch (const Error& e) {
    if (e.code() != ExitCode::kRefused) throw;
    return OneFinding(kPlanName,
                      fmt::format("is damaged, so nothing else can be checked: {}", e.what()));
  }
  const std::string bad_devices = ReadDevices(folder, manifest, &plan);
  Verifier verifier(folder, plan, plan_sha256, jobs, BytesInFiles(plan), progress);
  const std::vector<int64_t> present = verifier.List();
  FindMissingRanges(present, plan.world_size(), [&](std::string file, std::string message) {
    verifier.Find(std::move(file), std::move(message));
  });
  bool receipts = static_cast<int64_t>(present.size()) == plan.world_size();
  std::vector<ReceiptEntry> entries;
  for (const int64_t rank : present) {
    ThrowIfInterrupted();
    ReceiptEntry entry;
    receipts = verifier.VerifyRank(PlanRank(plan, rank), &entry) && receipts;
    if (receipts) entries.push_back(std::move(entry));
  }
  // The manifest follows from the receipts, so one comparison covers all of it.
  if (!bad_manifest.empty()) {
    verifier.Find(kManifestName, std::string(bad_manifest));
  } else if (!bad_devices.empty()) {
    verifier.Find(kDevicesName, bad_devices);
  } else if (receipts) {
    verifier.VerifyManifest(manifest, entries);
  }
  VerifyResult result = verifier.result();
  result.statement = std::move(manifest);
  return result;
}

Damage FindDamage(const std::string& folder, const Plan& plan, const Digest& plan_sha256,
                  const std::vector<int64_t>& ranks, int jobs, const VerifyProgress& progress) {
  Verifier verifier(folder, plan, plan_sha256, jobs, 0, progress);
  Damage damage;
  std::vector<ReceiptEntry> entries;
  for (const int64_t rank : ranks) {
    ThrowIfInterrupted();
    if (!Exists(folder + "/" + ReceiptFile(rank))) continue;
    const int64_t before = verifier.result().findings.count();
    ReceiptEntry entry;
    verifier.VerifyRank(PlanRank(plan, rank), &entry);
    if (verifier.result().findings.count() > before) {
      damage.ranks.push_back(rank);
    } else {
      entries.push_back(std::move(entry));
    }
  }
  std::string manifest;
  if (static_cast<int64_t>(entries.size()) < plan.world_size()) return damage;
  if (!ReadIfFile(folder + "/" + kManifestName, kManifestLimit, &manifest).empty()) {
    damage.completion = true;
  } else {
    verifier.VerifyManifest(manifest, entries);
    damage.completion = !verifier.result().findings.empty();
  }
  return damage;
}

}  // namespace shardinit
