// What there is: every tensor with its shape, type, distribution and sharding.
// All names, expressions and rules of the spec are resolved; nothing here
// depends on where it was written.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "init/distribution.h"
#include "rng/stream.h"
#include "sharding/sharding.h"
#include "tensor/dtype.h"

namespace shardinit {

struct View;

// What is drawn has a distribution; what is put together from drawn tensors
// has a view of them.
struct Tensor {
  std::string path;
  std::string draw_path;                   // The explicit `key:`; empty: drawn under its own path.
  std::optional<uint64_t> given_key = {};  // A key that is none of a path.
  std::optional<StreamPlace> place = {};   // In a sequential stream, if it is given.
  DType dtype = DType::f32;
  bool is_buffer = false;  // It is drawn and not trained. A view is asked by IsBuffer().
  Shape shape;
  Distribution distribution;
  PartitionSpec partition;  // One entry per dimension.
  Stream stream = {};       // Of what is drawn: its first draw. Its key is 0 if nothing is.
  std::shared_ptr<const View> view = nullptr;  // Null: drawn.

  int64_t elements() const { return ElementCount(shape); }
  int64_t bytes() const { return elements() * InfoOf(dtype).bytes; }
};

struct InitGraph {
  std::string name;
  std::string engine;
  uint64_t seed = 0;
  Mesh mesh;
  Replicas replicas = Replicas::kDedupe;
  std::string config = {};      // JSON in one line, keys sorted; empty: none.
  std::vector<Tensor> tensors;  // What is stored, in the order of the spec.
  // With a layout: its name, and what its views are of.
  std::string layout = {};
  std::shared_ptr<const std::vector<Tensor>> drawn = nullptr;

  // The model, whatever its layout.
  const std::vector<Tensor>& logical() const { return drawn ? *drawn : tensors; }
};

}  // namespace shardinit
