#include "manifest/copy.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
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
    checked_.emplace_back(reader_.PiecesOf(tensor).size());
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
    for (const Piece& piece : origin.view.view->pieces) {
      if (piece.source != Piece::kPadding) origin.of.push_back(static_cast<size_t>(piece.source));
    }
    std::sort(origin.of.begin(), origin.of.end());
    origin.of.erase(std::unique(origin.of.begin(), origin.of.end()), origin.of.end());
  }
}

BoxElements CheckpointCopy::Open(const Tensor& tensor, const Box& box) const {
  const Origin& origin = origins_[static_cast<size_t>(&tensor - to_.data())];
  if (origin.same != nullptr) return reader_.Open(*origin.same, box);
  const auto filler =
      std::make_shared<const ViewFiller>(origin.view, box, [this](const Tensor& stored) {
        return std::make_unique<StoredFiller>(reader_.Open(stored, WholeOf(stored.shape)),
                                              InfoOf(stored.dtype).bytes);
      });
  return [filler](int64_t first, int64_t count, void* out) { filler->Fill(first, count, out); };
}

RankCheck CheckpointCopy::CheckOf(const RankPlan& rank) {
  struct Checked {
    const Tensor* tensor;
    const FilePiece* piece;
    const Digest* wanted;
    Digest found{};
  };
  const auto all = std::make_shared<std::vector<Checked>>();
  // A box that is copied as it is has its digest if the rank's box, of this number, has it.
  std::vector<std::pair<size_t, Checked>> whole;
  const auto check = [&](const Tensor& tensor, const Box* box, size_t shard) {
    std::vector<bool>& checked = checked_[static_cast<size_t>(&tensor - &from_.graph.tensors[0])];
    const std::vector<FilePiece>& pieces = reader_.PiecesOf(tensor);
    for (size_t p = 0; p < pieces.size(); ++p) {
      if (checked[p] || (box != nullptr && !Overlap(pieces[p].box, *box))) continue;
      checked[p] = true;
      Checked one = {&tensor, &pieces[p], &reader_.DigestsOf(tensor)[p]};
      if (box != nullptr && pieces[p].box == *box) {
        whole.emplace_back(shard, one);
      } else {
        all->push_back(one);
      }
    }
  };
  for (size_t s = 0; s < rank.shards.size(); ++s) {
    const Shard& shard = rank.shards[s];
    const Origin& origin = origins_[static_cast<size_t>(shard.tensor - to_.data())];
    if (origin.same != nullptr) check(*origin.same, &shard.box, s);
    for (const size_t stored : origin.of) check(from_.graph.tensors[stored], nullptr, s);
  }

  RankCheck result;
  for (Checked& one : *all) {
    result.tasks.push_back({one.tensor, one.piece->box, {}, &one.found});
    result.tasks.back().source = [&one](int64_t first, int64_t count, void* out) {
      ReadPieces({*one.piece}, InfoOf(one.tensor->dtype).bytes, one.piece->box, first, count, out);
    };
  }
  result.done = [all, whole, folder = folder_](const std::vector<Digest>& digests) {
    const auto require = [&](const Checked& one, const Digest& found) {
      if (found == *one.wanted) return;
      throw Damaged(folder, fmt::format("{}: the box of `{}` at [{}] has other data than was "
                                        "written",
                                        one.piece->file, one.tensor->path,
                                        fmt::join(one.piece->box.offset, ", ")));
    };
    for (const Checked& one : *all) require(one, one.found);
    for (const auto& [shard, one] : whole) require(one, digests[shard]);
  };
  return result;
}

}  // namespace shardinit
