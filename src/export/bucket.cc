// One long file: each step of the protocol knows what the steps before it have found in the bucket.
#include "export/bucket.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <set>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "base/error.h"
#include "base/interrupt.h"
#include "base/json.h"
#include "base/parallel.h"
#include "base/parse_number.h"
#include "base/text.h"
#include "bucket/made_once.h"
#include "bucket/store.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/object.h"
#include "checkpoint/receipt.h"
#include "export/record.h"
#include "export/shares.h"
#include "place/bucket_place.h"
#include "place/digests.h"
#include "report/text.h"
#include "spec/file_kind.h"

namespace shardinit {
namespace {

constexpr int kUploads = 8;  // Parts under way at once: one connection is slower than a network.
constexpr int kRequestsAtOnce = 16;  // Requests of small objects under way at once.
constexpr int64_t kObjectsAtOnce = 16;
// How often a file is made whose upload others end.
constexpr int kRounds = 5;
constexpr size_t kLongestKey = 1024;  // of an object, in bytes
constexpr size_t kClaimLimit = size_t{1} << 24, kObjectLimit = size_t{4} << 30;

// This member follows the origin in a claim.
constexpr char kSourceMember[] = ",\n \"source\": ";

// Metadata of an object with elements, and of a large one without.
constexpr char kExportKey[] = "export-sha256", kTextKey[] = "sha256";

bool IsLarge(const FileLayout& file) { return file.size() > PartBytes(file.size()); }

std::string TextOf(const FileLayout& file) {
  std::string text;
  ForEachGap(file, [&](std::string_view bytes) { text += bytes; });
  return text;
}

// Refuses a file that cannot have a name in a bucket.
void RequireKeys(const Store& store, const std::vector<FileLayout>& files) {
  for (const FileLayout& file : files) {
    const std::string parts = "/" + file.path + "/";
    std::string wrong;
    if (store.url().KeyOf(file.path).size() > kLongestKey) {
      wrong = fmt::format("has more than {} bytes with its prefix", kLongestKey);
    } else if (std::any_of(file.path.begin(), file.path.end(), [](char c) {
                 return static_cast<unsigned char>(c) < ' ' || c == '\x7f';
               })) {
      wrong = "has a control character";
    } else if (parts.find("//") != parts.npos || parts.find("/./") != parts.npos ||
               parts.find("/../") != parts.npos) {
      wrong = "has a part that stores fold into others";
    }
    if (wrong.empty()) continue;
    throw Error(
        ExitCode::kUsage,
        fmt::format("{} is the name of a file, and cannot be that of an object: it {}",
                    Quote(file.path), wrong),
        "give a shorter prefix or write to a local folder, or store the tensor under another "
        "name with a layout of the spec");
  }
}

class BucketExport {
 public:
  BucketExport(const Plan& plan, const ExportRequest& request, std::vector<FileLayout> files,
               WorkCounters* counters)
      : plan_(plan),
        request_(request),
        counters_(*counters),
        place_(request.folder),
        store_(place_.store()),
        origin_(WriteOrigin(plan, request)),
        claim_(WithDigest(
            fmt::format("{}{}\"{}\",\n", origin_, kSourceMember, ToHex(Sha256Of(request.claim))))),
        claim_sha256_(ToHex(Sha256Of(claim_))),
        may_differ_(request.source != nullptr || !plan.graph.sources.empty()),
        parts_(plan, request, std::move(files)),
        left_in_(static_cast<size_t>(parts_.shares)) {
    RequireKeys(store_, parts_.files);
    for (size_t f = 0; f < parts_.files.size(); ++f) file_of_[parts_.files[f].path] = f;
  }

  // Makes it the place of this export. Returns its record if all of it is there, else nothing.
  std::optional<std::string> Claim() {
    std::optional<std::string> present = store_.Get(kExportClaim, kClaimLimit);
    if (!present) {
      List();
      // A copy of an export by another tool needs no claim.
      if (auto record = WholeRecord()) return record;
      if (!has_something_) PutClaim(store_, kExportClaim, claim_);
      // Another process may have made it between these looks.
      present = store_.Get(kExportClaim, kClaimLimit);
      if (!present && has_something_) {
        throw Conflict(fmt::format("`{}` is not empty, and holds something else", request_.folder));
      }
    }
    if (present != claim_) ThrowOther(present.value_or(""));
    const std::optional<ObjectInfo> info = store_.Head(kExportClaim);
    if (!info || info->size != std::ssize(claim_)) ThrowOther("");
    claim_etag_ = info->etag;
    List();
    // A `gen` may have taken it at the same time; then it finds this claim.
    if (!of_checkpoint_.empty()) {
      throw Conflict(fmt::format("`{}` is there, of a checkpoint", store_.UrlOf(of_checkpoint_)));
    }
    return WholeRecord();
  }

