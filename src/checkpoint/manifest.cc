#include "checkpoint/manifest.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/comparison.h"
#include "base/error.h"
#include "base/interrupt.h"
#include "base/json.h"
#include "base/parallel.h"
#include "checkpoint/file_tasks.h"
#include "checkpoint/receipt.h"
#include "formats/hdf5/writer.h"
#include "graph/engines/engines.h"
#include "place/shared_files.h"
#include "plan/plan.h"
#include "plan/read.h"
#include "rng/stream.h"

namespace shardinit {
namespace {

FileEntry WriteIndexFile(const CheckpointWriter& to, const Plan& plan, const Digest& plan_sha256) {
  FileLayout layout = hdf5::LayOutIndex(kIndexName, plan, plan_sha256);
  FileOutline index = TakeOutline(&layout);
  const FileEntry entry{index.size, HashGaps(index)};
  index.metadata = {{"sha256", ToHex(entry.sha256)}};  // an equal index is not read
  PutOnce(to.place(), index, entry.sha256, [&] { to.RequirePlan(plan_sha256); });
  return entry;
}

// The manifest's devices, if any, begin on their own line.
constexpr std::string_view kDevicesKey = "\n \"devices\": [";

void WriteDevices(const Mesh& mesh, JsonWriter& out,
                  const std::function<void(std::string_view)>& append) {
  const DeviceMap devices(mesh);
  out.Key("devices").BeginArray(JsonWriter::kLines);
  for (int64_t rank = 0; rank < mesh.world_size(); ++rank) {
    WriteDevice(devices, mesh, rank, out);
    if (out.size() > (1 << 20)) append(out.Take());
  }
  out.EndArray();
}

// Returns whether the text of a manifest lists the devices of this mesh, which must have some.
bool ListsDevicesOf(std::string_view manifest, const Mesh& mesh) {
  Comparison comparison(manifest.substr(std::min(manifest.find(kDevicesKey), manifest.size())));
  JsonWriter out;
  out.BeginObject(JsonWriter::kLines).Take();
  WriteDevices(mesh, out, [&](std::string_view text) { comparison.Add(text); });
  comparison.Add(out.Take());
  return comparison.equal();
}

// Writes everything before the ranks, which does not depend on the boxes.
void WriteHead(const Plan& plan, const Digest& plan_sha256, const std::optional<FileEntry>& index,
               JsonWriter& out) {
  const InitGraph& graph = plan.graph;
  out.Member("format_version", plan.format_version).Member("contract_version", kContractVersion);
  out.Member("name", graph.name).Member("engine", graph.engine).Member("seed", graph.seed);
  WriteMesh(graph.mesh, out);
  out.Member("world_size", plan.world_size());
  out.Member("replicas", NameOf(graph.replicas));
  if (graph.drawn) out.Member("layout", graph.layout);
  out.Member("parameters", plan.parameters).Member("bytes", plan.bytes);
  out.Member("plan_sha256", ToHex(plan_sha256));
  if (index) {
    out.Key("index").BeginObject().Member("file", kIndexName).Member("size", index->size);
    out.Member("sha256", ToHex(index->sha256)).EndObject();
  } else {
    out.Member("index", nullptr);
  }
}

// The digest of a box of a tensor, and the rank that stores the box.
struct StoredBox {
  int64_t rank;
  const Digest* sha256;
};

// Writes a tensor with its boxes, which are ordered by rank.
void WriteTensor(const Plan& plan, const Tensor& tensor, const std::vector<StoredBox>& stored,
                 JsonWriter& out) {
  out.BeginObject().Member("path", tensor.path()).Member("dtype", InfoOf(tensor.dtype()).name);
  out.Member("global_shape", tensor.shape()).Member("dataset", DatasetPath(tensor));
  if (IsInexact(tensor)) out.Member("inexact", true);
  out.Key("shards").BeginArray(JsonWriter::kLines);
  int64_t last = -1;
  std::vector<Box> boxes;  // the boxes of one rank, adjacent in `stored`
  size_t part = 0;
  for (const StoredBox& one : stored) {
    if (one.rank != last) {
      boxes = plan.ShardingOf(tensor).BoxesOn(one.rank);
      part = 0;
    }
    last = one.rank;
    const Box& box = boxes[part++];
    out.BeginObject().Member("rank", one.rank).Member("offset", box.offset);
    out.Member("shape", box.shape).Member("sha256", ToHex(*one.sha256)).EndObject();
  }
  out.EndArray().EndObject();
}

}  // namespace

bool ListsDevices(std::string_view manifest) { return manifest.find(kDevicesKey) != manifest.npos; }

std::string_view ManifestInputs(std::string_view manifest, const Plan& plan) {
  return plan.graph.mesh.devices.IsPlain() && !ListsDevices(manifest)
             ? "the plan and the receipts"
             : "the plan, devices.json and the receipts";
}

void WriteManifest(const Plan& plan, const Digest& plan_sha256,
                   const std::vector<ReceiptEntry>& ranks, const std::optional<FileEntry>& index,
                   const std::function<void(std::string_view)>& append) {
  const InitGraph& graph = plan.graph;
  // Receipts are ordered by rank, the manifest by tensor.
  std::vector<std::vector<StoredBox>> stored(graph.tensors.size());
  for (size_t r = 0; r < ranks.size(); ++r) {
    for (size_t i = 0; i < ranks[r].digests.size(); ++i) {
      stored[ranks[r].tensors[i]].push_back({static_cast<int64_t>(r), &ranks[r].digests[i]});
    }
  }
  JsonWriter out;
  out.BeginObject(JsonWriter::kLines);
  WriteHead(plan, plan_sha256, index, out);
  if (!graph.mesh.devices.IsPlain()) WriteDevices(graph.mesh, out, append);
  out.Key("ranks").BeginArray(JsonWriter::kLines);
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    out.BeginObject().Member("rank", rank);
    out.Member("file", RankFile(static_cast<int64_t>(rank))).Member("size", ranks[rank].size);
    out.Member("receipt", ReceiptFile(static_cast<int64_t>(rank)));
    out.Member("receipt_sha256", ToHex(ranks[rank].sha256)).EndObject();
  }
  out.EndArray().Key("tensors").BeginArray(JsonWriter::kLines);
  for (size_t t = 0; t < graph.tensors.size(); ++t) {
    WriteTensor(plan, graph.tensors[t], stored[t], out);
    // The text is passed on in pieces, because it can be larger than the allowed memory.
    if (out.size() > (1 << 20)) append(out.Take());
  }
  out.EndArray().EndObject();
  append(out.Finish());
}

