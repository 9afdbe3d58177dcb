// How much a nonlinearity shrinks what passes through it, as a factor to make up
// for it: torch.nn.init.calculate_gain.
#pragma once

#include <array>
#include <cmath>
#include <iterator>
#include <string_view>

#include "base/error.h"
#include "init/initializer.h"

namespace shardinit {

struct Gain {
  std::string_view nonlinearity;
  double (*of)(double slope);  // Of leaky_relu, for negative inputs.
};

inline constexpr double kDefaultSlope = 0.01;

inline constexpr Gain kGains[] = {
    {"linear", [](double) { return 1.0; }},
    {"conv1d", [](double) { return 1.0; }},
    {"conv2d", [](double) { return 1.0; }},
    {"conv3d", [](double) { return 1.0; }},
    {"conv_transpose1d", [](double) { return 1.0; }},
    {"conv_transpose2d", [](double) { return 1.0; }},
    {"conv_transpose3d", [](double) { return 1.0; }},
    {"sigmoid", [](double) { return 1.0; }},
    {"tanh", [](double) { return 5.0 / 3; }},
    {"relu", [](double) { return std::sqrt(2.0); }},
    {"leaky_relu", [](double slope) { return std::sqrt(2 / (1 + slope * slope)); }},
    {"selu", [](double) { return 3.0 / 4; }},
};

inline constexpr auto kNonlinearities = [] {
  std::array<std::string_view, std::size(kGains)> names;
  for (size_t i = 0; i < names.size(); ++i) names[i] = kGains[i].nonlinearity;
  return names;
}();

inline double GainOf(std::string_view nonlinearity, double slope) {
  for (const Gain& gain : kGains) {
    if (gain.nonlinearity == nonlinearity) return gain.of(slope);
  }
  throw Bug("a nonlinearity of the table");
}

// Of an argument that is a number or one of kNonlinearities.
inline double GainOf(const Argument& argument) {
  return argument.word.empty() ? argument.value : GainOf(argument.word, kDefaultSlope);
}

}  // namespace shardinit
