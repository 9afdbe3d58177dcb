// Computes digests of whole tensors, whatever the mesh and the layout, and reads files of digests.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/sha256.h"
#include "generate/workers.h"

namespace shardinit {

struct TensorDigest {
  const Tensor* tensor;
  Digest sha256;  // hash of the whole tensor, row-major and little-endian
};

// Returns the source of a tensor's elements.
using SourceOf = std::function<BoxElements(const Tensor& tensor)>;

// Returns the digests of these whole tensors, without writing anything. Calls `progress` about ten
// times a second. Without a source, elements are generated.
std::vector<TensorDigest> DigestTensors(
    const std::vector<const Tensor*>& tensors, const WorkerOptions& options,
    const std::function<void(const WorkCounters& counters)>& progress, WorkCounters* counters,
    const SourceOf& source = nullptr);

// A tensor's entry in a file of digests.
struct RecordedDigest {
  std::string dtype, sha256;
  Shape shape;
};
using RecordedDigests = std::map<std::string, RecordedDigest>;

struct DigestList {
  // The engine and seed of the tensors. No value: the list's folder does not record them.
  std::optional<std::string> engine;
  std::optional<uint64_t> seed;
  RecordedDigests tensors;
};

// Reads a file that `digest --write` or `digest --json` wrote. Throws Error (kRefused), also if its
// `model_digest` does not match the digest of its tensors.
DigestList ReadDigests(const std::string& path);

// Returns the SHA-256 of the sorted lines `path dtype [shape] sha256`. It is the same on every mesh
// and in every layout.
Digest ModelDigest(const std::vector<TensorDigest>& tensors);
Digest ModelDigest(const RecordedDigests& tensors);

}  // namespace shardinit
