// Compares measured values with the declared distribution. Only reports use the
// result; it does not affect generated values.
#pragma once

#include <optional>
#include <span>

#include "init/distribution.h"
#include "stats/tally.h"

namespace shardinit {

struct DeclaredMoments {
  double mean, std;
};

// Returns nothing for distributions without a closed form.
std::optional<DeclaredMoments> DeclaredMomentsOf(const Distribution& distribution);

// The Kolmogorov–Smirnov test: the largest distance between the elements' cumulative distribution
// and the declared one, and the probability of a distance at least as large.
//
// Distances are measured at the ends of bins, with the declared distribution rounded as the
// elements are. Between two ends the true distance can be larger, by at most the part of the
// elements in a bin: nothing for types of 8 and 16 bits, at most 0.001 for others. So the distance
// is never too large, and the probability never too small.
struct Fit {
  double distance, probability;
};
// Returns nothing for constants and for distributions without a closed form.
std::optional<Fit> FitOf(std::span<const Bin> bins, const Distribution& distribution);

}  // namespace shardinit