  // Makes what is left of the shares that the request asks for. Returns the bytes of their
  // elements.
  int64_t MakeShares() {
    const std::vector<int64_t> asked = parts_.Asked();
    std::vector<int64_t> left = WithoutReceipt(asked);
    for (const int64_t share : asked) {
      if (!std::binary_search(left.begin(), left.end(), share)) done_.insert(share);
    }
    std::vector<size_t> files;
    int64_t bytes = 0;
    for (size_t f = 0; f < parts_.files.size(); ++f) {
      if (!std::binary_search(left.begin(), left.end(), parts_.share[f])) continue;
      files.push_back(f);
      ++left_in_[static_cast<size_t>(parts_.share[f])];
      for (const FileBox& box : parts_.files[f].boxes) bytes += BytesOf(box);
    }
    RequireUploads(files);
    for (int round = 0; !files.empty(); ++round) {
      if (round == kRounds) {
        throw Error(ExitCode::kWorld,
                    fmt::format("the uploads of {} are ended by others again and again",
                                Count(std::ssize(files), "file")),
                    "stop what ends them, and run the same command again");
      }
      files = MakeFiles(files, bytes);
    }
    done_.insert(left.begin(), left.end());
    return bytes;
  }

  // Returns the ranks of the shares that other processes have not made.
  std::vector<int64_t> FindMissing() {
    std::vector<bool> has_files(static_cast<size_t>(parts_.shares));
    for (const int64_t share : parts_.share) {
      if (share >= 0) has_files[static_cast<size_t>(share)] = true;
    }
    std::vector<int64_t> others;
    for (int64_t share = 0; share < parts_.shares; ++share) {
      if (has_files[static_cast<size_t>(share)] && !done_.contains(share)) others.push_back(share);
    }
    if (!others.empty()) List();
    const auto is_named = [&](int64_t share) { return receipts_.contains(share); };
    std::set<int64_t> missing;
    if (std::all_of(others.begin(), others.end(), is_named)) {
      for (const int64_t share : WithoutReceipt(others)) missing.insert(parts_.RankOf(share));
    } else {
      for (const int64_t share : others) {
        if (!is_named(share)) missing.insert(parts_.RankOf(share));
      }
    }
    return {missing.begin(), missing.end()};
  }

  // Writes the files without elements, and at last the record.
  void Complete() {
    RequireOneSource();
    std::vector<size_t> inner, outer;
    for (size_t f = 0; f < parts_.files.size(); ++f) {
      if (parts_.share[f] >= 0) continue;
      (parts_.files[f].path.find('/') == std::string::npos ? outer : inner).push_back(f);
    }
    const FileLayout record = {
        .path = kExportName,
        .head = WriteRecord(plan_, request_, parts_.files, parts_.digests, parts_.crcs)};
    std::vector<size_t> texts = inner;
    texts.insert(texts.end(), outer.begin(), outer.end());
    RequireUploads(texts, IsLarge(record));
    RequireClaim();
    ParallelFor(std::ssize(inner), kRequestsAtOnce, [&](int64_t i) {
      PutTextFile(Completed(parts_.files[inner[static_cast<size_t>(i)]]));
    });
    // Readers begin with the last of these.
    for (const size_t f : outer) PutTextFile(Completed(parts_.files[f]));
    RequireClaim();
    PutTextFile(record);
    // Now no upload is needed: whoever still sends parts finds that the file is there.
    store_.ListUploads([&](const std::string& name, const std::string& upload) {
      if (file_of_.contains(name) || name == kExportName || name == kExportClaim) {
        store_.EndUpload(name, upload);
      }
    });
  }

 private:
  [[noreturn]] void ThrowOther(std::string_view claim) const {
    if (claim.empty()) {
      throw Conflict(fmt::format("`{}` has lost its {}, or was given to another export meanwhile",
                                 request_.folder, kExportClaim));
    }
    throw Conflict(fmt::format("`{}` holds {}", request_.folder,
                               claim.starts_with(origin_ + kSourceMember)
                                   ? "this export with values from elsewhere"
                                   : "another export"));
  }

