// Reads codes of at most 8 bits from the tensors that quantizers pack them into.
#pragma once

#include <cstdint>
#include <vector>

#include "generate/workers.h"

namespace shardinit {

enum class Packing : uint8_t {
  kBytes,               // a byte for each code
  kAlongRows,           // each row is a string of bits that begins with its lowest bit
  kAlongRowsHighFirst,  // bytes of two codes, the first in the high bits
  kAlongColumns,        // each column is a string of bits, in words of 32 bits
  kAwq,                 // words of eight codes of a row, in the order that AutoAWQ's kernels read
};

// A stack of matrices of codes, as it is stored.
struct CodeMatrices {
  Packing packing = Packing::kBytes;
  int bits = 8;
  int64_t rows = 0, columns = 0;  // of a matrix
  int64_t stored_columns = 0;     // elements in a row of the stored tensor
  int element_bytes = 1;          // of the stored tensor
};

// A part of one matrix.
struct Rectangle {
  int64_t matrix, row, column, rows, columns;
};

// Some elements of the rows of the stored tensor, one row after another in `bytes`.
struct StoredPart {
  int64_t row, rows, column, columns;
  uint8_t* bytes;
};

int64_t StoredRows(const CodeMatrices& codes);  // rows of the stored tensor that hold a matrix
int64_t CodesInElement(
    const CodeMatrices& codes);  // the most codes that an element shares bits with
// Cuts elements of the stored tensor into parts of about `most` elements: whole rows of one matrix,
// or a part of one row. `bytes` is where the first element is.
std::vector<StoredPart> PartsIn(const CodeMatrices& codes, int64_t first, int64_t count,
                                int64_t most, uint8_t* bytes);
// Returns the codes that have bits in a part, whose rows hold one matrix.
Rectangle CodesIn(const CodeMatrices& codes, const StoredPart& part);
// Writes the bits of a code of that rectangle that are in the part. Returns the element of the
// tensor that has the code's first bit; -1: it is before the part.
int64_t WriteCode(const CodeMatrices& codes, const StoredPart& part, int64_t row, int64_t column,
                  uint8_t code);

// Writes the codes of a rectangle to `out`, row by row. `stored` reads elements of the tensor.
void ReadCodes(const CodeMatrices& codes, const BoxElements& stored, const Rectangle& part,
               uint8_t* out);

}  // namespace shardinit
