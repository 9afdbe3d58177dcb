// What runs jobs, all with the same bits: today the instruction sets of Highway. Each compiles the
// -inl.h files, which enter themselves here.
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
  bool supported;  // By this machine.
  void (*run)(const Job&);
  void (*make_panel)(const PanelJob&);
  int (*run_torch)(const TorchJob&);
};

std::span<const Backend> Backends();  // Of this build, the best first.
// The one that ForceTarget chose, else the best that is supported.
const Backend& ActiveBackend();

// Enter what this build has for one of Highway's targets; before main().
bool EnterRun(int64_t target, void (*run)(const Job&));
bool EnterPanel(int64_t target, void (*make_panel)(const PanelJob&));
bool EnterTorch(int64_t target, int (*run_torch)(const TorchJob&));

}  // namespace shardinit::kernels