bool IsManifestOf(std::string_view manifest, const Plan& plan, const Digest& plan_sha256,
                  const std::vector<ReceiptEntry>& ranks, const std::optional<FileEntry>& index) {
  Comparison comparison(manifest);
  WriteManifest(plan, plan_sha256, ranks, index,
                [&](std::string_view text) { comparison.Add(text); });
  return comparison.equal() && comparison.at_end();
}

ReceiptEntry EntryOf(const Plan& plan, const RankPlan& rank, const Receipt& receipt) {
  ReceiptEntry entry{receipt.size, receipt.sha256, {}, receipt.digests};
  entry.tensors.reserve(rank.shards.size());
  for (const Shard& shard : rank.shards) {
    entry.tensors.push_back(static_cast<uint32_t>(shard.tensor - plan.graph.tensors.data()));
  }
  return entry;
}

bool WantsIndex(const Plan& plan, IndexMode mode) {
  if (mode == IndexMode::kAuto) {
    return plan.boxes <= hdf5::kMaxIndexBoxes && plan.most_boxes <= hdf5::kMaxTensorBoxes;
  }
  return mode == IndexMode::kAlways;
}

bool ClaimedIndex(std::string_view manifest, std::optional<FileEntry>* index) {
  // The manifest's `index` is on its own line.
  constexpr std::string_view kKey = "\n \"index\": ";
  const size_t start = manifest.find(kKey);
  const size_t end = manifest.find(",\n", start);
  if (start == manifest.npos || end == manifest.npos) return false;
  const std::string_view value = manifest.substr(start + kKey.size(), end - start - kKey.size());
  if (value == "null") return true;
  try {
    const nlohmann::json in = ParseJson(value, kManifestName);
    FileEntry entry{in.at("size"), {}};
    if (!FromHex(in.at("sha256").get<std::string>(), &entry.sha256)) return false;
    *index = entry;
    return true;
  } catch (const Error&) {
    return false;
  } catch (const nlohmann::json::exception&) {
    return false;
  }
}

