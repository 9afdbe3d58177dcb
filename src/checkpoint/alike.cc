#include "checkpoint/alike.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/interrupt.h"
#include "base/json.h"
#include "checkpoint/stored_filler.h"
#include "generate/evaluator.h"
#include "generate/view.h"
#include "graph/stored/rearrange.h"
#include "tensor/arrangement.h"
#include "tensor/convert.h"

namespace shardinit {
namespace {

constexpr int64_t kBytesAtOnce = 1 << 20;

// Returns the stored tensors with elements of drawn tensors that are stored more than once.
std::vector<const Tensor*> WithOthers(const InitGraph& graph) {
  std::vector<int64_t> missing;
  for (const Tensor& drawn : *graph.drawn) missing.push_back(drawn.elements());
  for (const Tensor& stored : graph.tensors) {
    for (const Piece& piece : stored.view()->pieces) {
      if (piece.source == Piece::kPadding) continue;
      missing[static_cast<size_t>(piece.source)] -= piece.elements();
    }
  }
  std::vector<const Tensor*> found;
  for (const Tensor& stored : graph.tensors) {
    const auto& pieces = stored.view()->pieces;
    if (std::any_of(pieces.begin(), pieces.end(), [&](const Piece& piece) {
          return piece.source != Piece::kPadding && missing[static_cast<size_t>(piece.source)] < 0;
        })) {
      found.push_back(&stored);
    }
  }
  return found;
}

// Returns a view of stored tensor `number` itself, padded like `view`.
Tensor ViewOfItself(const Tensor& view, int64_t number) {
  Tensor same = view;
  View pieces = *view.view();
  for (Piece& piece : pieces.pieces) {
    if (piece.source == Piece::kPadding) continue;
    piece.source = number;
    piece.from = piece.base;
    for (Piece::Loop& loop : piece.loops) loop.from = loop.stride;
  }
  same.set_view(std::make_shared<View>(std::move(pieces)));
  return same;
}

// Returns the path of the tensor that has this element of a stored tensor in another place.
std::string_view HolderOf(const TensorFolder& folder, const Tensor& view, int64_t element) {
  std::vector<Piece> there;
  for (const Piece& piece : view.view()->pieces) {
    ClipPiece(piece, element, element + 1, &there);
  }
  return folder.plan().graph.tensors[static_cast<size_t>(there.front().source)].path();
}

// `here` and `there` are the values of the element in the tensor and in the other tensor.
[[noreturn]] void ThrowUnlike(const TensorFolder& folder, const Tensor& stored, const Tensor& view,
                              int64_t element, const void* here, const void* there) {
  throw Error(ExitCode::kUsage,
              fmt::format("`{}` of `{}` should be equal to `{}`, but differs at {}: {} instead of "
                          "{}, which would be lost",
                          stored.path(), folder.path(), HolderOf(folder, view, element),
                          IndexInText(stored.shape(), element), NumberInText(here, stored.dtype()),
                          NumberInText(there, stored.dtype())),
              "leave one of them out with `--drop`");
}

// Compares a stored tensor with its elements in other places of the folder.
void Compare(const TensorFolder& folder, const Tensor& stored, const Tensor& view) {
  const auto& tensors = folder.plan().graph.tensors;
  const Box whole = WholeOf(stored.shape());
  const auto filler_of = [&](const Tensor& of) {
    return std::make_unique<StoredFiller>([elements = folder.ElementsOf(of)] { return elements; },
                                          InfoOf(of.dtype()).bytes);
  };
  const ViewFiller copied(view, whole, filler_of);
  const ViewFiller there(ViewOfItself(view, &stored - tensors.data()), whole, filler_of);
  const int64_t bytes = InfoOf(stored.dtype()).bytes, at_once = kBytesAtOnce / bytes;
  std::vector<uint8_t> a(kBytesAtOnce), b(kBytesAtOnce);
  for (int64_t first = 0; first < stored.elements(); first += at_once) {
    ThrowIfInterrupted();
    const int64_t count = std::min(at_once, stored.elements() - first);
    copied.Fill(first, count, a.data());
    there.Fill(first, count, b.data());
    const auto differs = std::mismatch(a.begin(), a.begin() + count * bytes, b.begin()).first;
    if (differs != a.begin() + count * bytes) {
      const int64_t at = (differs - a.begin()) / bytes;
      ThrowUnlike(folder, stored, view, first + at, &b[static_cast<size_t>(at * bytes)],
                  &a[static_cast<size_t>(at * bytes)]);
    }
  }
}

}  // namespace

bool AreEqual(const TensorFolder& folder, const Tensor& a, const Tensor& b) {
  const int64_t bytes = InfoOf(a.dtype()).bytes, at_once = kBytesAtOnce / bytes;
  const BoxElements left = folder.ElementsOf(a), right = folder.ElementsOf(b);
  std::vector<uint8_t> of_a(kBytesAtOnce), of_b(kBytesAtOnce);
  for (int64_t first = 0; first < a.elements(); first += at_once) {
    ThrowIfInterrupted();
    const int64_t count = std::min(at_once, a.elements() - first);
    left(first, count, of_a.data());
    right(first, count, of_b.data());
    if (!std::equal(of_a.begin(), of_a.begin() + count * bytes, of_b.begin())) return false;
  }
  return true;
}

bool IsUntied(const TensorFolder& folder) {
  const InitGraph& graph = folder.plan().graph;
  if (folder.is_checkpoint() || graph.config.empty()) return false;
  const auto config = nlohmann::json::parse(graph.config, nullptr, false);
  if (!config.is_object() || config.value("tie_word_embeddings", nlohmann::json()) != true) {
    return false;
  }
  const auto find = [&](std::string_view path) {
    return std::ranges::find(graph.tensors, path, &Tensor::path);
  };
  const auto head = find("lm_head.weight"), table = find("model.embed_tokens.weight");
  return head != graph.tensors.end() && table != graph.tensors.end() &&
         !(head->shape() == table->shape() && head->dtype() == table->dtype() &&
           AreEqual(folder, *head, *table));
}

void RequireAlike(const TensorFolder& folder) {
  const InitGraph& graph = folder.plan().graph;
  if (!graph.drawn) return;
  const std::vector<const Tensor*> shared = WithOthers(graph);
  if (shared.empty()) return;
  Rearrangement rearrangement(graph, graph);
  for (const Tensor* const stored : shared) {
    const int64_t number = stored - graph.tensors.data();
    const Tensor view = rearrangement.ViewOf(*stored);
    const auto& pieces = view.view()->pieces;
    if (std::all_of(pieces.begin(), pieces.end(), [&](const Piece& piece) {
          return piece.source == number || piece.source == Piece::kPadding;
        })) {
      continue;
    }
    Compare(folder, *stored, view);
  }
}

}  // namespace shardinit
