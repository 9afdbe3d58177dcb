// Known answers: tensors, boxes of them and their bits, in the form that shardinit-values(7) gives.
// Programs of other people that compute the same values are tested with these.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "base/file.h"
#include "graph/graph.h"
#include "tensor/box.h"

namespace shardinit {

struct KnownAnswer {
  std::string name;
  Tensor tensor;
  Box box = {};
  std::vector<uint64_t> bits = {};  // one number for each element of the box
  Fd file = {};                     // the content of the tensor's file, if its values are one's
};

// Reads a file of answers, whoever wrote it, and visits each. Throws Error (kRefused).
void ReadKnownAnswers(std::string_view text, const std::string& path,
                      const std::function<void(const KnownAnswer& answer)>& visit);

// Returns the bits of the answer's elements as this program makes them. Throws Error (kUsage) if an
// expression gives what the tensor's type does not hold.
std::vector<uint64_t> MakeBits(const KnownAnswer& answer);

}  // namespace shardinit
