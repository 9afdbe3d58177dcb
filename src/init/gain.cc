#include "init/gain.h"

#include <vector>

#include "base/error.h"
#include "init/formula.h"

namespace shardinit {

double GainOf(std::string_view nonlinearity, double slope, const Fans& fans) {
  static const std::vector<Formula> kFormulas = [] {
    std::vector<Formula> formulas;
    for (const Gain& gain : kGains) formulas.emplace_back("gain", gain.formula);
    return formulas;
  }();
  for (size_t i = 0; i < kFormulas.size(); ++i) {
    if (kGains[i].nonlinearity == nonlinearity) return kFormulas[i]({{"slope", slope}}, fans);
  }
  throw Bug("a nonlinearity of the table");
}

double GainOf(const Argument& argument, const Fans& fans) {
  constexpr double kDefaultSlope = 0.01;
  return argument.word.empty() ? argument.value : GainOf(argument.word, kDefaultSlope, fans);
}

}  // namespace shardinit
