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
#include "checkpoint/widened_source.h"
#include "generate/digests.h"
#include "report/text.h"
#include "tensor/numbers.h"

namespace shardinit {
namespace {

// A tensor of the folder, with the facts that show whether it is the requested one.
struct FoundTensor {
  Shape shape;
  std::optional<DType> dtype;  // null: it is not read
  std::string why;             // the reason, if it is not read
  std::string file;
  std::vector<FilePiece> pieces;
  std::vector<Digest> recorded;  // of the pieces; empty: not known
};

// Reading many cells at once is faster.
constexpr int64_t kStretch = 128 << 10;

// Hashes the boxes of a tensor while all its elements pass in row-major order. In this order, the
// elements of each box are in the order of its digest.
class BoxHashes {
 public:
  BoxHashes(const std::vector<FilePiece>& pieces, const Shape& shape, int element_bytes)
      : whole_(WholeOf(shape)), bytes_(element_bytes) {
    for (const FilePiece& piece : pieces) boxes_.push_back({&piece.box});
  }

  void Add(int64_t first, int64_t count, const uint8_t* elements) {
    const std::vector<int64_t> behind = IndicesOf(first + count);
    std::vector<uint8_t> part;
    for (Hashed& box : boxes_) {
      const int64_t end = ElementsBefore(behind, *box.box);
      if (end == box.done) continue;
      part.resize(static_cast<size_t>((end - box.done) * bytes_));
      CopyPiece(whole_, bytes_, elements, first, *box.box, box.done, end - box.done, part.data());
      box.hash.Update(part.data(), part.size());
      box.done = end;
    }
  }

  Digest Finish(size_t box) { return boxes_[box].hash.Finish(); }

 private:
  struct Hashed {
    const Box* box;
    int64_t done = 0;  // elements
    Sha256 hash = {};
  };

  std::vector<int64_t> IndicesOf(int64_t place) const {
    std::vector<int64_t> indices(whole_.shape);
    for (size_t d = indices.size(); d-- > 0; place /= whole_.shape[d]) {
      // The first dimension's index may equal its extent, after all elements.
      indices[d] = d > 0 ? place % whole_.shape[d] : place;
    }
    return indices;
  }

  const Box whole_;
  const int bytes_;
  std::vector<Hashed> boxes_;
};

class SourceFiles final : public SourceFolder, public std::enable_shared_from_this<SourceFiles> {
 public:
  explicit SourceFiles(const SourceRequest& request);

  SourceTensorPtr Find(const std::string& name) const override;
  std::vector<std::string> Names() const override;
  std::string pin() const override { return pin_; }
  std::string warning() const override { return warning_; }

  // Hashes all tensors if the request has the digest of the folder.
  void CheckAll() const;
  const SourceRequest& request() const { return request_; }
  bool is_checkpoint() const { return is_checkpoint_; }
  const Plan& plan() const { return plan_; }
  Scaled ScaledBy(const std::string& name, DType dtype) const;
  std::shared_ptr<InputFile> Open(const std::string& file) const { return open_files_.Open(file); }

 private:
  const SourceRequest request_;
  bool is_checkpoint_ = false;
  std::string warning_;
  Plan plan_;
  std::map<std::string, FoundTensor> tensors_;
  std::optional<RecordedDigests> pins_;
  std::string pin_;
  int64_t cell_bytes_;
  mutable OpenFiles open_files_;
  mutable std::mutex mutex_, checking_, scaling_;
  mutable std::optional<ScaledTensors> scaled_;
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
        name_(name),
        found_(found),
        pin_(pin) {}

  const std::string& file() const override { return found_.file; }
  Scaled scaled() const override { return folder_->ScaledBy(name_, dtype()); }

  Digest Check() const override {
    folder_->CheckAll();
    return HashTensor();
  }

