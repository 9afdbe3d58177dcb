// What a folder holds, whoever wrote it: of each tensor its type, its shape and where its
// elements lie.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "formats/findings.h"
#include "formats/pieces.h"

namespace shardinit {

// A tensor as the folder has it.
struct Holding {
  std::string file;   // Where it is first met.
  std::string dtype;  // As files of that kind write it.
  Shape shape;
  std::vector<FilePiece> pieces;  // Together the whole tensor, none of it twice.
};

// Throws Error (kRefused) if they are not.
void RequireWhole(const std::string& name, const Holding& holding);

struct Contents {
  std::map<std::string, Holding> tensors;
  Findings findings;  // What is wrong with the folder, but in no tensor's way.
  // Of an optimizer, which no spec has: not read.
  int64_t optimizer_entries = 0;
  // What tells the model's names from those, unless it is part of them.
  std::string_view prefix = {};
};

}  // namespace shardinit
