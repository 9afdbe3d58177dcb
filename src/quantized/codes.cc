#include "quantized/codes.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "base/checked_math.h"

namespace shardinit {
namespace {

// A part of each of some rows of the stored tensor.
struct RowsRead {
  std::vector<uint8_t> bytes;
  int64_t row_bytes;

  const uint8_t* Row(int64_t row) const { return bytes.data() + row * row_bytes; }
};

RowsRead ReadRows(const CodeMatrices& codes, const BoxElements& stored, int64_t first_row,
                  int64_t rows, int64_t first, int64_t end) {
  const int64_t count = end - first, width = codes.stored_columns;
  RowsRead read = {{}, count * codes.element_bytes};
  // A code may be spread over two words, the second of which is then unused.
  read.bytes.resize(static_cast<size_t>(rows * read.row_bytes + 8));
  if (count == width) {
    stored(first_row * width, rows * width, read.bytes.data());
    return read;
  }
  for (int64_t row = 0; row < rows; ++row) {
    stored((first_row + row) * width + first, count, read.bytes.data() + row * read.row_bytes);
  }
  return read;
}

// The places of eight codes in a word, in the order of AutoAWQ's kernels.
constexpr int kShifts[] = {0, 16, 4, 20, 8, 24, 12, 28};

// Returns the first bit of a code in its row.
int64_t BitInRow(const CodeMatrices& codes, int64_t column) {
  if (codes.packing == Packing::kBytes) return column * 8;
  if (codes.packing == Packing::kAwq) return column / 8 * 32 + kShifts[column % 8];
  const int64_t bit = column * codes.bits;
  return codes.packing == Packing::kAlongRowsHighFirst ? bit ^ codes.bits : bit;
}

// Reads codes that are in the bits of their rows.
void ReadAlongRows(const CodeMatrices& codes, const BoxElements& stored, const Rectangle& part,
                   uint8_t* out) {
  const int64_t element_bits = 8 * codes.element_bytes, bits = codes.bits;
  const int64_t first = part.column * bits / element_bits;
  const int64_t end = CeilDiv((part.column + part.columns) * bits, element_bits);
  const RowsRead read =
      ReadRows(codes, stored, part.matrix * codes.rows + part.row, part.rows, first, end);
  const auto mask = static_cast<uint32_t>((1 << bits) - 1);
  if (bits == 4 && codes.packing == Packing::kAlongRows && part.column % 2 == 0) {
    for (int64_t row = 0; row < part.rows; ++row) {
      const uint8_t* const bytes = read.Row(row) + (part.column * bits - first * element_bits) / 8;
      for (int64_t i = 0; i < part.columns / 2; ++i) {
        out[2 * i] = bytes[i] & 15;
        out[2 * i + 1] = static_cast<uint8_t>(bytes[i] >> 4);
      }
      if (part.columns % 2 != 0) out[part.columns - 1] = bytes[part.columns / 2] & 15;
      out += part.columns;
    }
    return;
  }
  for (int64_t row = 0; row < part.rows; ++row) {
    const uint8_t* const bytes = read.Row(row);
    for (int64_t column = part.column; column < part.column + part.columns; ++column) {
      const int64_t at = BitInRow(codes, column) - first * element_bits;
      uint16_t window;
      std::memcpy(&window, bytes + at / 8, sizeof window);
      *out++ = static_cast<uint8_t>(window >> at % 8 & mask);
    }
  }
}

// Reads codes of columns that are strings of bits, in words of 32 bits.
void ReadAlongColumns(const CodeMatrices& codes, const BoxElements& stored, const Rectangle& part,
                      uint8_t* out) {
  const int64_t bits = codes.bits, word_rows = CeilDiv(codes.rows * bits, 32);
  const int64_t first = part.row * bits / 32;
  const int64_t end = CeilDiv((part.row + part.rows) * bits, 32);
  const RowsRead read = ReadRows(codes, stored, part.matrix * word_rows + first, end - first,
                                 part.column, part.column + part.columns);
  const auto mask = static_cast<uint64_t>((1 << bits) - 1);
  for (int64_t row = 0; row < part.rows; ++row) {
    const int64_t at = (part.row + row) * bits - first * 32;
    const uint8_t* const low = read.Row(at / 32);
    const bool is_split = at % 32 + bits > 32;
    const uint8_t* const high = read.Row(at / 32 + (is_split ? 1 : 0));
    for (int64_t column = 0; column < part.columns; ++column) {
      uint32_t words[2];
      std::memcpy(&words[0], low + 4 * column, 4);
      std::memcpy(&words[1], high + 4 * column, 4);
      const uint64_t both = uint64_t{words[1]} << 32 | words[0];
      *out++ = static_cast<uint8_t>(both >> (at % 32) & mask);
    }
  }
}

}  // namespace

int64_t StoredRows(const CodeMatrices& codes) {
  return codes.packing == Packing::kAlongColumns ? CeilDiv(codes.rows * codes.bits, 32)
                                                 : codes.rows;
}

int64_t CodesInElement(const CodeMatrices& codes) {
  return codes.packing == Packing::kBytes ? 1 : CeilDiv(8 * codes.element_bytes, codes.bits) + 1;
}

std::vector<StoredPart> PartsIn(const CodeMatrices& codes, int64_t first, int64_t count,
                                int64_t most, uint8_t* bytes) {
  const int64_t width = codes.stored_columns, in_matrix = StoredRows(codes);
  std::vector<StoredPart> parts;
  while (count > 0) {
    const int64_t row = first / width, column = first % width;
    StoredPart part = {row, 1, column, std::min({count, width - column, most}), bytes};
    if (part.columns == width) {
      part.rows = std::min(
          {count / width, std::max<int64_t>(1, most / width), in_matrix - row % in_matrix});
    }
    parts.push_back(part);
    const int64_t done = part.rows * part.columns;
    first += done, count -= done, bytes += done * codes.element_bytes;
  }
  return parts;
}

Rectangle CodesIn(const CodeMatrices& codes, const StoredPart& part) {
  const int64_t in_matrix = StoredRows(codes), first = part.row % in_matrix;
  const int64_t bits = codes.packing == Packing::kBytes ? 8 : codes.bits;
  if (codes.packing == Packing::kAlongColumns) {
    const int64_t row = first * 32 / bits;
    const int64_t end = std::min(CeilDiv((first + part.rows) * 32, bits), codes.rows);
    return {part.row / in_matrix, row, part.column, end - row, part.columns};
  }
  const int64_t element_bits = 8 * codes.element_bytes;
  const int64_t column = part.column * element_bits / bits;
  const int64_t end =
      std::min(CeilDiv((part.column + part.columns) * element_bits, bits), codes.columns);
  return {part.row / in_matrix, first, column, part.rows, std::max<int64_t>(end - column, 0)};
}

int64_t WriteCode(const CodeMatrices& codes, const StoredPart& part, int64_t row, int64_t column,
                  uint8_t code) {
  const int64_t first = part.row % StoredRows(codes);
  const int64_t row_bytes = part.columns * codes.element_bytes;
  const int64_t before = 8 * codes.element_bytes * part.column;
  const int64_t bits = codes.packing == Packing::kBytes ? 8 : codes.bits;
  // Writes the lowest bits of a number that are in the part. `at` is the first bit, from the
  // beginning of its row in the part.
  const auto write = [&](int64_t in_row, int64_t at, int64_t count, int number) {
    if (in_row < first || in_row >= first + part.rows) return;
    uint8_t* const bytes = part.bytes + (in_row - first) * row_bytes;
    for (int64_t bit = at; bit < at + count; ++bit) {
      if (bit < 0 || bit >= 8 * row_bytes) continue;
      const auto mask = static_cast<uint8_t>(1 << bit % 8);
      uint8_t& byte = bytes[bit / 8];
      byte = static_cast<uint8_t>((byte & ~mask) | ((number >> (bit - at) & 1) != 0 ? mask : 0));
    }
  };
  int64_t at = BitInRow(codes, column) - before;
  if (codes.packing != Packing::kAlongColumns) {
    write(row, at, bits, code);
  } else {
    const int64_t word = column * 32 - before, low = std::min(bits, 32 - row * bits % 32);
    at = word + row * bits % 32;
    row = row * bits / 32;
    write(row, at, low, code);
    write(row + 1, word, bits - low, code >> low);
  }
  if (at < 0 || row < first) return -1;
  return (part.row + row - first) * codes.stored_columns + part.column +
         at / (8 * codes.element_bytes);
}

void ReadCodes(const CodeMatrices& codes, const BoxElements& stored, const Rectangle& part,
               uint8_t* out) {
  switch (codes.packing) {
    case Packing::kBytes: {
      const RowsRead read = ReadRows(codes, stored, part.matrix * codes.rows + part.row, part.rows,
                                     part.column, part.column + part.columns);
      std::memcpy(out, read.bytes.data(), static_cast<size_t>(part.rows * part.columns));
      return;
    }
    case Packing::kAlongRows:
    case Packing::kAlongRowsHighFirst:
    case Packing::kAwq:
      return ReadAlongRows(codes, stored, part, out);
    case Packing::kAlongColumns:
      return ReadAlongColumns(codes, stored, part, out);
  }
}

}  // namespace shardinit
