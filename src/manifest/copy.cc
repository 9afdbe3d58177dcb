#include "manifest/copy.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <bit>
#include <iterator>
#include <memory>
#include <unordered_map>

#include "base/error.h"
#include "base/folder.h"
#include "generate/view.h"
#include "graph/rearrange.h"

namespace shardinit {
namespace {

Error Damaged(const std::string& folder, const std::string& what) {
  return Error(ExitCode::kDifferent, fmt::format("`{}` is damaged: {}", folder, what),
               fmt::format("`shardinit verify {}` says what else is", folder));
}

// Elements of a stored tensor, by their index in all of it.
class StoredFiller final : public Filler {
 public:
  StoredFiller(BoxElements elements, int bytes) : elements_(std::move(elements)), bytes_(bytes) {}

  void Fill(const Runs& runs, int64_t first, int64_t count, void* out) const override {
    auto* at = static_cast<uint8_t*>(out);
    while (count > 0) {
      const int64_t within = first % runs.length();
      const int64_t some = std::min(count, runs.length() - within);
      elements_(runs.Start(first / runs.length()) + within, some, at);
      at += some * bytes_;
      first += some;
      count -= some;
    }
  }

 private:
  const BoxElements elements_;
  const int bytes_;
};

// Runs that are shorter are read with what is around them: to compare a part of a box, all of it is
// read.
constexpr int64_t kSmallestCell = 4 << 10;

int64_t CellBytes(int64_t run_bytes) {
  return std::clamp(static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(run_bytes))),
                    kSmallestCell, WatchedBox::kLargestCell);
}

// Whether elements that lie side by side in the view do not where they come from.
bool Transposes(const View& view) {
  return std::any_of(view.pieces.begin(), view.pieces.end(), [](const Piece& piece) {
    return !piece.loops.empty() && piece.loops.back().from != 1;
  });
}

}  // namespace

CheckpointCopy::CheckpointCopy(const std::string& folder, const Plan& from,
                               const Digest& plan_sha256, const Plan& to)
    : folder_(folder), from_(from), to_(to.graph.tensors), reader_(folder, from, plan_sha256) {
  std::string manifest;
  if (!ReadIfFile(folder + "/" + kManifestName, kManifestLimit, &manifest).empty()) {
    throw Error(ExitCode::kUsage,
                fmt::format("`{}` is unfinished: it has no {}", folder, kManifestName),
                fmt::format("see `shardinit status {}`", folder));
  }
  std::optional<FileEntry> index;
  if (!ClaimedIndex(manifest, &index) ||
      !IsManifestOf(manifest, from, plan_sha256, reader_.receipts(), index)) {
    throw Damaged(folder, fmt::format("{} is not what follows from the plan and the receipts",
                                      kManifestName));
  }
  manifest_sha256_ = Sha256Of(manifest);
  for (const Tensor& tensor : from.graph.tensors) {
    watched_.emplace_back(reader_.PiecesOf(tensor).size());
  }
  FindOrigins(to);
}

void CheckpointCopy::FindOrigins(const Plan& to) {
  std::unordered_map<std::string_view, const Tensor*> stored;
  for (const Tensor& tensor : from_.graph.tensors) stored.emplace(tensor.path, &tensor);
  std::optional<Rearrangement> rearrangement;
  for (const Tensor& tensor : to.graph.tensors) {
    Origin& origin = origins_.emplace_back();
    const auto same = stored.find(tensor.path);
    if (same != stored.end() && AreStoredAlike(*same->second, tensor)) {
      origin.same = same->second;
      continue;
    }
    if (!rearrangement) rearrangement.emplace(from_.graph, to.graph);
    origin.view = rearrangement->ViewOf(tensor);
  }
}

