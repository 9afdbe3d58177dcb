#include "checkpoint/source.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/checked_math.h"
#include "base/error.h"
#include "base/fingerprint.h"
#include "base/interrupt.h"
#include "base/text.h"
#include "checkpoint/folder.h"
#include "checkpoint/relaid_source.h"
#include "generate/digests.h"
#include "report/text.h"

namespace shardinit {
namespace {

// A tensor, and what tells whether it is the one that is wanted.
struct FoundTensor {
  Shape shape;
  std::optional<DType> dtype;  // none: it is not read
  std::string why;             // why there is no type
  std::string file;
  std::vector<FilePiece> pieces;
};

class SourceFiles final : public SourceFolder, public std::enable_shared_from_this<SourceFiles> {
 public:
  explicit SourceFiles(const SourceRequest& request);

  SourceTensorPtr Find(const std::string& name) const override;
  std::vector<std::string> Names() const override;
  std::string pin() const override { return pin_; }

  // Hashes all tensors if the request has the digest of the folder.
  void CheckAll() const;
  const SourceRequest& request() const { return request_; }
  bool is_checkpoint() const { return is_checkpoint_; }
  // The file that has a tensor of the folder, or the first of its parts.
  const std::string& FileOf(const std::string& name) const { return tensors_.at(name).file; }

 private:
  const SourceRequest request_;
  bool is_checkpoint_ = false;
  std::map<std::string, FoundTensor> tensors_;
  std::optional<RecordedDigests> pins_;
  std::string pin_;
  int64_t cell_bytes_;
  mutable std::mutex mutex_, checking_;
  mutable std::map<std::string, std::weak_ptr<const SourceTensor>> opened_;
  mutable bool checked_ = false;
};

class CheckedTensor final : public SourceTensor {
 public:
  CheckedTensor(const std::string& name, std::shared_ptr<const SourceFiles> folder,
                const FoundTensor& found, const RecordedDigest* pin, int64_t cell_bytes)
      : SourceTensor(fmt::format("{} of source {}", Quote(name), Quote(folder->request().name)),
                     *found.dtype, found.shape, cell_bytes),
        folder_(std::move(folder)),
        found_(found),
        pin_(pin) {}

  Digest Check() const override {
    folder_->CheckAll();
    return CheckAlone();
  }

  Digest CheckAlone() const {
    const std::lock_guard lock(mutex_);
    if (digest_) return *digest_;
    std::vector<Fingerprint> prints;
    std::vector<uint8_t> cell(static_cast<size_t>(cell_elements() * InfoOf(dtype()).bytes));
    Sha256 hash;
    for (int64_t number = 0; number < CeilDiv(elements(), cell_elements()); ++number) {
      ThrowIfInterrupted();
      const int64_t bytes = Read(number, cell.data());
      hash.Update(cell.data(), static_cast<size_t>(bytes));
      prints.push_back(FingerprintOf(cell.data(), bytes));
    }
    const Digest digest = hash.Finish();
    if (pin_ != nullptr && ToHex(digest) != pin_->sha256) {
      throw Error(ExitCode::kUsage,
                  fmt::format("{} in `{}` has the SHA-256 {}, but {} in `{}`", text(), found_.file,
                              ToHex(digest), pin_->sha256, folder_->request().digest),
                  fmt::format("its `digest` is at {}", folder_->request().place));
    }
    prints_ = std::move(prints);
    digest_ = digest;
    return digest;
  }

  void ReadCell(int64_t cell, void* out) const override {
    Check();
    const int64_t bytes = Read(cell, out);
    if (FingerprintOf(static_cast<const uint8_t*>(out), bytes) ==
        prints_[static_cast<size_t>(cell)]) {
      return;
    }
    throw Error(ExitCode::kWorld,
                fmt::format("`{}` was changed while {} was read", found_.file, text()),
                "leave it as it is, and run the same command again");
  }

 private:
  // Returns the bytes of the cell.
  int64_t Read(int64_t cell, void* out) const {
    const int64_t first = cell * cell_elements();
    const int64_t count = std::min(cell_elements(), elements() - first);
    const int bytes = InfoOf(dtype()).bytes;
    ReadPieces(found_.pieces, bytes, WholeOf(shape()), first, count, out);
    return count * bytes;
  }

