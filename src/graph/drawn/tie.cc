#include "graph/drawn/tie.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/suggest.h"
#include "base/text.h"
#include "graph/engines/engines.h"
#include "graph/stored/view.h"

namespace shardinit {
namespace {

// Describes how two tensors differ; empty if they match.
std::string DifferenceOf(const Tensor& tied, const Tensor& other) {
  if (tied.shape() != other.shape()) {
    return fmt::format("has the shape [{}] and not [{}]", fmt::join(tied.shape(), ", "),
                       fmt::join(other.shape(), ", "));
  }
  if (tied.dtype() != other.dtype()) {
    return fmt::format("is {} and not {}", InfoOf(tied.dtype()).name, InfoOf(other.dtype()).name);
  }
  if (tied.distribution() != other.distribution()) {
    return fmt::format("its values are {}, and not {}", InText(tied), InText(other));
  }
  return {};
}

// Collects errors in ties. Each is reported once for all tensors of a repeat.
class TieMistakes {
 public:
  // Adds a tensor's error. Calls `describe` for the message and the hint, only once for a place
  // because it may search all tensors.
  template <typename F>
  void Add(const Span& place, F describe) {
    const auto [known, is_new] =
        places_.try_emplace({place.source, place.line, place.column}, mistakes_.size());
    if (!is_new) {
      ++mistakes_[known->second].tensors;
    } else if (mistakes_.size() == Diagnostics::kMostErrors) {
      places_.erase(known);  // The run ends before it would be reported.
    } else {
      const auto [message, hint] = describe();
      mistakes_.push_back({place, message, hint, 1});
    }
  }

  void Report(Diagnostics& diagnostics) const {
    for (const Mistake& each : mistakes_) {
      const std::string more =
          each.tensors == 1
              ? std::string()
              : fmt::format("; {} tensors of the repeat have this mistake", each.tensors);
      diagnostics.Error(each.place, each.message + more, each.hint);
    }
  }

 private:
  struct Mistake {
    Span place;
    std::string message, hint;
    int64_t tensors;
  };

