// The counter-based generators that a spec may name.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace shardinit {

struct Engine {
  std::string_view name;
  std::string_view source;  // Where it is defined.
};

std::span<const Engine> Engines();  // The default first.
const Engine* FindEngine(std::string_view name);
std::vector<std::string> EngineNames();

}  // namespace shardinit
