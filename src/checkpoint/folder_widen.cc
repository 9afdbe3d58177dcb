// Implements TensorFolder for tensors that are computed from several stored ones.
#include <fmt/format.h>

#include <map>

#include "base/error.h"
#include "checkpoint/folder.h"
#include "quantized/config.h"
#include "tensor/encode.h"

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
  const auto found = widened_.find(tensor.path());
  return found == widened_.end() ? nullptr : &found->second.widening;
}

const std::vector<FilePiece>& TensorFolder::PiecesOf(const Widening& widening, size_t part) const {
  const auto& pieces = widened_.at(widening.made.path()).pieces.at(part);
  static const std::vector<FilePiece> kNone;
  return pieces == nullptr ? kNone : *pieces;
}

BoxElements TensorFolder::ElementsOf(const Widening& widening, BoxElements numbers) const {
  std::array<BoxElements, Widening::kParts> stored = {std::move(numbers)};
  for (size_t part = Widening::kScales; part < Widening::kParts; ++part) {
    stored[part] = ElementsAt(PiecesOf(widening, part), widening.parts[part]);
  }
  return shardinit::Widen(widening, std::move(stored));
}

std::vector<double> TensorFolder::ReadWhole(const Tensor& tensor) const {
  const DTypeInfo& info = InfoOf(tensor.dtype());
  std::vector<uint8_t> stored(static_cast<size_t>(tensor.elements() * info.bytes));
  ElementsOf(tensor)(0, tensor.elements(), stored.data());
  for (const FilePiece& piece : PiecesOf(tensor)) RequireUnchanged(piece);
  std::vector<double> numbers;
  for (int64_t i = 0; i < tensor.elements(); ++i) {
    numbers.push_back(Decode(&stored[static_cast<size_t>(i * info.bytes)], info.dtype));
  }
  return numbers;
}

TensorFolder TensorFolder::Widen(DType dtype,
                                 const std::function<bool(const std::string& path)>& is_dropped,
                                 int64_t* count) && {
  std::deque<Widening> widenings = FindWidenings(
      plan_, dtype, is_dropped, [&](const Tensor& tensor) { return ReadWhole(tensor); });
  *count += std::ssize(widenings);
  if (widenings.empty()) return std::move(*this);
  std::map<std::string, std::string> stored_as;       // by the path of the made tensor
  std::map<std::string_view, const Tensor*> made;     // by the path of its numbers
  std::map<std::string_view, SharedPieces> left_out;  // the pieces of all other parts
  for (const Widening& widening : widenings) {
    made.emplace(widening.numbers().path(), &widening.made);
    if (!stored_as.emplace(widening.made.path(), widening.numbers().path()).second) {
      ThrowUnreadable(
          std::string(widening.numbers().path()),
          fmt::format("another quantized tensor also becomes `{}`", widening.made.path()));
    }
    for (size_t part = Widening::kScales; part < Widening::kParts; ++part) {
      left_out.emplace(widening.parts[part].path(), nullptr);
    }
    for (const std::string& path : widening.unused) left_out[path];
  }
  for (const Tensor& tensor : plan_.graph.tensors) {
    const auto found = left_out.find(tensor.path());
    if (found == left_out.end()) continue;
    RequireRecorded(tensor);
    found->second = std::make_shared<const std::vector<FilePiece>>(
        reader_ ? PiecesOf(tensor) : std::move(pieces_[PlaceOf(tensor)]));
  }
  InitGraph graph = plan_.graph;
  std::erase_if(graph.tensors,
                [&](const Tensor& tensor) { return left_out.contains(tensor.path()); });
  for (Tensor& tensor : graph.tensors) {
    const auto found = made.find(tensor.path());
    if (found != made.end()) tensor = *found->second;
  }
  graph.config = WithoutQuantization(graph.config);
  TensorFolder wide = std::move(*this).WithPlan(MakePlan(std::move(graph)), stored_as);
  for (; !widenings.empty(); widenings.pop_front()) {
    Widened widened = {std::move(widenings.front()), {}};
    for (size_t part = Widening::kScales; part < Widening::kParts; ++part) {
      widened.pieces[part] = left_out.at(widened.widening.parts[part].path());
    }
    const std::string_view path = widened.widening.made.path();
    wide.widened_.emplace(path, std::move(widened));
  }
  return wide;
}

}  // namespace shardinit