namespace {

// Returns whether the manifest exists and is readable. Reads its entry of the index.
bool ReadClaim(const Place& place, std::optional<FileEntry>* index) {
  std::string manifest;
  index->reset();
  return place.Read(kManifestName, kManifestLimit, &manifest).empty() &&
         ClaimedIndex(manifest, index);
}

}  // namespace

bool IsFinalized(const Place& place, bool wants_index) {
  std::optional<FileEntry> index;
  if (!ReadClaim(place, &index) || index.has_value() != wants_index) return false;
  if (index) return place.SizeOf(kIndexName) == index->size;
  // Finalize() removes an unlisted index where files may be removed.
  return !place.traits().removes || !place.Exists(kIndexName);
}

void RequireOneSource(const std::string& place, const std::string& difference) {
  if (difference.empty()) return;
  throw Error(
      ExitCode::kConflict, fmt::format("`{}` is not one checkpoint: {}", place, difference),
      "make all ranks from the same source, in a new folder, and give its `digest` in the spec");
}

FinalizeResult Finalize(const CheckpointWriter& to, const Plan& plan, const Digest& plan_sha256,
                        IndexMode index, bool detached) {
  const Place& place = to.place();
  FinalizeResult result;
  std::vector<ReceiptEntry> ranks;
  SourceDigests sources;
  result.missing = MissingRanks(
      place, plan, plan_sha256, AllRanks(plan.graph.mesh),
      [&](const RankPlan& rank, const Receipt& receipt) {
        if (std::ssize(ranks) != rank.rank) return;  // A rank is missing.
        ranks.push_back(EntryOf(plan, rank, receipt));
        RequireOneSource(place.path(), sources.Add(plan, rank, receipt));
      },
      detached);
  if (!result.missing.empty()) return result;
  hdf5::GiveBackMemory(plan.graph.tensors.size());  // the memory of texts that were read
  // Syncs names that a killed run left, before the manifest is written.
  place.Sync("ranks");
  // Where files are replaced, the loop repeats if another process finalizes at the same time with
  // another `index` or other devices. Each may have removed or replaced a file that the other's
  // manifest lists, and the last one repairs it.
  const std::string own_devices = WriteDeviceLayout(plan.graph.mesh);
  Plan with_others;
  const Plan* current = &plan;
  for (bool is_whole = false; !is_whole;) {
    ThrowIfInterrupted();
    const std::string devices = WriteDeviceLayout(current->graph.mesh);
    std::optional<FileEntry> index_entry, claimed;
    if (WantsIndex(plan, index)) index_entry = WriteIndexFile(to, plan, plan_sha256);
    result.has_index = index_entry.has_value();
    const auto write = [&](const auto& append) {
      WriteManifest(*current, plan_sha256, ranks, index_entry, append);
    };
    place.Put(kManifestName, write, [&] {
      to.RequirePlan(plan_sha256);
      if (current == &plan) to.RequireDevices(own_devices);
    });
    place.Sync("");
    if (!place.traits().removes) break;
    // The index is removed only now, because the old manifest may have listed it until here.
    if (!index_entry) place.Remove(kIndexName);
    is_whole =
        ReadClaim(place, &claimed) && (!claimed || place.SizeOf(kIndexName) == claimed->size);
    if (ReadDevices(place) == devices) continue;
    // The devices changed before this manifest got its name.
    with_others = plan;
    with_others.graph.mesh.devices = {};
    LoadDevices(place, &with_others);
    current = &with_others;
    is_whole = false;
  }
  if (current != &plan) to.RequireDevices(own_devices);
  to.RemoveLeftOvers(plan.world_size());
  return result;
}

