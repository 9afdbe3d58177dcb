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

// The key is Highway's number of the target; smaller is better.
std::map<int64_t, Backend>& Entries() {
  static std::map<int64_t, Backend> entries;
  return entries;
}

std::atomic<const Backend*> forced = nullptr;

const Backend& Best() {
  static const Backend& best = *std::find_if(Backends().begin(), Backends().end(),
                                             [](const Backend& b) { return b.supported; });
  return best;
}

}  // namespace

Backend& BackendOf(int64_t target) { return Entries()[target]; }

std::span<const Backend> Backends() {
  static const std::vector<Backend> backends = [] {
    std::vector<Backend> rows;
    for (auto& [target, entry] : Entries()) {
      Check(entry.run != nullptr && entry.make_panel != nullptr && entry.run_torch != nullptr,
            "half a backend");
      // Scalar code is not among the targets that Highway detects.
      entry.supported = target == HWY_SCALAR || (hwy::SupportedTargets() & target) != 0;
      entry.name = hwy::TargetName(target);
      rows.push_back(entry);
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
