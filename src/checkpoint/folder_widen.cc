// Implements TensorFolder for tensors that are computed from numbers and scales (widen.h).
#include <fmt/format.h>

#include <map>
#include <set>

#include "base/error.h"
#include "checkpoint/folder.h"

namespace shardinit {

// Checks a whole tensor. Scales are later read in parts, which have no digests.
void TensorFolder::RequireRecorded(const Tensor& tensor) const {
  const std::vector<Digest>* const digests = DigestsOf(tensor);
  if (digests == nullptr) return;
  const std::vector<FilePiece>& pieces = PiecesOf(tensor);
  for (size_t p = 0; p < pieces.size(); ++p) {
    const int64_t bytes = ElementCount(pieces[p].box.shape) * InfoOf(tensor.dtype()).bytes;
    std::vector<uint8_t> part(1 << 20);
    Sha256 hash;
    InputFile file;
    for (int64_t at = 0; at < bytes;) {
      const int64_t now = std::min(bytes - at, std::ssize(part));
      ReadPart(pieces[p], &file, at, now, part.data());
      hash.Update(
          std::string_view(reinterpret_cast<const char*>(part.data()), static_cast<size_t>(now)));
      at += now;
    }
    if (hash.Finish() == (*digests)[p]) continue;
    throw Error(
        ExitCode::kDifferent,
        fmt::format("`{}` is damaged: `{}` has other data than was written", path_, tensor.path()),
        fmt::format("`shardinit verify {}` shows all damage", path_));
  }
}

const Widening* TensorFolder::WideningOf(const Tensor& tensor) const {
  const auto found = widened_.find(std::string(tensor.path()));
  return found == widened_.end() ? nullptr : &found->second.widening;
}

const std::vector<FilePiece>& TensorFolder::ScalesOf(const Widening& widening) const {
  return widened_.at(std::string(widening.made.path())).scales;
}

TensorFolder TensorFolder::Widen(DType dtype,
                                 const std::function<bool(const std::string& path)>& is_dropped,
                                 int64_t* count) && {
  std::vector<Widening> widenings = FindWidenings(plan_, dtype, is_dropped);
  *count += std::ssize(widenings);
  if (widenings.empty()) return std::move(*this);
  InitGraph graph = plan_.graph;
  std::set<std::string> scales;
  std::map<std::string, const Widening*> made;
  for (const Widening& widening : widenings) {
    scales.insert(std::string(widening.scales.path()));
    made.emplace(widening.numbers.path(), &widening);
  }
  std::map<std::string, std::vector<FilePiece>> scale_pieces;
  for (const Tensor& tensor : plan_.graph.tensors) {
    if (!scales.contains(std::string(tensor.path()))) continue;
    RequireRecorded(tensor);
    scale_pieces[std::string(tensor.path())] = PiecesOf(tensor);
  }
  std::map<std::string, std::string> stored_as;
  std::erase_if(graph.tensors,
                [&](const Tensor& tensor) { return scales.contains(std::string(tensor.path())); });
  for (Tensor& tensor : graph.tensors) {
    const auto found = made.find(std::string(tensor.path()));
    if (found == made.end()) continue;
    stored_as.emplace(found->second->made.path(), tensor.path());
    tensor = found->second->made;
  }
  graph.config = WithoutQuantization(graph.config);
  TensorFolder wide = std::move(*this).WithPlan(MakePlan(std::move(graph)), stored_as);
  for (Widening& widening : widenings) {
    const std::string path(widening.made.path());
    std::vector<FilePiece> pieces = std::move(scale_pieces.at(std::string(widening.scales.path())));
    wide.widened_.emplace(path, Widened{std::move(widening), std::move(pieces)});
  }
  return wide;
}

}  // namespace shardinit
