// The graph: every tensor with its shape, type, distribution and sharding. All names, expressions
// and rules are resolved, and nothing depends on positions in the spec's text.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "graph/tensor.h"
#include "sharding/sharding.h"

namespace shardinit {

inline std::vector<std::string> PathsOf(const std::vector<Tensor>& tensors) {
  std::vector<std::string> paths;
  for (const Tensor& tensor : tensors) paths.emplace_back(tensor.path());
  return paths;
}

// A source whose elements tensors take.
struct SourcePin {
  std::string name;
  std::string digest;  // of all tensors, in hexadecimal; empty: any digest is accepted
};

struct InitGraph {
  std::string name;
  std::string engine;
  uint64_t seed = 0;
  Mesh mesh;
  Replicas replicas = Replicas::kDedupe;
  std::string config = {};              // single-line JSON with sorted keys; empty: none
  std::vector<SourcePin> sources = {};  // in the order of the spec
  std::vector<Tensor> tensors;          // stored tensors, in the order of the spec
  // The name of the layout, if any, and the drawn tensors that its views refer to.
  std::string layout = {};
  std::shared_ptr<const std::vector<Tensor>> drawn = nullptr;

  // Returns the drawn tensors, which are the same under every layout.
  const std::vector<Tensor>& logical() const { return drawn ? *drawn : tensors; }
};

}  // namespace shardinit
