#include "checkpoint/verify.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "base/error.h"
#include "base/interrupt.h"
#include "base/parallel.h"
#include "checkpoint/manifest.h"
#include "checkpoint/signature.h"
#include "place/digests.h"
#include "plan/plan.h"
#include "plan/read.h"

namespace shardinit {
namespace {

// A rank with a valid receipt.
struct RankFound {
  RankPlan rank;
  Receipt receipt;
  ReceiptEntry entry;
};

class Verifier {
 public:
  Verifier(const Place& place, const Plan& plan, const Digest& plan_sha256, int jobs, int64_t total,
           const VerifyProgress& progress)
      : place_(place),
        plan_(plan),
        plan_sha256_(plan_sha256),
        files_(place, plan.world_size(), jobs, total, progress) {}

  // Returns the ranks that have a receipt, ascending. Adds names that do not belong to the findings
  // or the foreign names.
  std::vector<int64_t> List() {
    std::vector<int64_t> ranks;
    place_.List("", [&](const PlaceEntry& entry) {
      const std::string_view name = entry.name, file = name.substr(name.rfind('/') + 1);
      const bool inner = file.size() != name.size();
      if (name == "ranks" && entry.kind == NameKind::kFolder) return Next::kInside;
      if (name == "ranks" && entry.kind == NameKind::kLink) {
        Find(std::string(name), "is a link to elsewhere");
        return Next::kName;
      }
      const int64_t rank = inner ? RankOf(file, ".json") : -1;
      if (rank >= 0 && rank < plan_.world_size()) {
        ranks.push_back(rank);
      } else if (!Belongs(file, inner) && !IsTemporary(file, inner, entry.kind)) {
        const bool is_like_a_part =
            inner &&
            (file.ends_with(".h5") || (file.starts_with("rank-") && file.ends_with(".json")));
        (is_like_a_part ? files_.result.findings : files_.result.foreign)
            .Add({std::string(name), "", "does not belong to the checkpoint"});
      }
      return Next::kName;
    });
    std::sort(ranks.begin(), ranks.end());
    return ranks;
  }

  // Returns the receipts that are valid. Adds findings for the other receipts, and for rank files
  // that differ from their receipts. Reads several ranks of a remote place in parallel.
  std::vector<ReceiptEntry> VerifyRanks(const std::vector<int64_t>& ranks) {
    std::vector<ReceiptEntry> entries;
    const int64_t at_once = files_.files_at_once();
    for (int64_t begin = 0; begin < std::ssize(ranks); begin += at_once) {
      ThrowIfInterrupted();
      std::vector<std::optional<RankFound>> found(
          static_cast<size_t>(std::min(at_once, std::ssize(ranks) - begin)));
      ParallelFor(std::ssize(found), files_.files_at_once(), [&](int64_t i) {
        found[static_cast<size_t>(i)] = VerifyRank(ranks[static_cast<size_t>(begin + i)]);
      });
      // All ranks must have been made from the same sources.
      for (std::optional<RankFound>& one : found) {
        if (!one) continue;
        files_.Count(1, 0, 0);
        std::string difference = sources_.Add(plan_, one->rank, one->receipt);
        if (!difference.empty()) Find(ReceiptFile(one->rank.rank), std::move(difference));
        entries.push_back(std::move(one->entry));
      }
    }
    return entries;
  }

  void VerifyManifest(std::string_view manifest, const std::vector<ReceiptEntry>& entries) {
    std::optional<FileEntry> index;
    if (!ClaimedIndex(manifest, &index)) {
      Find(kManifestName, "is damaged: it does not record whether there is an index");
      return;
    }
    if (index) VerifyIndex(*index);
    if (!IsManifestOf(manifest, plan_, plan_sha256_, entries, index)) {
      Find(kManifestName,
           fmt::format("is damaged: it does not match {}", ManifestInputs(manifest, plan_)));
    }
  }

  void Find(std::string file, std::string message) {
    files_.Find(std::move(file), "", std::move(message));
  }

  const VerifyResult& result() const { return files_.result; }

