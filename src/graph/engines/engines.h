// The table of what the graph asks of each random engine: where the numbers of tensors begin, and
// what the engine cannot draw.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "graph/graph.h"
#include "rng/engines.h"

namespace shardinit {

// Why other engines than the default one do not draw what the tool alone has.
inline constexpr std::string_view kRandomRows =
    "no framework draws rows of a source, or parts of a tensor";

// How to find where tensors of a sequential stream begin. The count of numbers that a truncated
// normal tensor of torch_cpu takes depends on the numbers: kFound makes them all to count them,
// kLeast assumes the smallest count.
enum class Places { kFound, kLeast };

// An engine without a row draws everything, and gives each tensor the stream of its key.
struct GraphEngine {
  const Engine* engine;
  // The functions by which expressions take the engine's numbers by key or by place.
  std::span<const PlacedFunction> functions;
  // Returns why the engine cannot draw a tensor that takes no other engine's numbers; empty if it
  // can, or if nothing is drawn.
  std::string (*refusal)(const Tensor& tensor);
  // Does what AssignStreams does. Null: each key has a stream of its own.
  void (*assign)(uint64_t seed, std::vector<Tensor>& tensors, Places places) = nullptr;
  // Returns whether the engine's framework may round some of the numbers otherwise, for a tensor
  // that is drawn, or that holds norms of a drawn one. Null: it never does.
  bool (*inexact)(const Tensor& tensor) = nullptr;
};

// Assigns streams to all drawn tensors, in the order of the spec. Under an engine of places, the
// key of each tensor becomes its place.
void AssignStreams(const Engine& engine, uint64_t seed, std::vector<Tensor>& tensors,
                   Places places = Places::kFound);

// Returns the path that gives a tensor's key, if its key is that of a path.
std::string_view DrawPathOf(const Tensor& tensor);

// Returns whether one place in a stream would do for the tensor's numbers; expressions have a place
// for each call.
bool HasPlace(const Tensor& tensor);

// Returns why the engine cannot draw the tensor; empty if it can.
std::string RefusalOf(const Engine& engine, const Tensor& tensor);

// Returns the engine whose numbers the call takes.
const Engine& EngineOf(const Program::PlacedCall& call);

// Returns an engine other than `engine` whose numbers an expression takes; null if there is none.
const Engine* OtherEngine(const Distribution& distribution, const Engine& engine);

// Returns whether the framework of the tensor's engine rounds these numbers in its own way, so that
// some bits may differ.
bool IsInexact(const Tensor& tensor);

}  // namespace shardinit
