// What an initializer lowers to. This set is closed: each alternative has its
// operations in shardinit-values(7).
#pragma once

#include <variant>

namespace shardinit {

struct Constant {
  double value;
  bool operator==(const Constant&) const = default;
};

struct Uniform {  // On [low, high).
  double low, high;
  bool operator==(const Uniform&) const = default;
};

struct Normal {
  double mean, std;
  bool operator==(const Normal&) const = default;
};

struct TruncatedNormal {  // low and high in standard deviations from the mean.
  double mean, std, low, high;
  bool operator==(const TruncatedNormal&) const = default;
};

using Distribution = std::variant<Constant, Uniform, Normal, TruncatedNormal>;

// No element is farther from 0: a normal sample is never 7 standard deviations
// from its mean (shardinit-values(7)).
double LargestMagnitude(const Distribution& distribution);

// Whether elements differ, and so need a stream of random words of their own.
inline bool IsRandom(const Distribution& d) {
  return !std::holds_alternative<Constant>(d);
}

}  // namespace shardinit
