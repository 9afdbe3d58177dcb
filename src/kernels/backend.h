// Backends run jobs, all with the same bits. Today the backends are the instruction sets of
// Highway: each compiles the -inl.h files, which register themselves here.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "kernels/job.h"
#include "kernels/orthogonal.h"
#include "kernels/torch_cpu.h"

namespace shardinit::kernels {

struct Backend {
  std::string name;
  bool supported;  // whether this machine has it
  void (*run)(const Job&);
  void (*make_panel)(const PanelJob&);
  int (*run_torch)(const TorchJob&);
};

std::span<const Backend> Backends();  // all in this build, the best first
// Returns the backend that ForceTarget chose, else the best that is supported.
const Backend& ActiveBackend();

// These register this build's code for one of Highway's targets, before main().
bool EnterRun(int64_t target, void (*run)(const Job&));
bool EnterPanel(int64_t target, void (*make_panel)(const PanelJob&));
bool EnterTorch(int64_t target, int (*run_torch)(const TorchJob&));

}  // namespace shardinit::kernels
