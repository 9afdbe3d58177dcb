#include "graph/streams.h"

namespace shardinit {

const std::string& DrawPathOf(const Tensor& tensor) {
  return tensor.draw_path.empty() ? tensor.path : tensor.draw_path;
}

void AssignStreams(const Engine& engine, uint64_t seed, std::vector<Tensor>& tensors) {
  uint64_t position = 0;
  for (Tensor& tensor : tensors) {
    if (tensor.view || !IsRandom(tensor.distribution)) continue;
    tensor.stream = {
        .key = tensor.given_key ? *tensor.given_key : engine.key(seed, DrawPathOf(tensor)),
        .position = position,
        .engine = &engine};
    if (engine.sequential) {
      position += static_cast<uint64_t>(tensor.elements() * DrawsOf(tensor.distribution));
    }
  }
}

}  // namespace shardinit
