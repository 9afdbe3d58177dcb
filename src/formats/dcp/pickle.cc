#include "formats/dcp/pickle.h"

#include <bit>
#include <utility>

#include "base/error.h"
#include "formats/little_endian.h"

namespace shardinit::dcp {
// `pickletools` describes the opcodes.

bool PickleWriter::WriteMemoized(const std::string& key) {
  const auto known = memo_.find(key);
  if (known == memo_.end()) return false;
  out_ += known->second < 256 ? 'h' + LittleEndian(known->second, 1)   // BINGET
                              : 'j' + LittleEndian(known->second, 4);  // LONG_BINGET
  return true;
}

void PickleWriter::Memorize(const std::string& key) {
  const auto number = static_cast<uint32_t>(memo_.size());
  memo_.emplace(key, number);
  out_ += key;
  out_ += number < 256 ? 'q' + LittleEndian(number, 1) : 'r' + LittleEndian(number, 4);
}

void PickleWriter::Text(std::string_view text) {
  Check(text.size() <= UINT32_MAX, "a text too long for a pickle");
  const std::string key = 'X' + LittleEndian(text.size(), 4) + std::string(text);
  if (!WriteMemoized(key)) Memorize(key);
}

void PickleWriter::Global(std::string_view module, std::string_view name) {
  std::string key = "c";
  key.append(module).append("\n").append(name).append("\n");
  if (!WriteMemoized(key)) Memorize(key);
}

void PickleWriter::Int(int64_t value) {
  const auto bits = static_cast<uint64_t>(value);
  if (value >= 0 && value < 1 << 8) {
    out_ += 'K' + LittleEndian(bits, 1);
  } else if (value >= 0 && value < 1 << 16) {
    out_ += 'M' + LittleEndian(bits, 2);
  } else if (value >= INT32_MIN && value <= INT32_MAX) {
    out_ += 'J' + LittleEndian(bits, 4);
  } else {
    out_ += "\x8a\x08" + LittleEndian(bits, 8);  // LONG1
  }
}

void PickleWriter::Float(double value) {
  std::string bytes = LittleEndian(std::bit_cast<uint64_t>(value), 8);
  out_ += 'G' + std::string(bytes.rbegin(), bytes.rend());  // BINFLOAT
}

void PickleWriter::Ints(const std::vector<int64_t>& values) {
  if (values.empty()) {
    out_ += ')';
    return;
  }
  BeginTuple();
  for (const int64_t value : values) Int(value);
  EndTuple();
}

void PickleWriter::New(std::string_view module, std::string_view name) {
  Global(module, name);
  out_ += ")\x81";
}

std::string PickleWriter::Finish() {
  out_ += '.';
  return std::move(out_);
}

}  // namespace shardinit::dcp
