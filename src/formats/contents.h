// Describes what a folder holds, whoever wrote it: each tensor's type, shape and the places of its
// elements.
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
  std::string file;   // the file that names it first
  std::string dtype;  // the type as files of that kind write it
  Shape shape;
  std::vector<FilePiece> pieces;  // Together they are the whole tensor, none of it twice.
};

// Throws Error (kRefused) unless the pieces are the whole tensor, none of it twice.
void RequireWhole(const std::string& name, const Holding& holding);

// Returns the names in a folder, sorted.
std::vector<std::string> NamesIn(const std::string& folder);

struct Contents {
  std::map<std::string, Holding> tensors;
  Findings findings;  // Faults of the folder that keep no tensor from being read.
  // Entries of an optimizer, which no spec has; they are not read.
  int64_t optimizer_entries = 0;
  // The prefix that tells the model's names from the optimizer's, unless it is part of them.
  std::string_view prefix = {};
};

}  // namespace shardinit
