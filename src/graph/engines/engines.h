// The graph's view of each random engine: where tensors' numbers begin, and which tensors the
// engine cannot draw.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "graph/graph.h"
#include "rng/engines.h"

namespace shardinit {

// Why only the default engine draws the tool's own distributions.
inline constexpr std::string_view kRandomRows =
    "no framework draws rows of a source, or parts of a tensor";

// How to find where tensors of a sequential stream begin. A truncated normal tensor of torch_cpu
// takes a count of numbers that depends on the numbers themselves: kFound generates and counts
// them, kLeast assumes the smallest count.
enum class Places { kFound, kLeast };

// An engine without a row draws everything and gives each key its own stream.
struct GraphEngine {
  const Engine* engine;
  // The functions with which expressions take the engine's numbers by key or by place.
  std::span<const PlacedFunction> functions;
  // Returns why the engine cannot draw a tensor that takes no other engine's numbers. Empty if it
  // can, or if nothing is drawn.
  std::string (*refusal)(const Tensor& tensor);
  // Implements AssignStreams(). Null: each key has its own stream.
  void (*assign)(uint64_t seed, std::vector<Tensor>& tensors, Places places) = nullptr;
  // Returns whether the engine's framework may round some numbers differently, for a drawn tensor
  // or for norms of a drawn tensor. Null: it never does.
  bool (*inexact)(const Tensor& tensor) = nullptr;
};

// Assigns streams to all drawn tensors in the order of the spec. Under an engine of places,
// replaces each tensor's key by its place.
void AssignStreams(const Engine& engine, uint64_t seed, std::vector<Tensor>& tensors,
                   Places places = Places::kFound);

// Returns the path that the tensor's key is derived from, if it is derived from a path.
std::string_view DrawPathOf(const Tensor& tensor);

// Returns whether the tensor's numbers need only one place in a stream. Expressions have a place
// for each call.
bool HasPlace(const Tensor& tensor);

// Returns why the engine cannot draw the tensor; empty if it can.
std::string RefusalOf(const Engine& engine, const Tensor& tensor);

// Returns the engine whose numbers the call takes.
const Engine& EngineOf(const Program::PlacedCall& call);

// Returns an engine other than `engine` whose numbers an expression takes, or null.
const Engine* OtherEngine(const Distribution& distribution, const Engine& engine);

// Returns whether the framework of the tensor's engine rounds these numbers its own way, so that
// some bits may differ.
bool IsInexact(const Tensor& tensor);

}  // namespace shardinit
