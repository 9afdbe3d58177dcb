// The graph: every tensor with its shape, type, distribution and sharding. All names, expressions
// and rules of the spec are resolved, and nothing here depends on where it was written.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "init/distribution.h"
#include "rng/stream.h"
#include "sharding/sharding.h"
#include "tensor/dtype.h"

namespace shardinit {

struct View;

// A drawn tensor has a distribution; a tensor that is put together from drawn ones has a view.
// A trainer may store values in a convention of its own, and conversions follow it: values are
// multiplied by `times`, and `plus` is added. On the way back that is subtracted, and they
// are multiplied by `back` or, where that is 0, divided by `times`.
struct Convention {
  float times = 1, back = 0, plus = 0;
  bool changes() const { return times != 1 || plus != 0; }
  bool operator==(const Convention& other) const = default;
};

struct Tensor {
  std::string path;
  DrawKey key = {};  // from `key:` or `tie:`; under an engine of places, where the tensor begins
  Convention convention = {};  // of a stored tensor; only conversions regard it
  DType dtype = DType::f32;
  bool is_buffer = false;  // drawn, but not trained; for views ask IsBuffer()
  Shape shape;
  Distribution distribution;
  PartitionSpec partition;  // one entry per dimension
  Stream stream = {};       // the first draw of a drawn tensor; its key is 0 if nothing is random
  std::shared_ptr<const View> view = nullptr;  // null: the tensor is drawn
  // The tensor whose norms this one holds, which is set once all tensors are known; else null.
  std::shared_ptr<const Tensor> measured = nullptr;

  int64_t elements() const { return ElementCount(shape); }
  int64_t bytes() const { return elements() * InfoOf(dtype).bytes; }
};

inline std::vector<std::string> PathsOf(const std::vector<Tensor>& tensors) {
  std::vector<std::string> paths;
  for (const Tensor& tensor : tensors) paths.push_back(tensor.path);
  return paths;
}

// A source that tensors take elements of.
struct SourcePin {
  std::string name;
  std::string digest;  // of all its tensors, in hexadecimal digits; empty: it may be any
};

struct InitGraph {
  std::string name;
  std::string engine;
  uint64_t seed = 0;
  Mesh mesh;
  Replicas replicas = Replicas::kDedupe;
  std::string config = {};              // JSON in one line with sorted keys; empty: none
  std::vector<SourcePin> sources = {};  // in the order of the spec
  std::vector<Tensor> tensors;          // stored tensors, in the order of the spec
  // The name of the layout, if there is one, and the drawn tensors that its views refer to.
  std::string layout = {};
  std::shared_ptr<const std::vector<Tensor>> drawn = nullptr;

  // Returns the drawn tensors, which are the same under every layout.
  const std::vector<Tensor>& logical() const { return drawn ? *drawn : tensors; }
};

}  // namespace shardinit
