#include "rng/engines.h"

namespace shardinit {

std::span<const Engine* const> Engines() {
  static const Engine* const kEngines[] = {&kPhilox4x32, &kJaxThreefry, &kTorchCpu};
  return kEngines;
}

const Engine* FindEngine(std::string_view name) {
  for (const Engine* engine : Engines()) {
    if (engine->name == name || (!name.empty() && engine->short_name == name)) return engine;
  }
  return nullptr;
}

std::vector<std::string> EngineNames() {
  std::vector<std::string> names;
  for (const Engine* engine : Engines()) {
    names.emplace_back(engine->name);
    if (!engine->short_name.empty()) names.emplace_back(engine->short_name);
  }
  return names;
}

}  // namespace shardinit
