// What a declared distribution promises of its values, and whether measured
// ones keep it. For people and reports: nothing here decides a value.
#pragma once

#include <optional>
#include <span>

#include "init/distribution.h"
#include "tensor/tally.h"

namespace shardinit {

struct DeclaredMoments {
  double mean, std;
};

// None for what has no closed form.
std::optional<DeclaredMoments> DeclaredMomentsOf(const Distribution& distribution);

// The Kolmogorov–Smirnov test: the largest distance of the elements' cumulative
// distribution from the declared one, and how probable one so large is.
//
// Distances are taken where bins end, with the declared distribution rounded as
// the elements are. Between ends the true distance can be larger by what a bin
// holds: nothing for types of 8 and 16 bits, at most 0.001 for others. So the
// distance is never too large, and the probability never too small.
struct Fit {
  double distance, probability;
};
// None for constants and for what has no closed form.
std::optional<Fit> FitOf(std::span<const Bin> bins, const Distribution& distribution);

}  // namespace shardinit