Plan LoadCheckpointPlan(const std::string& folder, Digest* plan_sha256) {
  const std::unique_ptr<Place> place = Place::At(folder);
  std::string text;
  const std::string_view wrong = place->Read(kPlanName, kPlanLimit, &text);
  if (wrong == kIsMissing) {
    place->RequireFolder("a checkpoint");
    throw Error(ExitCode::kUsage,
                fmt::format("`{}` is not a checkpoint: it has no {}", folder, kPlanName),
                "name a folder that `shardinit gen` wrote");
  }
  if (!wrong.empty()) {
    throw Error(ExitCode::kUsage, fmt::format("`{}` {}", place->PathOf(kPlanName), wrong),
                "name a folder with the files that `shardinit gen` wrote, not links to them");
  }
  RequireKnownVersion(text, place->PathOf(kPlanName));
  std::unique_ptr<PlaceFile> manifest;
  if (place->Open(kManifestName, &manifest).empty()) {
    std::string head;
    manifest->Read(0, std::min(manifest->size(), kVersionsEnd), 1,
                   [&](std::string_view piece) { head += piece; });
    RequireKnownVersion(head, place->PathOf(kManifestName));
  }
  *plan_sha256 = Sha256Of(text);
  return ReadPlan(text, place->PathOf(kPlanName));
}

void LoadDevices(const Place& place, Plan* plan) {
  const std::string path = place.PathOf(kDevicesName);
  std::string text;
  const std::string_view wrong = place.Read(kDevicesName, kPlanLimit, &text);
  if (wrong == kIsMissing) return;
  if (!wrong.empty()) {
    throw Error(
        ExitCode::kRefused, fmt::format("`{}` is not a file that this tool wrote", path),
        "remove it; then `shardinit gen` with the spec, options and folder as before rewrites it");
  }
  RequireKnownVersion(text, path);
  Mesh& mesh = plan->graph.mesh;
  mesh.devices = ReadDeviceLayout(text, path, mesh);
}

bool ListsOtherDevices(std::string_view manifest, const Mesh& mesh) {
  return mesh.devices.IsPlain() ? ListsDevices(manifest) : !ListsDevicesOf(manifest, mesh);
}

void RequireListedDevices(const Place& place, const Mesh& mesh) {
  static constexpr char kHint[] =
      "`shardinit gen --repair` with the spec, options and folder as before rewrites damaged files";
  std::string manifest;
  if (!place.Read(kManifestName, kManifestLimit, &manifest).empty()) return;
  const std::string path = place.PathOf(kDevicesName);
  if (!place.Exists(kDevicesName)) {
    if (!ListsDevices(manifest)) return;
    throw Error(ExitCode::kRefused,
                fmt::format("`{}` is missing, but the manifest lists devices", path), kHint);
  }
  if (ListsDevicesOf(manifest, mesh)) return;
  throw Error(ExitCode::kRefused, fmt::format("`{}` and the manifest list different devices", path),
              kHint);
}

namespace {

constexpr int kCallsAtOnce = 16;  // parallel requests to a remote place
constexpr size_t kFewRanks = 32;  // up to this many ranks are looked up one by one, without listing

// The rank files and receipts that exist, by name. Looking up millions of names one by one would
// take minutes.
struct ListedRanks {
  std::vector<bool> receipts;
  ListedSizes sizes;  // empty if the listing does not include sizes
};

ListedRanks ListRanks(const Place& place, int64_t world_size) {
  ListedRanks listed{std::vector<bool>(static_cast<size_t>(world_size)), {}};
  place.List("ranks", [&](const PlaceEntry& entry) {
    ThrowIfInterrupted();
    const std::string_view name = entry.name.substr(entry.name.find('/') + 1);
    const int64_t rank = RankOf(name, ".json");
    if (rank >= 0 && rank < world_size) listed.receipts[static_cast<size_t>(rank)] = true;
    if (entry.size < 0) return Next::kName;
    const int64_t of = RankOf(name, ".h5");
    if (of >= 0 && of < world_size) listed.sizes[of] = entry.size;
    return Next::kName;
  });
  return listed;
}

}  // namespace

