// Selects the backend that runs jobs. All backends produce the same bits. Today they are Highway's
// instruction sets: each compiles the -inl.h files, which register themselves here.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "kernels/kernels.h"
#include "kernels/torch_cpu.h"
#include "rng/sampler.h"
#include "rng/stream.h"
#include "tensor/dtype.h"

namespace shardinit::kernels {

// The job that one call of Fill or FillRows passes to a backend.
struct Job {
  const Sampler& sampler;
  Stream stream;
  uint64_t first, stride;
  size_t rows, count;
  DType dtype;
  uint8_t* out;
};

// Runs a job with the engine's readable reference, one element at a time.
void RunReference(const Job& job);

struct Backend {
  std::string name;
  bool supported = false;  // whether this machine supports it
  void (*run)(const Job&) = nullptr;
  void (*make_panel)(const PanelJob&) = nullptr;
  int (*run_torch)(const TorchJob&) = nullptr;
};

std::span<const Backend> Backends();  // all in this build, the best first
// Returns the backend that ForceTarget chose, or the best supported one.
const Backend& ActiveBackend();

// Returns the entry where code for one of Highway's targets registers itself, before main().
Backend& BackendOf(int64_t target);

}  // namespace shardinit::kernels