  // Notes which of the files, and which receipts, are there.
  void List() {
    sizes_.assign(parts_.files.size(), -1);
    receipts_.clear();
    of_checkpoint_.clear();
    has_record_ = has_something_ = false;
    const std::string receipt = ReceiptName("");
    store_.List("", [&](const std::string& name, const ObjectInfo& info) {
      has_something_ = true;
      const auto file = file_of_.find(name);
      if (file != file_of_.end()) {
        sizes_[file->second] = info.size;
      } else if (name == kExportName) {
        has_record_ = true;
      } else if (name == kPlanName || name == kManifestName) {
        of_checkpoint_ = name;
      } else if (name.starts_with(receipt)) {
        // Names of five digits and more: those that are no number are of nobody.
        const auto share =
            ParseNumber<int64_t>(std::string_view(name).substr(receipt.size() + kReceiptStem));
        if (share && ReceiptName(ShareReceipt(*share)) == name) receipts_.insert(*share);
      }
      return true;
    });
  }

  static constexpr size_t kReceiptStem = std::string_view("share-").size();
  static std::string ReceiptName(const std::string& name) {
    return fmt::format("{}/{}", kExportNotes, name);
  }

  // Returns the record if all of the export was there when it was listed.
  std::optional<std::string> WholeRecord() {
    if (!has_record_) return {};
    std::optional<std::string> record = store_.Get(kExportName, kObjectLimit);
    if (!record) return {};
    // The optimizer of another export is behind what both have.
    if (!IsRecordOf(*record, origin_)) ThrowOther(*record);
    for (size_t f = 0; f < parts_.files.size(); ++f) {
      if (sizes_[f] != parts_.files[f].size()) return {};
    }
    return record;
  }

  // Throws Error (kConflict) unless the claim is there. Where there are many small objects, it is
  // looked at once in a second.
  void RequireClaim(bool is_small = false) {
    using Clock = std::chrono::steady_clock;
    {
      const std::lock_guard lock(mutex_);
      if (is_small && Clock::now() - claim_seen_ < std::chrono::seconds(1)) return;
    }
    const std::optional<ObjectInfo> info = store_.Head(kExportClaim);
    if (!info || info->etag != claim_etag_) {
      if (store_.Get(kExportClaim, kClaimLimit) != claim_) ThrowOther("");
    }
    const std::lock_guard lock(mutex_);
    claim_seen_ = Clock::now();
  }

  // Throws Error (kUsage) if one of the files has parts, and the store would let another writer
  // replace it.
  void RequireUploads(const std::vector<size_t>& files, bool more = false) {
    if (has_tried_uploads_) return;
    if (!more && std::none_of(files.begin(), files.end(),
                              [&](size_t f) { return IsLarge(parts_.files[f]); })) {
      return;
    }
    RequireConditionalUploads(store_, kExportClaim, claim_);
    has_tried_uploads_ = true;
  }

  // Returns those of the shares, ascending, that have no valid receipt, or lack a file. Takes what
  // the receipts of the others say.
  std::vector<int64_t> WithoutReceipt(const std::vector<int64_t>& shares) {
    std::vector<char> has(shares.size());
    ParallelFor(std::ssize(shares), kRequestsAtOnce, [&](int64_t i) {
      const auto at = static_cast<size_t>(i);
      has[at] = receipts_.contains(shares[at]) && TakeReceipt(shares[at]);
    });
    std::vector<int64_t> without;
    for (size_t i = 0; i < shares.size(); ++i) {
      if (!has[i]) without.push_back(shares[i]);
    }
    return without;
  }

  bool TakeReceipt(int64_t share) {
    const std::string name = ReceiptName(ShareReceipt(share)), path = store_.UrlOf(name);
    const std::optional<std::string> text = store_.Get(name, kShareReceiptLimit);
    if (!text) return false;
    const nlohmann::json receipt = ParseJson(*text, path);
    try {
      if (receipt.at("export_sha256") != claim_sha256_) return false;
      if (!ReadShare(receipt.at("files"), path, share, &parts_,
                     [&](size_t f) { return sizes_[f] == parts_.files[f].size(); })) {
        return false;
      }
      for (const nlohmann::json& read : receipt.at("sources")) {
        AddSource(share, read.at(0), read.at(1), read.at(2));
      }
    } catch (const nlohmann::json::exception& e) {
      throw Error(ExitCode::kRefused, fmt::format("`{}` is damaged: {}", path, ComplaintOf(e)),
                  "remove it with the store's own tool, and run the same command again");
    }
    return true;
  }

  void AddSource(int64_t share, const std::string& source, const std::string& tensor,
                 const std::string& sha256) {
    const std::lock_guard lock(mutex_);
    sources_[{source, tensor}].emplace(sha256, share);
  }