  Digest HashTensor() const {
    const std::lock_guard lock(mutex_);
    if (digest_) return *digest_;
    std::vector<Fingerprint> prints;
    const int bytes = InfoOf(dtype()).bytes;
    const int64_t stretch = std::max<int64_t>(1, kStretch / bytes / cell_elements());
    prints.reserve(static_cast<size_t>(Cells()));
    std::vector<uint8_t> cells(static_cast<size_t>(stretch * cell_elements() * bytes));
    Sha256 hash;
    std::optional<BoxHashes> boxes;
    if (found_.recorded.size() > 1) boxes.emplace(found_.pieces, shape(), bytes);
    for (int64_t number = 0; number < Cells(); number += stretch) {
      ThrowIfInterrupted();
      const int64_t count = Read(number, stretch, cells.data());
      hash.Update(cells.data(), static_cast<size_t>(count * bytes));
      if (boxes) boxes->Add(number * cell_elements(), count, cells.data());
      ForEachCell(count, cells.data(),
                  [&](int64_t, Fingerprint print) { prints.push_back(print); });
    }
    const Digest digest = hash.Finish();
    if (pin_ != nullptr && ToHex(digest) != pin_->sha256) {
      throw Error(ExitCode::kUsage,
                  fmt::format("{} in `{}` has the SHA-256 {}, but {} in `{}`", text(), found_.file,
                              ToHex(digest), pin_->sha256, folder_->request().digest),
                  fmt::format("its `digest` is at {}", folder_->request().place));
    }
    for (size_t p = 0; p < found_.recorded.size(); ++p) {
      if ((boxes ? boxes->Finish(p) : digest) != found_.recorded[p]) ThrowDamaged(p);
    }
    prints_ = std::move(prints);
    digest_ = digest;
    return digest;
  }

  void ReadCells(int64_t first, int64_t count, void* out) const override {
    Check();
    const auto* const cells = static_cast<const uint8_t*>(out);
    ForEachCell(Read(first, count, out), cells, [&](int64_t cell, Fingerprint print) {
      if (print == prints_[static_cast<size_t>(first + cell)]) return;
      throw Error(ExitCode::kWorld,
                  fmt::format("`{}` was changed while {} was read", found_.file, text()),
                  "stop what changes it, and run the same command again");
    });
  }

 private:
  int64_t Cells() const { return CeilDiv(elements(), cell_elements()); }

  // Reads up to `count` cells. Returns the number of their elements.
  int64_t Read(int64_t cell, int64_t count, void* out) const {
    const int64_t first = cell * cell_elements();
    const int64_t read = std::min(count * cell_elements(), elements() - first);
    for (const FilePiece& piece : found_.pieces) {
      ReadPiece(piece.box, InfoOf(dtype()).bytes, WholeOf(shape()), first, read, out,
                [&](int64_t offset, int64_t bytes, void* to) {
                  ReadPart(piece, folder_->Open(piece.file).get(), offset, bytes, to);
                });
    }
    return read;
  }

  // Calls `visit` with the number and the fingerprint of each cell in `data`.
  template <typename Visit>
  void ForEachCell(int64_t elements, const uint8_t* data, const Visit& visit) const {
    const int64_t bytes = elements * InfoOf(dtype()).bytes;
    const int64_t cell = cell_elements() * InfoOf(dtype()).bytes;
    for (int64_t at = 0; at < bytes; at += cell) {
      visit(at / cell, FingerprintOf(data + at, std::min(cell, bytes - at)));
    }
  }

  [[noreturn]] void ThrowDamaged(size_t piece) const {
    const std::string& path = folder_->request().folder;
    throw Error(ExitCode::kDifferent,
                fmt::format("`{}` is damaged: {}: {} has other data at [{}] than was written", path,
                            found_.pieces[piece].file, text(),
                            fmt::join(found_.pieces[piece].box.offset, ", ")),
                fmt::format("`shardinit verify {}` shows all damage", path));
  }

