#include "kernels/backend.h"

#include <hwy/targets.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "kernels/kernels.h"

namespace shardinit::kernels {
namespace {

struct Entry {
  void (*run)(const Job&) = nullptr;
  void (*make_panel)(const PanelJob&) = nullptr;
  int (*run_torch)(const TorchJob&) = nullptr;
};

// The key is Highway's number of the target: smaller is better.
std::map<int64_t, Entry>& Entries() {
  static std::map<int64_t, Entry> entries;
  return entries;
}

std::atomic<const Backend*> forced = nullptr;

const Backend& Best() {
  static const Backend& best = *std::find_if(Backends().begin(), Backends().end(),
                                             [](const Backend& b) { return b.supported; });
  return best;
}

}  // namespace

bool EnterRun(int64_t target, void (*run)(const Job&)) {
  Entries()[target].run = run;
  return true;
}

bool EnterPanel(int64_t target, void (*make_panel)(const PanelJob&)) {
  Entries()[target].make_panel = make_panel;
  return true;
}

bool EnterTorch(int64_t target, int (*run_torch)(const TorchJob&)) {
  Entries()[target].run_torch = run_torch;
  return true;
}

std::span<const Backend> Backends() {
  static const std::vector<Backend> backends = [] {
    std::vector<Backend> rows;
    for (const auto& [target, entry] : Entries()) {
      Check(entry.run != nullptr && entry.make_panel != nullptr && entry.run_torch != nullptr,
            "half a backend");
      // Scalar code is not among the targets that Highway asks the processor for.
      const bool supported = target == HWY_SCALAR || (hwy::SupportedTargets() & target) != 0;
      rows.push_back(
          {hwy::TargetName(target), supported, entry.run, entry.make_panel, entry.run_torch});
    }
    return rows;
  }();
  return backends;
}

const Backend& ActiveBackend() {
  const Backend* chosen = forced;
  return chosen != nullptr ? *chosen : Best();
}

std::vector<std::string> Targets() {
  std::vector<std::string> names;
  for (const Backend& backend : Backends()) {
    if (backend.supported) names.push_back(backend.name);
  }
  return names;
}

std::string ActiveTarget() { return ActiveBackend().name; }

bool ForceTarget(std::string_view name) {
  if (name.empty()) {
    forced = nullptr;
    return true;
  }
  for (const Backend& backend : Backends()) {
    if (!backend.supported || backend.name != name) continue;
    forced = &backend;
    return true;
  }
  return false;
}

}  // namespace shardinit::kernels
