#include "base/inputs.h"

#include <atomic>
#include <mutex>
#include <set>
#include <utility>

namespace shardinit {
namespace {

std::atomic<bool> remembers{false};
std::mutex inputs_mutex;
std::set<std::pair<dev_t, ino_t>> inputs;

}  // namespace

void RememberInputs() { remembers = true; }

void AddInput(const struct stat& file) {
  if (!remembers || !S_ISREG(file.st_mode)) return;
  const std::lock_guard lock(inputs_mutex);
  inputs.emplace(file.st_dev, file.st_ino);
}

bool IsInput(const struct stat& file) {
  const std::lock_guard lock(inputs_mutex);
  return inputs.contains({file.st_dev, file.st_ino});
}

}  // namespace shardinit