  const std::shared_ptr<const SourceFiles> folder_;
  const std::string name_;
  const FoundTensor& found_;
  const RecordedDigest* const pin_;
  mutable std::mutex mutex_;
  mutable std::optional<Digest> digest_;
  mutable std::vector<Fingerprint> prints_;  // of all cells, once there is a digest
};

std::map<std::string, FoundTensor> ReadTensors(const SourceRequest& request, bool* is_checkpoint,
                                               std::string* warning, Plan* plan) {
  const std::string& path = request.folder;
  const TensorFolder folder(path, request.part, TensorFolder::Record::kUse);
  *is_checkpoint = folder.is_checkpoint();
  *warning = folder.record_warning();
  *plan = folder.plan();
  std::map<std::string, FoundTensor> tensors;
  for (const Tensor& tensor : folder.plan().graph.tensors) {
    const std::vector<FilePiece>& pieces = folder.PiecesOf(tensor);
    const std::string file = folder.is_checkpoint() ? path : pieces.front().file;
    const std::vector<Digest>* const digests = folder.DigestsOf(tensor);
    tensors[std::string(tensor.path())] = {tensor.shape(), tensor.dtype(), {}, file, pieces, {}};
    if (digests != nullptr) tensors[std::string(tensor.path())].recorded = *digests;
  }
  for (const auto& [name, why] : folder.unread()) tensors[name] = {{}, {}, why, path, {}, {}};
  return tensors;
}

SourceFiles::SourceFiles(const SourceRequest& request)
    : request_(request), tensors_(ReadTensors(request, &is_checkpoint_, &warning_, &plan_)) {
  // The fingerprints of all tensors take less than 32 MiB for folders of up to 2 TB. In smaller
  // folders, cells are smaller, so that reading a single element reads less around it.
  int64_t bytes = 0;
  for (const auto& [name, found] : tensors_) {
    if (found.dtype) bytes += ElementCount(found.shape) * InfoOf(*found.dtype).bytes;
  }
  cell_bytes_ = 4 << 10;
  while (cell_bytes_ < kLargestPrint && bytes / cell_bytes_ >= 1 << 21) cell_bytes_ *= 2;
  pin_ = request.digest;
  if (!request.is_file) return;
  try {
    pins_ = ReadDigests(request.digest).tensors;
  } catch (const Error& error) {
    if (error.code() != ExitCode::kRefused) throw;
    // The caller reports where the `path` of the source is.
    throw Error(error.code(), error.what(),
                fmt::format("{}{}the `digest` is at {}", error.hint(),
                            error.hint().empty() ? "" : "; ", request.place));
  }
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
                  "recreate it with `shardinit digest … --write FILE`");
    }
    pin = &of->second;
    const Shape shape = InNumbers(found.shape, *found.dtype);
    if (pin->dtype != InfoOf(*found.dtype).name || pin->shape != shape) {
      throw Error(ExitCode::kUsage,
                  fmt::format("{} in `{}` is {} {}, but {} {} in `{}`", Quote(name), found.file,
                              InfoOf(*found.dtype).name, InShape(shape), pin->dtype,
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

Scaled SourceFiles::ScaledBy(const std::string& name, DType dtype) const {
  const std::lock_guard lock(scaling_);
  if (!scaled_) scaled_ = FindScaled(*this, plan_);
  if (const auto found = scaled_->by.find(name); found != scaled_->by.end()) {
    return {fmt::format("its numbers are scaled by `{}`", found->second), true};
  }
  if (NumberBytes(dtype) > 1 || dtype == DType::boolean) return {};
  return {scaled_->problem, false};
}

void SourceFiles::CheckAll() const {
  if (request_.is_file || request_.digest.empty()) return;
  const std::lock_guard lock(checking_);
  if (checked_) return;
  RecordedDigests digests;
  for (const auto& [name, found] : tensors_) {
    if (!found.dtype) continue;  // `shardinit digest` also leaves out unread tensors.
    const SourceTensorPtr tensor = Find(name);
    const Digest digest = static_cast<const CheckedTensor&>(*tensor).HashTensor();
    digests[name] = {std::string(InfoOf(*found.dtype).name), ToHex(digest),
                     InNumbers(found.shape, *found.dtype)};
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
  std::shared_ptr<const SourceFolder> folder = files;
  if (request.widens) folder = WidenedSource(request, files, files->plan());
  if (request.layout.empty()) return folder;
  if (files->is_checkpoint()) {
    throw Error(ExitCode::kUsage,
                fmt::format("`{}` is a checkpoint, whose tensors have the names in its plan",
                            request.folder),
                "leave out the `layout` of the source");
  }
  return InLayoutOfSpec(request, folder);
}

}  // namespace shardinit
