#include "graph/engines/engines.h"

#include <algorithm>

#include "base/error.h"
#include "graph/engines/jax_threefry.h"
#include "graph/engines/torch_cpu.h"
#include "graph/stored/view.h"

namespace shardinit {
namespace {

constexpr const GraphEngine* kRows[] = {&kGraphJaxThreefry, &kGraphTorchCpu};

[[maybe_unused]] const bool kFunctionsEntered = std::ranges::all_of(
    kRows, [](const GraphEngine* row) { return EnterFunctions(row->functions); });

// Returns null for an engine without a row.
const GraphEngine* RowOf(const Engine& engine) {
  const auto* const row = std::ranges::find(kRows, &engine, &GraphEngine::engine);
  return row == std::end(kRows) ? nullptr : *row;
}

}  // namespace

void AssignStreams(const Engine& engine, uint64_t seed, std::vector<Tensor>& tensors,
                   Places places) {
  const GraphEngine* const row = RowOf(engine);
  if (row != nullptr && row->assign != nullptr) return row->assign(seed, tensors, places);
  uint64_t position = 0;
  for (Tensor& tensor : tensors) {
    if (tensor.view() || !IsRandom(tensor.distribution())) continue;
    const auto* const words = std::get_if<KeyWords>(&tensor.key());
    tensor.set_stream({.key = words != nullptr ? words->key : engine.key(seed, DrawPathOf(tensor)),
                       .position = position,
                       .engine = &engine});
    if (engine.sequential) {
      position += static_cast<uint64_t>(tensor.elements() * DrawsOf(tensor.distribution()));
    }
  }
}

std::string_view DrawPathOf(const Tensor& tensor) {
  const auto* const other = std::get_if<DrawPath>(&tensor.key());
  return other == nullptr || other->path.empty() ? tensor.path() : std::string_view(other->path);
}

bool HasPlace(const Tensor& tensor) {
  return tensor.view() == nullptr && IsRandom(tensor.distribution()) &&
         !std::holds_alternative<Expression>(tensor.distribution());
}

std::string RefusalOf(const Engine& engine, const Tensor& tensor) {
  const GraphEngine* const row = RowOf(engine);
  return row == nullptr ? std::string() : row->refusal(tensor);
}

const Engine& EngineOf(const Program::PlacedCall& call) {
  const auto* const row = std::ranges::find_if(kRows, [&](const GraphEngine* each) {
    return std::ranges::any_of(each->functions,
                               [&](const auto& function) { return &function == call.function; });
  });
  Check(row != std::end(kRows), "a function of no engine");
  return *(*row)->engine;
}

const Engine* OtherEngine(const Distribution& distribution, const Engine& engine) {
  const auto* const expression = std::get_if<Expression>(&distribution);
  if (expression == nullptr) return nullptr;
  for (const Program::PlacedCall& call : expression->program->placed) {
    if (const Engine* of = &EngineOf(call); of != &engine) return of;
  }
  return nullptr;
}

bool IsInexact(const Tensor& tensor) {
  if (tensor.view() != nullptr) {
    return std::ranges::any_of(tensor.view()->pieces, [&](const Piece& piece) {
      return piece.source != Piece::kPadding &&
             IsInexact((*tensor.view()->drawn)[static_cast<size_t>(piece.source)]);
    });
  }
  // Only a drawn tensor has a stream.
  const Tensor& drawn = tensor.measured() != nullptr ? *tensor.measured() : tensor;
  const GraphEngine* const row = RowOf(*drawn.stream().engine);
  return row != nullptr && row->inexact != nullptr && row->inexact(tensor);
}

}  // namespace shardinit
