// Computes the gain of a nonlinearity: the factor that compensates for how much the nonlinearity
// shrinks its inputs (torch.nn.init.calculate_gain).
#pragma once

#include <array>
#include <iterator>
#include <string_view>

#include "init/initializer.h"

namespace shardinit {

struct Gain {
  std::string_view nonlinearity;
  std::string_view formula;  // `slope` is leaky_relu's slope for negative inputs.
};

inline constexpr Gain kGains[] = {
    {"linear", "1"},
    {"conv1d", "1"},
    {"conv2d", "1"},
    {"conv3d", "1"},
    {"conv_transpose1d", "1"},
    {"conv_transpose2d", "1"},
    {"conv_transpose3d", "1"},
    {"sigmoid", "1"},
    {"tanh", "5 / 3"},
    {"relu", "sqrt(2)"},
    {"leaky_relu", "sqrt(2 / (1 + slope * slope))"},
    {"selu", "3 / 4"},
};

inline constexpr auto kNonlinearities = [] {
  std::array<std::string_view, std::size(kGains)> names;
  for (size_t i = 0; i < names.size(); ++i) names[i] = kGains[i].nonlinearity;
  return names;
}();

double GainOf(std::string_view nonlinearity, double slope, const Fans& fans);

// Returns the gain for a number or one of kNonlinearities.
double GainOf(const Argument& argument, const Fans& fans);

}  // namespace shardinit
