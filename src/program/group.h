// Groups boxes that become one result of a program.
#pragma once

#include <string>
#include <vector>

#include "program/module.h"
#include "program/tensor.h"

namespace shardinit::program {

struct Group {
  std::string name;
  std::vector<size_t> made;      // the numbers of the boxes
  std::vector<int64_t> numbers;  // the numbers in the boxes' paths; empty if the group has one box
};

// Returns the groups of these boxes. With `stacked`, boxes that differ only in the number of a
// layer are one group; otherwise each box is its own group.
std::vector<Group> GroupsOf(const Mesh& mesh, const std::vector<ProgramBox>& made,
                            const std::vector<TensorParts>& parts, bool stacked);

}  // namespace shardinit::program