  // Throws Error (kConflict) if shares were made of sources that had other elements.
  void RequireOneSource() const {
    for (const auto& [name, digests] : sources_) {
      if (digests.size() == 1) continue;
      const auto& [one, share] = *digests.begin();
      const auto& [other, other_share] = *digests.rbegin();
      throw Error(
          ExitCode::kConflict,
          fmt::format("`{}`: rank {} was made of {} of source {} with SHA-256 {}, but rank {} with "
                      "{}",
                      request_.folder, parts_.RankOf(share), Quote(name.second), Quote(name.first),
                      one.substr(0, 12), parts_.RankOf(other_share), other.substr(0, 12)),
          "make all of it from one source, in another folder, and give its `digest` in the spec");
    }
  }

  // Makes these files. Returns those that must be made again, ascending.
  std::vector<size_t> MakeFiles(const std::vector<size_t>& files, int64_t bytes) {
    std::vector<char> is_there(files.size());
    ParallelFor(std::ssize(files), kRequestsAtOnce, [&](int64_t i) {
      const size_t f = files[static_cast<size_t>(i)];
      is_there[static_cast<size_t>(i)] = sizes_[f] >= 0 && IsOwn(f);
    });
    std::mutex mutex;
    std::vector<size_t> again;
    WorkerOptions workers = request_.workers;
    workers.writers = kUploads;
    workers.in_order = true;
    FileGroups groups(workers, &counters_, request_.source, kObjectsAtOnce, [&](int64_t) {
      if (request_.progress) request_.progress(counters_, bytes);
    });
    for (size_t i = 0; i < files.size(); ++i) {
      ThrowIfInterrupted();
      groups.WaitForRoom();
      const size_t f = files[i];
      // An object refers to its layout.
      const auto layout = std::make_shared<const FileLayout>(Completed(parts_.files[f]));
      std::shared_ptr<Object> object;
      if (!is_there[i]) {
        object = std::make_shared<Object>(&store_, layout->path, *layout,
                                          Metadata{{kExportKey, claim_sha256_}}, &parts_.crcs[f]);
      }
      std::vector<BoxTask> tasks =
          TasksOf(*layout, object.get(), &parts_.digests[f], &parts_.crcs[f]);
      // A part is whole soonest if its boxes are made one after the other.
      std::sort(tasks.begin(), tasks.end(), [](const BoxTask& a, const BoxTask& b) {
        return a.output.offset < b.output.offset;
      });
      groups.Add(std::move(tasks), [&, layout, object, f] {
        if (Commit(f, object.get())) return;
        const std::lock_guard lock(mutex);
        again.push_back(f);
      });
    }
    groups.Finish();
    std::sort(again.begin(), again.end());
    for (const size_t f : again) sizes_[f] = 0;  // Something is there, or was.
    return again;
  }

  // Names an object, and writes the receipt of its share if that is whole. Null: the object is
  // there. Returns false if it must be made again.
  bool Commit(size_t f, Object* object) {
    const Timer timer(&counters_.sync_ns);
    const bool is_own =
        object != nullptr && object->Complete([&] { RequireClaim(!object->has_parts()); });
    if (!is_own) {
      if (!IsOwn(f)) return false;
      if (may_differ_) RequireSame(f);
    }
    const int64_t share = parts_.share[f];
    {
      const std::lock_guard lock(mutex_);
      if (--left_in_[static_cast<size_t>(share)] > 0) return true;
    }
    RequireClaim(true);
    PutReceipt(share);
    return true;
  }

  void PutReceipt(int64_t share) {
    RankPlan tensors = {};
    for (size_t f = 0; f < parts_.files.size(); ++f) {
      if (parts_.share[f] != share) continue;
      for (const FileBox& box : parts_.files[f].boxes) {
        tensors.shards.push_back({box.tensor, box.box});
      }
    }
    nlohmann::json sources = nlohmann::json::array();
    for (const ReadSource& read : SourcesRead(plan_, tensors)) {
      sources.push_back({read.source, read.tensor, ToHex(read.sha256)});
      AddSource(share, read.source, read.tensor, ToHex(read.sha256));
    }
    const nlohmann::json receipt = {{"export_sha256", claim_sha256_},
                                    {"sources", std::move(sources)},
                                    {"files", WriteShare(parts_, share)}};
    PutText(store_, ReceiptName(ShareReceipt(share)), receipt.dump());
  }

