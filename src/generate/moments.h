// Means and standard deviations of a source's tensor, each computed once, in f64. Sums go row by
// row, in one thread, so that they are the same wherever they are made.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "tensor/source.h"

namespace shardinit {

// These are means, and then as many standard deviations: roots of the mean squares of what is apart
// from the mean.
using Moments = std::shared_ptr<const std::vector<double>>;

// Returns those of each column of the first `rows` indices along `axis`: a column is what a row has
// at one place. Throws Error as sources do.
Moments MomentsOfColumns(const SourceTensor& source, int64_t axis, int64_t rows);

// Returns those of all elements, of which there is at least one. Throws Error as sources do.
Moments MomentsOfAll(const SourceTensor& source);

}  // namespace shardinit