  std::vector<Mistake> mistakes_;
  std::map<std::tuple<const Source*, uint32_t, uint32_t>, size_t> places_;
};

// Reports why a tensor cannot have the values of `other`, which may be tied to a `third` one.
bool MayTie(const Tensor& tensor, const Tensor& other, std::optional<std::string_view> third,
            const Span& place, TieMistakes& mistakes) {
  if (third) {
    mistakes.Add(place, [&] {
      return std::pair{fmt::format("`{}` is tied to another tensor itself", other.path()),
                       fmt::format("tie this one to `{}`, too", *third)};
    });
    return false;
  }
  const std::string difference = DifferenceOf(tensor, other);
  if (difference.empty()) return true;
  mistakes.Add(place, [&] {
    return std::pair{
        fmt::format("`{}` is tied to `{}`, but {}", tensor.path(), other.path(), difference),
        std::string("give both the same `shape`, `dtype` and `init`")};
  });
  return false;
}

bool HasPathKey(const TensorSpec& spec) {
  return std::holds_alternative<Located<std::string>>(*spec.key);
}

}  // namespace

void ReportKeyOfTie(const TensorSpec& spec, Diagnostics& diagnostics) {
  diagnostics.Error(SpanOf(*spec.key), "a tensor with `tie` uses the other tensor's `key`",
                    "remove one of the two");
}

bool MadeAlike(const Tensor& a, const Tensor& b) { return DifferenceOf(a, b).empty(); }

void BindTies(WrittenTensors& drawn, Diagnostics& diagnostics) {
  std::vector<size_t> tied;
  for (size_t i = 0; i < drawn.tensors.size(); ++i) {
    if (drawn.specs[i] != nullptr && drawn.specs[i]->tie) tied.push_back(i);
  }
  // If errors hide tensors, the named tensor may be among them.
  if (tied.empty() || !drawn.IsComplete()) return;
  std::unordered_map<std::string_view, size_t> numbers;
  for (size_t i = 0; i < drawn.tensors.size(); ++i) numbers.emplace(drawn.tensors[i].path(), i);
  std::unordered_map<const Tensor*, std::string_view> tied_to;  // tied tensor → path
  const TensorSpec* reported = nullptr;
  TieMistakes mistakes;
  for (const size_t i : tied) {
    Tensor& tensor = drawn.tensors[i];
    const Located<std::string>& name = *drawn.specs[i]->tie;
    const auto* const tie = std::get_if<DrawPath>(&tensor.key());
    if (tie == nullptr) continue;  // It is tied to itself and has its own key.
    const auto found = numbers.find(tie->path);
    if (found == numbers.end()) {
      mistakes.Add(name.span, [&] {
        return std::pair{fmt::format("no tensor is {}", Quote(tie->path)),
                         DidYouMean(tie->path, PathsOf(drawn.tensors))};
      });
      continue;
    }
    const Tensor& other = drawn.tensors[found->second];
    if (&other == &tensor) continue;
    const TensorSpec* const spec = drawn.specs[found->second];
    const TensorSpec* const own = drawn.specs[i];
    if (own != spec && own != reported && own->key && !HasPathKey(*own)) {
      ReportKeyOfTie(*own, diagnostics);
      reported = own;  // report once for a repeat
      continue;
    }
    std::optional<std::string_view> third;
    if (spec != nullptr && spec->tie && DrawPathOf(other) != other.path()) {
      // The key of a tensor that is not tied yet is the path that it will be tied to.
      const auto known = tied_to.find(&other);
      third = known == tied_to.end() ? DrawPathOf(other) : known->second;
    }
    if (!MayTie(tensor, other, third, name.span, mistakes)) continue;
    tied_to.emplace(&tensor, other.path());
    if (std::holds_alternative<KeyWords>(other.key())) {
      tensor.set_key(other.key());
    } else {
      tensor.set_key(DrawPath{std::string(DrawPathOf(other))});
    }
  }
  mistakes.Report(diagnostics);
}

std::unordered_set<const Tensor*> FindCopies(const InitGraph& graph) {
  const std::vector<Tensor>& drawn = graph.logical();
  // Maps a key or path to the first tensor drawn by it.
  std::map<std::tuple<std::string_view, uint64_t, uint64_t, bool>, size_t> firsts;
  std::vector<int64_t> origins;
  for (size_t i = 0; i < drawn.size(); ++i) {
    const Tensor& tensor = drawn[i];
    const bool has_path = std::holds_alternative<DrawPath>(tensor.key());
    const auto* const words = std::get_if<KeyWords>(&tensor.key());
    const uint64_t key = words != nullptr ? words->key : tensor.stream().position;
    const auto first =
        firsts
            .try_emplace({has_path ? std::string_view(DrawPathOf(tensor)) : "", has_path ? 0 : key,
                          has_path ? kNoSpare : tensor.stream().spare, tensor.stream().is_least},
                         i)
            .first->second;
    origins.push_back(static_cast<int64_t>(MadeAlike(tensor, drawn[first]) ? first : i));
  }
  std::unordered_set<const Tensor*> copies;
  std::map<std::pair<int64_t, Shape>, std::vector<std::pair<const Tensor*, std::vector<Piece>>>>
      seen;  // by first source and shape
  for (size_t i = 0; i < graph.tensors.size(); ++i) {
    const Tensor& tensor = graph.tensors[i];
    std::vector<Piece> pieces = tensor.view() != nullptr
                                    ? tensor.view()->pieces
                                    : WholeTensor(static_cast<int64_t>(i), tensor.shape()).pieces;
    for (Piece& piece : pieces) {
      if (piece.source == Piece::kPadding) continue;
      piece.source = origins[static_cast<size_t>(piece.source)];
    }
    const int64_t first = pieces.empty() ? Piece::kPadding : pieces[0].source;
    auto& others = seen[{first, tensor.shape()}];
    const bool is_copy = std::ranges::any_of(others, [&](const auto& other) {
      return other.first->dtype() == tensor.dtype() && other.second == pieces;
    });
    if (is_copy) {
      copies.insert(&tensor);
    } else {
      others.emplace_back(&tensor, std::move(pieces));
    }
  }
  return copies;
}

}  // namespace shardinit
