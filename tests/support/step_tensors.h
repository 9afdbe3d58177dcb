// Wraps a list of tensors as Recognize() takes it.
#pragma once

#include <vector>

#include "autoshard/step.h"

namespace shardinit {

// `tensors` must outlive the result.
inline StepTensors Each(const std::vector<StepTensor>& tensors) {
  return [&tensors](const auto& visit) {
    for (const StepTensor& tensor : tensors) visit(tensor);
  };
}

}  // namespace shardinit