std::vector<int64_t> MissingRanks(const Place& place, const Plan& plan, const Digest& plan_sha256,
                                  const std::vector<int64_t>& ranks, const ReceiptVisitor& found,
                                  bool detached, std::optional<ListedSizes>* sizes) {
  std::optional<ListedRanks> listed;
  // Listing a folder is cheap, but thousands of processes may need a few ranks each.
  const bool lists =
      place.traits().is_remote ? ranks.size() > kFewRanks : std::ssize(ranks) == plan.world_size();
  if (lists) listed = ListRanks(place, plan.world_size());
  // Finalizing needs every receipt, so it does not trust a listing that may be incomplete.
  const bool is_sure = listed && (place.traits().lists_all || !found);
  std::vector<int64_t> missing, asked;
  for (const int64_t r : ranks) {
    (is_sure && !listed->receipts[static_cast<size_t>(r)] ? missing : asked).push_back(r);
  }
  struct Look {
    RankPlan rank;
    std::optional<Receipt> receipt;
  };
  const std::ptrdiff_t unlisted = std::ssize(missing);
  size_t at_once = 1;
  for (size_t begin = 0; begin < asked.size();) {
    ThrowIfInterrupted();
    std::vector<Look> looks(std::min(at_once, asked.size() - begin));
    ParallelFor(std::ssize(looks), kCallsAtOnce, [&](int64_t i) {
      Look& look = looks[static_cast<size_t>(i)];
      look.rank = PlanRank(plan, asked[begin + static_cast<size_t>(i)]);
      look.receipt =
          FindReceipt(place, look.rank, plan_sha256, detached, listed ? &listed->sizes : nullptr);
    });
    for (const Look& look : looks) {
      if (!look.receipt) missing.push_back(look.rank.rank);
      if (look.receipt && found) found(look.rank, *look.receipt);
    }
    begin += looks.size();
    // Limits the memory for receipts, because a rank may have very many boxes.
    size_t boxes = 1;
    for (const Look& look : looks) boxes = std::max(boxes, look.rank.shards.size());
    if (place.traits().is_remote) at_once = std::clamp<size_t>(200'000 / boxes, 1, 256);
  }
  std::inplace_merge(missing.begin(), missing.begin() + unlisted, missing.end());
  if (sizes != nullptr && listed) *sizes = std::move(listed->sizes);
  return missing;
}

ExistingRanks LookForRanks(const std::string& folder, const Plan& plan, const Digest& plan_sha256) {
  const std::unique_ptr<Place> place = Place::At(folder);
  return {MissingRanks(*place, plan, plan_sha256, AllRanks(plan.graph.mesh)),
          place->Exists(kManifestName)};
}

bool LacksRank(const Place& place, int64_t world_size, int64_t near) {
  const auto lacks = [&](int64_t rank) {
    return rank >= 0 && rank < world_size && !place.Exists(ReceiptFile(rank));
  };
  constexpr int64_t kNear = 2;
  for (int64_t distance = 0; distance < kNear; ++distance) {
    if (lacks(near + distance) || (distance > 0 && lacks(near - distance))) return true;
  }
  const ListedRanks listed = ListRanks(place, world_size);
  if (std::ranges::find(listed.receipts, false) != listed.receipts.end()) return true;
  // The owner of a bucket may have removed a rank file but not its receipt.
  return place.traits().is_remote && std::ssize(listed.sizes) < world_size;
}

}  // namespace shardinit
