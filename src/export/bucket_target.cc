#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "base/error.h"
#include "base/parse_number.h"
#include "base/text.h"
#include "bucket/made_once.h"
#include "bucket/store.h"
#include "export/record.h"
#include "export/target.h"
#include "place/bucket_place.h"
#include "spec/file_kind.h"

namespace shardinit {
namespace {

constexpr size_t kLongestKey = 1024;  // of an object, in bytes
constexpr size_t kClaimLimit = size_t{1} << 24, kObjectLimit = size_t{4} << 30;

// This member follows the origin in a claim.
constexpr char kSourceMember[] = ",\n \"source\": ";

// Rejects a file that cannot have a name in a bucket.
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
      wrong = "has a part that stores remove";
    }
    if (wrong.empty()) continue;
    throw Error(
        ExitCode::kUsage,
        fmt::format("{} cannot be the name of an object: it {}", Quote(file.path), wrong),
        "give a shorter prefix or write to a local folder, or store the tensor under another "
        "name with a layout of the spec");
  }
}

class InBucket : public ExportTarget {
 public:
  explicit InBucket(const ExportParts& parts)
      : parts_(parts),
        place_(std::make_shared<const BucketPlace>(parts.request.folder)),
        store_(place_->store()),
        origin_(WriteOrigin(parts.plan, parts.request)),
        claim_(WithDigest(fmt::format("{}{}\"{}\",\n", origin_, kSourceMember,
                                      ToHex(Sha256Of(parts.request.claim))))),
        claim_sha256_(ToHex(Sha256Of(claim_))) {
    RequireKeys(store_, parts_.files);
    for (size_t f = 0; f < parts_.files.size(); ++f) file_of_[parts_.files[f].path] = f;
  }

  // Also claims the place.
  std::optional<std::string> Find() override {
    std::optional<std::string> present = store_.Get(kExportClaim, kClaimLimit);
    if (!present) {
      List();
      // An export that another tool copied needs no claim.
      if (auto record = WholeRecord()) return record;
      if (!has_something_) PutClaim(store_, kExportClaim, claim_);
      // Another process may have written the claim between these requests.
      present = store_.Get(kExportClaim, kClaimLimit);
      if (!present && has_something_) {
        throw Conflict(fmt::format("`{}` is not empty, and contains something else", path()));
      }
    }
    if (present != claim_) ThrowOther(present.value_or(""));
    const std::optional<ObjectInfo> info = store_.Head(kExportClaim);
    if (!info || info->size != std::ssize(claim_)) ThrowOther("");
    claim_etag_ = info->etag;
    List();
    // A `gen` may have claimed the place at the same time. It then finds this claim.
    if (!of_checkpoint_.empty()) {
      throw Conflict(
          fmt::format("`{}`, of a checkpoint, is already there", store_.UrlOf(of_checkpoint_)));
    }
    return WholeRecord();
  }

  void Open() override {}  // Find() has claimed the place.

  std::shared_ptr<const Place> place() const override { return place_; }
  std::string claim_sha256() const override { return claim_sha256_; }

  // If there are many small objects, this checks the claim once a second.
  void RequireClaim(bool is_small) override {
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

  // Throws Error (kUsage) if the store would let another writer replace a file uploaded in parts.
  void Prepare(bool has_large) override {
    if (!has_large || std::exchange(has_tried_uploads_, true)) return;
    RequireConditionalUploads(store_, kExportClaim, claim_);
  }

  void List() override {
    sizes_.assign(parts_.files.size(), -1);
    receipts_.clear();
    of_checkpoint_.clear();
    has_record_ = has_something_ = false;
    const std::string receipt = fmt::format("{}/", kExportNotes);
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
        // Names of receipts have five or more digits. Other names are ignored.
        const auto share =
            ParseNumber<int64_t>(std::string_view(name).substr(receipt.size() + kReceiptStem));
        if (share && ReceiptName(*share) == name) receipts_.insert(*share);
      }
      return true;
    });
  }

  int64_t SizeOf(size_t file) const override { return sizes_[file]; }
  const Place* receipts() const override { return place_.get(); }
  std::string ReceiptName(int64_t share) const override {
    return fmt::format("{}/{}", kExportNotes, ShareReceipt(share));
  }
  bool HasReceipt(int64_t share) const override { return receipts_.contains(share); }

  // Ends uploads, so that a process that still sends parts finds that the file exists.
  bool Commit() override {
    store_.ListUploads([&](const std::string& name, const std::string& upload) {
      if (file_of_.contains(name) || name == kExportName || name == kExportClaim) {
        store_.EndUpload(name, upload);
      }
    });
    return true;
  }

 private:
  const std::string& path() const { return parts_.request.folder; }

  [[noreturn]] void ThrowOther(std::string_view claim) const {
    if (claim.empty()) {
      throw Conflict(
          fmt::format("`{}` has lost its {}, or another process has given it another export",
                      path(), kExportClaim));
    }
    throw Conflict(fmt::format("`{}` holds {}", path(),
                               claim.starts_with(origin_ + kSourceMember)
                                   ? "this export with values from another source"
                                   : "another export"));
  }

  static constexpr size_t kReceiptStem = std::string_view("share-").size();

  // Returns the record if the listing had the whole export.
  std::optional<std::string> WholeRecord() {
    if (!has_record_) return {};
    std::optional<std::string> record = store_.Get(kExportName, kObjectLimit);
    if (!record) return {};
    // Another export may begin with the same text and continue with an optimizer.
    if (!IsRecordOf(*record, origin_)) ThrowOther(*record);
    for (size_t f = 0; f < parts_.files.size(); ++f) {
      if (sizes_[f] != parts_.files[f].size()) return {};
    }
    return record;
  }

  const ExportParts& parts_;
  const std::shared_ptr<const BucketPlace> place_;
  Store& store_;
  const std::string origin_, claim_, claim_sha256_;
  std::unordered_map<std::string_view, size_t> file_of_;
  std::string claim_etag_;
  bool has_tried_uploads_ = false;
  // The sizes of files in the listing; -1: not listed.
  std::vector<int64_t> sizes_;
  std::set<int64_t> receipts_;
  std::string of_checkpoint_;
  bool has_record_ = false, has_something_ = false;
  std::mutex mutex_;
  std::chrono::steady_clock::time_point claim_seen_{};
};

}  // namespace

std::unique_ptr<ExportTarget> BucketTarget(const ExportParts& parts) {
  return std::make_unique<InBucket>(parts);
}

}  // namespace shardinit