 private:
  // Returns whether a name belongs. An unlisted index does: killed runs leave it.
  bool Belongs(std::string_view file, bool inner) const {
    if (inner) return IsInRanks(file, plan_.world_size());
    return IsInRoot(file) || file == SignatureOf(kManifestName);
  }

  // Returns whether it is a temporary file of a running or killed run. The next run removes it.
  bool IsTemporary(std::string_view file, bool inner, NameKind kind) const {
    return kind == NameKind::kFile && Belongs(NameOfTemporary(file), inner);
  }

  std::optional<RankFound> VerifyRank(int64_t r) {
    RankFound found{PlanRank(plan_, r), {}, {}};
    const std::string name = ReceiptFile(r);
    try {
      std::string text;
      const size_t limit = ReceiptLimit(found.rank.shards.size());
      if (const auto wrong = place_.Read(name, limit, &text); !wrong.empty()) {
        Find(name, std::string(wrong));
        return {};
      }
      RequireKnownVersion(text, place_.PathOf(name));
      std::optional<Receipt> written = ReadWritten(text, name, found.rank);
      if (!written) {
        Find(name, "is damaged: it is not what this tool wrote");
        return {};
      }
      found.receipt = *std::move(written);
    } catch (const UnknownVersion&) {
      throw;
    } catch (const Error& e) {
      if (e.code() != ExitCode::kRefused) throw;
      Find(name, fmt::format("is damaged: {}", e.what()));
      return {};
    }
    if (found.receipt.plan_sha256 != plan_sha256_) {
      Find(name, "belongs to another plan");
      return {};
    }
    found.entry = EntryOf(plan_, found.rank, found.receipt);
    VerifyRankFile(found.rank, found.receipt);
    return found;
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
    const bool is_there = files_.Verify(file, [&](const Digest& rest) {
      if (rest == receipt.metadata_sha256) return;
      Find(file.path, "has damaged metadata: its HDF5 structure is not what was written");
    });
    if (is_there) files_.Count(0, std::ssize(rank.shards), rank.bytes());
  }

  void VerifyIndex(const FileEntry& claimed) {
    std::unique_ptr<PlaceFile> file;
    if (const auto wrong = place_.Open(kIndexName, &file); !wrong.empty()) {
      Find(kIndexName, fmt::format("{}, but the manifest lists it", wrong));
    } else if (file->size() != claimed.size ||
               HashFile(place_, *file, {}, files_.in_file()).rest != claimed.sha256) {
      Find(kIndexName, "is damaged: its digest is not the one in the manifest");
    }
  }

