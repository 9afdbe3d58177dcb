// Reads and computes known answers: tensors, boxes of them and their bits, in the format of
// shardinit-values(7). They test other people's programs that compute the same values.
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
  Fd file = {};                     // the content of the file that the values come from, if any
};

// Reads a file of answers, whoever wrote it, and visits each answer. Throws Error (kRefused).
void ReadKnownAnswers(std::string_view text, const std::string& path,
                      const std::function<void(const KnownAnswer& answer)>& visit);

// Returns the bits of the answer's elements as this program generates them. Throws Error (kUsage)
// if an expression's value does not fit the tensor's type.
std::vector<uint64_t> MakeBits(const KnownAnswer& answer);

}  // namespace shardinit