std::shared_ptr<WatchedBox> CheckpointCopy::Watch(const Tensor& stored, size_t number,
                                                  int64_t cell_bytes, std::vector<BoxTask>* tasks,
                                                  std::vector<Checked>* checked) {
  const auto index = static_cast<size_t>(&stored - from_.graph.tensors.data());
  std::shared_ptr<WatchedBox>& watched = watched_[index][number];
  if (watched) return watched;
  const FilePiece& piece = reader_.PiecesOf(stored)[number];
  const int64_t element = InfoOf(stored.dtype).bytes;
  watched =
      std::make_shared<WatchedBox>(piece, ElementCount(piece.box.shape) * element, cell_bytes);
  const auto found = std::make_shared<Digest>();
  BoxTask task = {&stored, piece.box, {}, found.get()};
  task.source = [watched, found, element](int64_t first, int64_t count, void* out) {
    Fd fd;
    watched->Read(&fd, first * element, count * element, out);
  };
  tasks->push_back(std::move(task));
  checked->push_back({&stored, &piece, &reader_.DigestsOf(stored)[number], found});
  return watched;
}

void CheckpointCopy::Require(const Checked& box) const {
  if (*box.found == *box.wanted) return;
  throw Damaged(folder_, fmt::format("{}: the box of `{}` at [{}] has other data than was written",
                                     box.piece->file, box.tensor->path,
                                     fmt::join(box.piece->box.offset, ", ")));
}

BoxElements CheckpointCopy::PartsOf(const Tensor& stored, const Box& box, int64_t cell_bytes,
                                    std::vector<BoxTask>* tasks, std::vector<Checked>* checked) {
  const std::vector<FilePiece>& pieces = reader_.PiecesOf(stored);
  const int element = InfoOf(stored.dtype).bytes;
  std::vector<std::shared_ptr<WatchedBox>> parts;
  for (size_t p = 0; p < pieces.size(); ++p) {
    if (!Overlap(pieces[p].box, box)) continue;
    const int64_t cell =
        cell_bytes > 0 ? cell_bytes : CellBytes(RunLength(pieces[p].box, box) * element);
    parts.push_back(Watch(stored, p, cell, tasks, checked));
  }
  return [parts, box, element](int64_t first, int64_t count, void* out) {
    for (const auto& part : parts) {
      Fd fd;
      ReadPiece(
          part->piece().box, element, box, first, count, out,
          [&](int64_t offset, int64_t bytes, void* to) { part->Read(&fd, offset, bytes, to); });
    }
  };
}

std::function<void()> CheckpointCopy::Open(std::vector<BoxTask>* tasks) {
  std::vector<Checked> checked;
  std::vector<BoxTask> added;
  for (BoxTask& task : *tasks) {
    const Origin& origin = origins_[static_cast<size_t>(task.tensor - to_.data())];
    if (origin.same == nullptr) {
      const int64_t cell = Transposes(*origin.view.view) ? kSmallestCell : WatchedBox::kLargestCell;
      const auto filler =
          std::make_shared<const ViewFiller>(origin.view, task.box, [&](const Tensor& stored) {
            return std::make_unique<StoredFiller>(
                PartsOf(stored, WholeOf(stored.shape), cell, &added, &checked),
                InfoOf(stored.dtype).bytes);
          });
      task.source = [filler](int64_t first, int64_t count, void* out) {
        filler->Fill(first, count, out);
      };
      continue;
    }
    const std::vector<FilePiece>& pieces = reader_.PiecesOf(*origin.same);
    const auto whole = std::find_if(pieces.begin(), pieces.end(),
                                    [&](const FilePiece& piece) { return piece.box == task.box; });
    if (whole == pieces.end()) {
      task.source = PartsOf(*origin.same, task.box, 0, &added, &checked);
      continue;
    }
    const auto number = static_cast<size_t>(whole - pieces.begin());
    checked.push_back({origin.same, &*whole, &reader_.DigestsOf(*origin.same)[number],
                       std::shared_ptr<const Digest>(std::shared_ptr<void>(), task.digest)});
    task.source = [piece = &*whole, element = InfoOf(task.tensor->dtype).bytes](
                      int64_t first, int64_t count, void* out) {
      Fd fd;
      ReadPart(*piece, &fd, first * element, count * element, out);
    };
  }
  std::move(added.begin(), added.end(), std::back_inserter(*tasks));
  return [this, checked] {
    for (const Checked& box : checked) Require(box);
  };
}

}  // namespace shardinit
