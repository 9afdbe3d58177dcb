#include "graph/engines/streams.h"

#include <algorithm>
#include <string_view>
#include <unordered_map>

#include "base/parallel.h"
#include "graph/engines/torch_draws.h"
#include "kernels/torch_cpu.h"

namespace shardinit {
namespace {

Stream AfterTensor(const Tensor& tensor, Places places) {
  if (TorchRefusal(tensor).empty()) {
    const torch_cpu::Drawn drawn = TorchDrawsOf(tensor);
    const bool is_known = torch_cpu::IsOneRound(drawn) || places == Places::kFound;
    Stream stream = is_known ? kernels::AfterTorch(drawn, std::max(1, AvailableCores()))
                             : torch_cpu::After(drawn);
    stream.is_least = stream.is_least || !is_known;
    if (std::holds_alternative<Sparse>(tensor.distribution)) {  // a permutation for each column
      stream.position += static_cast<uint64_t>((tensor.shape[0] - 1) * tensor.shape[1]);
    }
    return stream;
  }
  Stream stream = tensor.stream;  // any place where no other tensor begins
  stream.position += static_cast<uint64_t>(tensor.elements());
  return stream;
}

void AssignTorch(uint64_t seed, std::vector<Tensor>& tensors, Places places) {
  const Tensor* before = nullptr;  // the last one that was drawn
  std::vector<Tensor*> tied;
  std::unordered_map<std::string_view, const Tensor*> drawn;
  for (Tensor& tensor : tensors) {
    if (tensor.view || !IsRandom(tensor.distribution)) continue;
    tensor.stream = {.key = kTorchCpu.key(seed, tensor.path), .engine = &kTorchCpu};
    if (!HasPlace(tensor)) continue;
    if (tensor.draw_path == tensor.path) tensor.draw_path.clear();  // it is tied to itself
    if (!tensor.draw_path.empty()) {  // takes another's numbers, and none of its own
      tied.push_back(&tensor);
      continue;
    }
    if (tensor.place && !tensor.place->is_relative) {
      tensor.stream.position = tensor.place->position;
      tensor.stream.spare = tensor.place->spare;
    } else {
      if (before != nullptr) tensor.stream = AfterTensor(*before, places);
      if (tensor.place) tensor.stream.position += tensor.place->position;
    }
    before = &tensor;
    drawn.emplace(tensor.path, &tensor);
  }
  for (Tensor* tensor : tied) {
    const auto other = drawn.find(tensor->draw_path);
    if (other == drawn.end()) continue;  // a wrong `tie`, which was reported
    tensor->stream = other->second->stream;
    tensor->draw_path.clear();
  }
}

}  // namespace

const std::string& DrawPathOf(const Tensor& tensor) {
  return tensor.draw_path.empty() ? tensor.path : tensor.draw_path;
}

void AssignStreams(const Engine& engine, uint64_t seed, std::vector<Tensor>& tensors,
                   Places places) {
  if (&engine == &kTorchCpu) return AssignTorch(seed, tensors, places);
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
