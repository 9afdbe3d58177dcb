// Tests CRC-32 with the check value of CRC-32/ISO-HDLC ("123456789") and with values from zlib.
#include <gtest/gtest.h>

#include <array>
#include <string>
#include <string_view>

#include "base/crc32.h"

namespace shardinit {
namespace {

// Computes the same CRC byte by byte, with a table of remainders.
uint32_t Crc32ByTable(std::string_view bytes) {
  static constexpr std::array<uint32_t, 256> kTable = [] {
    std::array<uint32_t, 256> table{};
    for (uint32_t byte = 0; byte < table.size(); ++byte) {
      uint32_t rest = byte;
      for (int bit = 0; bit < 8; ++bit) rest = rest >> 1 ^ ((rest & 1) != 0 ? 0xedb88320 : 0);
      table[byte] = rest;
    }
    return table;
  }();
  uint32_t rest = ~uint32_t{0};
  for (const char c : bytes) rest = rest >> 8 ^ kTable[(rest ^ static_cast<uint8_t>(c)) & 0xff];
  return ~rest;
}

TEST(Crc32, Crc32EqualsZlib) {
  EXPECT_EQ(Crc32(0, ""), 0u);
  EXPECT_EQ(Crc32(5, {}), 5u);
  EXPECT_EQ(Crc32(0, "a"), 0xe8b7be43u);
  EXPECT_EQ(Crc32(0, "123456789"), 0xcbf43926u);
  EXPECT_EQ(Crc32(0, std::string(32, '\0')), 0x190a55adu);
  EXPECT_EQ(Crc32(0, std::string(32, '\xff')), 0xff6cab0bu);
}

// Tries lengths near changes of the algorithm, at every alignment, in one and two pieces.
TEST(Crc32, Crc32EqualsTheTableAlgorithm) {
  std::string data(4096, '\0');
  uint32_t x = 1;
  for (char& c : data) c = static_cast<char>((x = x * 1664525 + 1013904223) >> 24);
  const std::string_view all = data;
  for (size_t from = 0; from < 17; ++from) {
    for (size_t size = 0; size < 300; ++size) {
      const std::string_view bytes = all.substr(from, size);
      EXPECT_EQ(Crc32(0, bytes), Crc32ByTable(bytes)) << from << " " << size;
    }
  }
  for (size_t cut = 0; cut <= all.size(); cut += 31) {
    EXPECT_EQ(Crc32(Crc32(0, all.substr(0, cut)), all.substr(cut)), Crc32ByTable(all)) << cut;
  }
}

}  // namespace
}  // namespace shardinit
