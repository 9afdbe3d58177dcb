// Computes means and standard deviations of a source's tensor, each once, in f64. One thread sums
// row by row, so the results are the same on every machine.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "tensor/source.h"

namespace shardinit {

// Means, followed by as many standard deviations: roots of the mean squared distances from the
// mean.
using Moments = std::shared_ptr<const std::vector<double>>;

// Returns the moments of each column of the first `rows` indices along `axis`. A column consists of
// the elements at one place of each row. Throws Error as sources do.
Moments MomentsOfColumns(const SourceTensor& source, int64_t axis, int64_t rows);

// Returns the moments of all elements, of which there is at least one. Throws Error as sources do.
Moments MomentsOfAll(const SourceTensor& source);

}  // namespace shardinit