  const std::shared_ptr<const SourceFiles> folder_;
  const FoundTensor& found_;
  const RecordedDigest* const pin_;
  mutable std::mutex mutex_;
  mutable std::optional<Digest> digest_;
  mutable std::vector<Fingerprint> prints_;  // of all cells, once there is a digest
};

std::map<std::string, FoundTensor> ReadTensors(const std::string& path, bool* is_checkpoint) {
  const TensorFolder folder(path);
  *is_checkpoint = folder.is_checkpoint();
  std::map<std::string, FoundTensor> tensors;
  for (const Tensor& tensor : folder.plan().graph.tensors) {
    const std::vector<FilePiece>& pieces = folder.PiecesOf(tensor);
    const std::string file = folder.is_checkpoint() ? path : pieces.front().file;
    tensors[tensor.path] = {tensor.shape, tensor.dtype, {}, file, pieces};
  }
  for (const auto& [name, why] : folder.unread()) tensors[name] = {{}, {}, why, path, {}};
  return tensors;
}

SourceFiles::SourceFiles(const SourceRequest& request)
    : request_(request), tensors_(ReadTensors(request.folder, &is_checkpoint_)) {
  // The fingerprints of all tensors take less than 32 MiB for folders of up to 2 TB.
  int64_t bytes = 0;
  for (const auto& [name, found] : tensors_) {
    if (found.dtype) bytes += ElementCount(found.shape) * InfoOf(*found.dtype).bytes;
  }
  cell_bytes_ = 64 << 10;
  while (cell_bytes_ < kLargestPrint && bytes / cell_bytes_ > 1 << 20) cell_bytes_ *= 2;
  pin_ = request.digest;
  if (!request.is_file) return;
  pins_ = ReadDigests(request.digest);
  pin_ = ToHex(ModelDigest(*pins_));
}

SourceTensorPtr SourceFiles::Find(const std::string& name) const {
  const auto it = tensors_.find(name);
  if (it == tensors_.end()) return nullptr;
  const FoundTensor& found = it->second;
  if (!found.dtype) {
    throw Error(ExitCode::kUsage,
                fmt::format("{} in `{}` {}", Quote(name), found.file, Escape(found.why)));
  }
  const RecordedDigest* pin = nullptr;
  if (pins_) {
    const auto of = pins_->find(name);
    if (of == pins_->end()) {
      throw Error(ExitCode::kUsage,
                  fmt::format("`{}` has no digest of {}", request_.digest, Quote(name)),
                  "make it anew with `shardinit digest … --write FILE`");
    }
    pin = &of->second;
    if (pin->dtype != InfoOf(*found.dtype).name || pin->shape != found.shape) {
      throw Error(ExitCode::kUsage,
                  fmt::format("{} in `{}` is {} {}, but {} {} in `{}`", Quote(name), found.file,
                              InfoOf(*found.dtype).name, InShape(found.shape), pin->dtype,
                              InShape(pin->shape), request_.digest));
    }
  }
  const std::lock_guard lock(mutex_);
  std::weak_ptr<const SourceTensor>& opened = opened_[name];
  if (SourceTensorPtr known = opened.lock()) return known;
  const auto made =
      std::make_shared<const CheckedTensor>(name, shared_from_this(), found, pin, cell_bytes_);
  opened = made;
  return made;
}

std::vector<std::string> SourceFiles::Names() const {
  std::vector<std::string> names;
  for (const auto& [name, found] : tensors_) names.push_back(name);
  return names;
}

void SourceFiles::CheckAll() const {
  if (request_.is_file || request_.digest.empty()) return;
  const std::lock_guard lock(checking_);
  if (checked_) return;
  RecordedDigests digests;
  for (const auto& [name, found] : tensors_) {
    const SourceTensorPtr tensor = Find(name);
    const Digest digest = static_cast<const CheckedTensor&>(*tensor).CheckAlone();
    digests[name] = {std::string(InfoOf(*found.dtype).name), ToHex(digest), found.shape};
  }
  if (const std::string digest = ToHex(ModelDigest(digests)); digest != request_.digest) {
    throw Error(ExitCode::kUsage,
                fmt::format("source {} in `{}` has the digest {}, not {}", Quote(request_.name),
                            request_.folder, digest, request_.digest),
                fmt::format("its `digest` is at {}", request_.place));
  }
  checked_ = true;
}

}  // namespace

std::shared_ptr<const SourceFolder> OpenSource(const SourceRequest& request) {
  const auto files = std::make_shared<SourceFiles>(request);
  if (request.layout.empty()) return files;
  if (files->is_checkpoint()) {
    throw Error(ExitCode::kUsage,
                fmt::format("`{}` is a checkpoint, whose tensors have the names that its plan says",
                            request.folder),
                "leave out the `layout` of the source");
  }
  return InLayoutOfSpec(request, files, [&](const auto& name) { return files->FileOf(name); });
}

}  // namespace shardinit
