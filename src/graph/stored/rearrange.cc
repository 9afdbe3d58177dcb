#include "graph/stored/rearrange.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "tensor/coverage.h"

namespace shardinit {
namespace {

[[noreturn]] void ThrowCannot(std::string_view path, std::string_view why) {
  throw Usage(fmt::format("cannot copy `{}`: {}", path, why));
}

// Returns the drawn tensor's path if the tensor is stored unchanged.
std::optional<std::string_view> PlainOf(const Tensor& tensor) {
  if (!tensor.view()) return tensor.path();
  const ViewNode& root = tensor.view()->root;
  if (root.operation != nullptr) return {};
  return (*tensor.view()->drawn)[root.tensor].path();
}

// Splits a piece until its loops are nested: each stride is larger than the reach of all later
// loops.
void Nest(Piece piece, std::vector<Piece>* out, PieceBudget* budget) {
  auto& loops = piece.loops;
  std::ranges::sort(loops,
                    [](const Piece::Loop& a, const Piece::Loop& b) { return a.stride > b.stride; });
  int64_t reach = 0;
  for (size_t l = loops.size(); l-- > 0; reach += (loops[l].extent - 1) * loops[l].stride) {
    if (loops[l].stride > reach) continue;
    const Piece::Loop loop = loops[l];
    loops.erase(loops.begin() + static_cast<std::ptrdiff_t>(l));
    for (int64_t i = 0; i<loop.extent&& * budget> 0; ++i) {
      Piece one = piece;
      one.base += i * loop.stride;
      one.from += i * loop.from;
      Nest(std::move(one), out, budget);
    }
    return;
  }
  if ((*budget)-- > 0) out->push_back(std::move(piece));
}

// Adds the pieces of drawn tensors that `stored`, whose index is `source`, holds: the pieces of its
// view with source and target exchanged.
void Invert(const Tensor& stored, int64_t source, std::vector<std::vector<Piece>>* of_drawn,
            PieceBudget* budget) {
  for (const Piece& piece : stored.view()->pieces) {
    if (piece.source == Piece::kPadding) continue;
    Piece inverse = {.source = source, .base = piece.from, .from = piece.base, .loops = {}};
    for (const Piece::Loop& loop : piece.loops) {
      inverse.loops.push_back({loop.extent, loop.from, loop.stride});
    }
    Nest(std::move(inverse), &(*of_drawn)[static_cast<size_t>(piece.source)], budget);
  }
}

// Selects pieces that hold each element once, from pieces that may hold some elements several
// times, by omitting whole stored tensors. Returns nothing if elements would be missing or still
// held twice.
std::optional<std::vector<Piece>> SelectDistinct(const std::vector<Piece>& pieces,
                                                 int64_t elements) {
  std::vector<Piece> chosen;
  int64_t held = 0;
  const auto count = [](const std::vector<Piece>& of) {
    std::vector<Piece> as_held = of;  // CountHeld() counts the elements held of a source
    for (Piece& piece : as_held) {
      std::swap(piece.base, piece.from);
      for (Piece::Loop& loop : piece.loops) std::swap(loop.stride, loop.from);
    }
    std::vector<const Piece*> pointers;
    for (const Piece& piece : as_held) pointers.push_back(&piece);
    return CountHeld(pointers);
  };
  for (size_t begin = 0; begin < pieces.size();) {
    size_t end = begin;
    int64_t added = 0;
    while (end < pieces.size() && pieces[end].source == pieces[begin].source) {
      added += pieces[end++].elements();
    }
    std::vector<Piece> with = chosen;
    with.insert(with.end(), pieces.begin() + static_cast<std::ptrdiff_t>(begin),
                pieces.begin() + static_cast<std::ptrdiff_t>(end));
    begin = end;
    const auto all = count(with);
    if (!all) return std::nullopt;
    if (*all == held) continue;  // nothing new, as in a tied copy
    if (*all != held + added) return std::nullopt;
    chosen = std::move(with);
    held = *all;
    if (held == elements) return chosen;
  }
  return std::nullopt;
}

}  // namespace

bool AreStoredAlike(const Tensor& a, const Tensor& b) {
  if (a.shape() != b.shape() || a.dtype() != b.dtype()) return false;
  const auto plain_a = PlainOf(a), plain_b = PlainOf(b);
  if (plain_a || plain_b) return plain_a == plain_b;
  return AreEqual(*a.view(), *b.view());
}

Rearrangement::Rearrangement(const InitGraph& from, const InitGraph& to)
    : from_(from), to_(to), stored_(std::shared_ptr<void>(), &from.tensors) {
  if (!from.drawn) return;
  pieces_.resize(from.drawn->size());
  for (size_t s = 0; s < from.tensors.size(); ++s) {
    Invert(from.tensors[s], static_cast<int64_t>(s), &pieces_, &budget_);
  }
}

Viewed Rearrangement::ArrangementOf(std::string_view path) {
  const std::vector<Tensor>& logical = from_.logical();
  const auto it =
      std::ranges::find_if(logical, [&](const Tensor& tensor) { return tensor.path() == path; });
  if (it == logical.end()) ThrowCannot(path, "it is not in the checkpoint");
  const auto at = static_cast<size_t>(it - logical.begin());
  Viewed viewed;
  viewed.name = path;
  viewed.partition = PartitionSpec(it->shape().size());
  viewed.in_doubt.resize(it->shape().size());
  viewed.arrangement = WholeTensor(static_cast<int64_t>(at), it->shape());
  if (!from_.drawn) return viewed;
  auto pieces = SelectDistinct(pieces_[at], it->elements());
  if (!pieces) {
    ThrowCannot(
        path,
        fmt::format("layout `{}` of the checkpoint does not hold each of its elements in one place",
                    from_.layout));
  }
  viewed.arrangement.pieces = std::move(*pieces);
  return viewed;
}

Viewed Rearrangement::Arrange(const ViewNode& node) {
  if (node.operation == nullptr) return ArrangementOf((*to_.drawn)[node.tensor].path());
  std::vector<Viewed> of;
  for (const ViewNode& operand : node.of) of.push_back(Arrange(operand));
  std::vector<ViewArgument> arguments = node.arguments;
  ViewProblem problem;
  auto viewed = Apply(*node.operation, std::move(of), arguments, &budget_, &problem);
  if (!viewed) throw Usage(problem.message);
  return std::move(*viewed);
}

Tensor Rearrangement::ViewOf(const Tensor& tensor) {
  Viewed viewed = tensor.view() ? Arrange(tensor.view()->root) : ArrangementOf(tensor.path());
  if (budget_ <= 0) ThrowCannot(tensor.path(), "the layouts fall into too many pieces");
  if (viewed.arrangement.shape != tensor.shape())
    ThrowCannot(tensor.path(), "it has another shape");
  Tensor made = tensor;
  made.set_view(std::make_shared<View>(View{stored_, {}, std::move(viewed.arrangement.pieces)}));
  return made;
}

}  // namespace shardinit
