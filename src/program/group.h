// Boxes that become one result of a program.
#pragma once

#include <string>
#include <vector>

#include "program/module.h"
#include "program/tensor.h"

namespace shardinit::program {

struct Group {
  std::string name;
  std::vector<size_t> made;      // the numbers of the boxes
  std::vector<int64_t> numbers;  // those in their paths; empty if the group has one box
};

// Returns the groups of these boxes: with `stacked` those that differ only in the number of a layer
// are one, else each box is alone.
std::vector<Group> GroupsOf(const Mesh& mesh, const std::vector<ProgramBox>& made,
                            const std::vector<TensorParts>& parts, bool stacked);

}  // namespace shardinit::program