  const Place& place_;
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

// Reads devices.json into the plan's mesh. Returns an error message, or an empty string. The file
// must exist if the manifest lists devices.
std::string ReadDevicesInto(const Place& place, std::string_view manifest, Plan* plan) {
  std::string text;
  const std::string_view wrong = place.Read(kDevicesName, kPlanLimit, &text);
  if (!wrong.empty()) {
    if (ListsDevices(manifest)) return fmt::format("{}, but the manifest lists devices", wrong);
    return wrong == kIsMissing ? std::string() : std::string(wrong);
  }
  RequireKnownVersion(text, place.PathOf(kDevicesName));
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

void FileVerifier::Count(int64_t files, int64_t boxes, int64_t bytes) {
  const std::lock_guard lock(mutex_);
  result.files += files;
  result.boxes += boxes;
  result.bytes += bytes;
}

bool FileVerifier::Verify(const FileToVerify& file,
                          const std::function<void(const Digest& rest)>& rest) {
  std::unique_ptr<PlaceFile> there;
  if (const auto wrong = place_.Open(file.path, &there); !wrong.empty()) {
    Find(file.path, "", std::string(wrong));
    return false;
  }
  if (there->size() != file.size) {
    Find(file.path, "",
         fmt::format("has {} bytes, but {} lists {}", there->size(), file.origin, file.size));
    return false;
  }
  std::vector<FilePart> parts;
  for (const FileToVerify::Range& range : file.ranges) parts.push_back({range.offset, range.bytes});
  const FileDigests digests = HashFile(place_, *there, parts, readers_.in_file, [&](int64_t bytes) {
    hashed_ += bytes;
    if (progress_) progress_(hashed_, total_);
  });
  if (rest) rest(digests.rest);
  for (size_t i = 0; i < parts.size(); ++i) {
    const FileToVerify::Range& range = file.ranges[i];
    if (digests.parts[i] == *range.digest) continue;
    Find(file.path, range.tensor,
         fmt::format("has other data than was written ({}bytes {} to {} of the file)", file.place,
                     range.offset, range.offset + range.bytes - 1));
  }
  return true;
}

VerifyResult Verify(const Place& place, int jobs, const VerifyProgress& progress) {
  std::string manifest, plan_json;
  const std::string_view bad_manifest = place.Read(kManifestName, kManifestLimit, &manifest);
  if (bad_manifest == kIsMissing) {
    const bool is_unfinished = place.Exists(kPlanName);
    if (!is_unfinished) place.RequireFolder("a checkpoint or an export");
    throw Error(ExitCode::kUsage,
                fmt::format("`{}` is not a checkpoint: it has no {}", place.path(), kManifestName),
                is_unfinished
                    ? fmt::format("it is unfinished: see `shardinit status {}`", place.path())
                    : "name a folder that `shardinit gen` or `shardinit export` wrote");
  }
  const std::string_view bad_plan = place.Read(kPlanName, kPlanLimit, &plan_json);
  if (!bad_plan.empty()) {
    return OneFinding(kPlanName, fmt::format("{}, so nothing else can be checked", bad_plan));
  }
  RequireKnownVersion(plan_json, place.PathOf(kPlanName));
  RequireKnownVersion(manifest, place.PathOf(kManifestName));
  const Digest plan_sha256 = Sha256Of(plan_json);
  Plan plan;
  try {
    plan = ReadPlan(std::exchange(plan_json, {}), place.PathOf(kPlanName));
  } catch (const Error& e) {
    if (e.code() != ExitCode::kRefused) throw;
    return OneFinding(kPlanName,
                      fmt::format("is damaged, so nothing else can be checked: {}", e.what()));
  }
  const std::string bad_devices = ReadDevicesInto(place, manifest, &plan);
  Verifier verifier(place, plan, plan_sha256, jobs, BytesInFiles(plan), progress);
  const std::vector<int64_t> present = verifier.List();
  FindMissingRanges(present, plan.world_size(), [&](std::string file, std::string message) {
    verifier.Find(std::move(file), std::move(message));
  });
  const std::vector<ReceiptEntry> entries = verifier.VerifyRanks(present);
  // The manifest follows from the receipts, so one comparison covers all of it.
  if (!bad_manifest.empty()) {
    verifier.Find(kManifestName, std::string(bad_manifest));
  } else if (!bad_devices.empty()) {
    verifier.Find(kDevicesName, bad_devices);
  } else if (std::ssize(entries) == plan.world_size()) {
    verifier.VerifyManifest(manifest, entries);
  }
  VerifyResult result = verifier.result();
  result.statement = std::move(manifest);
  return result;
}

Damage FindDamage(const Place& place, const Plan& plan, const Digest& plan_sha256,
                  const std::vector<int64_t>& ranks, int jobs, const VerifyProgress& progress) {
  Verifier verifier(place, plan, plan_sha256, jobs, 0, progress);
  Damage damage;
  std::vector<ReceiptEntry> entries;
  for (const int64_t rank : ranks) {
    if (!place.Exists(ReceiptFile(rank))) continue;
    const int64_t before = verifier.result().findings.count();
    std::vector<ReceiptEntry> entry = verifier.VerifyRanks({rank});
    if (verifier.result().findings.count() > before) {
      damage.ranks.push_back(rank);
    } else {
      entries.push_back(std::move(entry.front()));
    }
  }
  std::string manifest;
  if (static_cast<int64_t>(entries.size()) < plan.world_size()) return damage;
  if (!place.Read(kManifestName, kManifestLimit, &manifest).empty()) {
    damage.completion = true;
  } else {
    verifier.VerifyManifest(manifest, entries);
    damage.completion = !verifier.result().findings.empty();
  }
  return damage;
}

}  // namespace shardinit