  // Returns whether a file is there. Throws Error (kConflict) if it is not of this export.
  bool IsOwn(size_t f) {
    const FileLayout& file = parts_.files[f];
    const std::optional<ObjectInfo> info = store_.Head(file.path);
    if (!info) return false;
    const auto of = info->metadata.find(kExportKey);
    if (of != info->metadata.end() && of->second == claim_sha256_ && info->size == file.size()) {
      return true;
    }
    throw Error(ExitCode::kConflict,
                fmt::format("`{}` is there, and {}", store_.UrlOf(file.path),
                            of == info->metadata.end() ? "no run of this export wrote it"
                            : info->size != file.size()
                                ? fmt::format("has {} bytes instead of {}", info->size, file.size())
                                : "is another export's"),
                "choose another folder with `-o`, or remove it with the store's own tool");
  }

  // Another process made the object, perhaps when a source had other bytes. Throws Error
  // (kConflict) if it has others than were made here.
  void RequireSame(size_t f) {
    const FileLayout file = Finished(parts_.files[f], parts_.crcs[f]);
    Sha256 expected;
    ForEachGap(file, [&](std::string_view bytes) { expected.Update(bytes); });
    std::vector<FilePart> parts;
    for (const FileBox& box : file.boxes) parts.push_back({box.offset, BytesOf(box)});
    std::unique_ptr<PlaceFile> there;
    if (place_.Open(file.path, &there).empty() && there->size() == file.size()) {
      const FileDigests digests = HashFile(place_, *there, parts, kOneFile);
      if (digests.parts == parts_.digests[f] && digests.rest == expected.Finish()) return;
    }
    throw Error(
        ExitCode::kConflict,
        fmt::format("`{}` was made of sources that had other elements", store_.UrlOf(file.path)),
        "make all of it from one source, in another folder, and give its `digest` in the spec");
  }

  // Makes a file without elements, or compares the one that is there.
  void PutTextFile(const FileLayout& file) {
    if (!IsLarge(file)) return PutText(store_, file.path, TextOf(file));
    Sha256 hash;
    ForEachGap(file, [&](std::string_view bytes) { hash.Update(bytes); });
    const std::string digest = ToHex(hash.Finish());
    for (int attempt = 0; attempt < kTriesAmongWriters; ++attempt) {
      std::optional<ObjectInfo> info = store_.Head(file.path);
      if (!info) {
        Object object(&store_, file.path, file, {{kTextKey, digest}});
        if (object.Complete([&] { RequireClaim(); })) return;
        info = store_.Head(file.path);
      }
      if (!info) continue;  // Another writer was through, and ended the upload.
      std::unique_ptr<PlaceFile> there;
      if (info->size == file.size() && place_.Open(file.path, &there).empty() &&
          ToHex(HashFile(place_, *there, {}, kOneFile).rest) == digest) {
        return;
      }
      break;
    }
    throw Error(
        ExitCode::kConflict,
        fmt::format("`{}` is there already, and has another content", store_.UrlOf(file.path)),
        "objects are never replaced: remove it with the store's own tool if it is wrong, and run "
        "the same command again");
  }

  const Plan& plan_;
  const ExportRequest& request_;
  WorkCounters& counters_;
  const BucketPlace place_;
  Store& store_;
  const std::string origin_, claim_, claim_sha256_;
  const bool may_differ_;  // The values do not follow from the plan.
  ExportParts parts_;
  std::unordered_map<std::string_view, size_t> file_of_;
  std::string claim_etag_;
  bool has_tried_uploads_ = false;
  // The sizes of files when the objects were listed, or -1 for none.
  std::vector<int64_t> sizes_;
  std::set<int64_t> receipts_;
  std::string of_checkpoint_;
  bool has_record_ = false, has_something_ = false;

  std::set<int64_t> done_;  // shares of which all is known
  std::mutex mutex_;
  std::vector<int64_t> left_in_;  // by share: files that are not there yet
  std::chrono::steady_clock::time_point claim_seen_{};
  // The digests of sources' tensors, each with a share that was made of it.
  std::map<std::pair<std::string, std::string>, std::map<std::string, int64_t>> sources_;
};

}  // namespace

std::optional<std::string> ExportInBucket(const Plan& plan, const ExportRequest& request,
                                          std::vector<FileLayout> files, WorkCounters* counters,
                                          ExportResult* result) {
  const SignalsWait signals;  // The caller says what becomes of the files that are done.
  BucketExport in_bucket(plan, request, std::move(files), counters);
  if (auto record = in_bucket.Claim()) return record;
  result->bytes = in_bucket.MakeShares();
  result->missing = in_bucket.FindMissing();
  if (result->missing.empty()) in_bucket.Complete();
  return {};
}

}  // namespace shardinit
