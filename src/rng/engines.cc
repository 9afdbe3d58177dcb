#include "rng/engines.h"

namespace shardinit {

std::span<const Engine> Engines() {
  static constexpr Engine kEngines[] = {
      {"philox4x32",
       "Salmon et al., Parallel random numbers: as easy as 1, 2, 3 (SC 2011), 10 rounds"},
  };
  return kEngines;
}

const Engine* FindEngine(std::string_view name) {
  for (const Engine& engine : Engines()) {
    if (engine.name == name) return &engine;
  }
  return nullptr;
}

std::vector<std::string> EngineNames() {
  std::vector<std::string> names;
  for (const Engine& engine : Engines()) names.emplace_back(engine.name);
  return names;
}

}  // namespace shardinit
