#include "quantized/narrowing.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <numeric>
#include <optional>
#include <utility>
#include <vector>

#include "base/checked_math.h"
#include "base/error.h"
#include "quantized/block_values.h"
#include "quantized/read_ahead.h"
#include "tensor/encode.h"

namespace shardinit {
namespace {

// Codes that are computed together.
constexpr int64_t kCodesAtOnce = 1 << 20;

// The codes of a block in the order of the numbers that they represent.
class Candidates {
 public:
  // `order` sorts the codes by their values without a scale, and `table` has their numbers.
  Candidates(const std::vector<uint8_t>& order, const uint8_t* table, DType dtype)
      : order_(order), table_(table), bytes_(static_cast<size_t>(InfoOf(dtype).bytes)) {
    for (const uint8_t code : order) {
      const double number = Decode(table + code * bytes_, dtype);
      if (std::isfinite(number)) found_.emplace_back(number, code);
    }
    if (found_.size() > 1 && found_.front().first > found_.back().first) {
      std::reverse(found_.begin(), found_.end());
    }
  }

  // Returns the code of this very number.
  std::optional<uint8_t> Find(const uint8_t* number) const {
    const auto code = std::ranges::find_if(order_, [&](uint8_t each) {
      return std::memcmp(number, table_ + each * bytes_, bytes_) == 0;
    });
    return code == order_.end() ? std::nullopt : std::optional<uint8_t>(*code);
  }
  // Returns the code of the nearest number and, of two, the even one.
  uint8_t Nearest(double number) const {
    auto above = std::lower_bound(found_.begin(), found_.end(), number,
                                  [](const auto& each, double of) { return each.first < of; });
    if (above == found_.end()) return found_.back().second;
    if (above == found_.begin()) return above->second;
    const auto below = above - 1;
    const double up = above->first - number, down = number - below->first;
    if (up == down) return above->second % 2 == 0 ? above->second : below->second;
    return up < down ? above->second : below->second;
  }
  // Returns the same, but of two zeros the one of the number's sign, if there is one.
  uint8_t Signed(float number) const {
    const uint8_t nearest = Nearest(number);
    if (Decode(table_ + nearest * bytes_, DType::f32) != 0) return nearest;
    const float zero = std::copysign(0.0F, number);
    return Find(reinterpret_cast<const uint8_t*>(&zero)).value_or(nearest);
  }
  // Returns the code of the nearest number, as bitsandbytes does: of two, of the lesser one, and
  // the middle is rounded to f32.
  uint8_t Lesser(float number) const {
    const auto is_above = [&](const auto& one, const auto& next) {
      return number > static_cast<float>(one.first + next.first) / 2;
    };
    size_t i = 0;
    while (i + 1 < found_.size() && is_above(found_[i], found_[i + 1])) ++i;
    return found_[i].second;
  }
  bool empty() const { return found_.empty(); }
  double least() const { return found_.front().first; }
  double most() const { return found_.back().first; }

 private:
  const std::vector<uint8_t>& order_;
  const uint8_t* const table_;
  const size_t bytes_;
  std::vector<std::pair<double, uint8_t>> found_;  // finite numbers, ascending
};

struct Found {
  uint8_t code;
  bool is_rounded = false, is_clipped = false;  // as in NarrowingCounts
};

class Narrowing {
 public:
  Narrowing(const Widening& widening, std::array<BoxElements, Widening::kParts> stored,
            BoxElements made, IsCounted is_counted, NarrowingCounts* counts,
            std::shared_ptr<const FreshScales> fresh)
      : fresh_(std::move(fresh)),
        values_(widening, Parts(widening, std::move(stored), fresh_)),
        made_(std::move(made)),
        is_counted_(std::move(is_counted)),
        counts_(*counts),
        order_(widening.values.size()) {
    std::iota(order_.begin(), order_.end(), uint8_t{0});
    // NaN, which no number is close to, comes last.
    std::stable_sort(order_.begin(), order_.end(), [&](uint8_t a, uint8_t b) {
      const float one = widening.values[a], other = widening.values[b];
      return one < other || (std::isnan(other) && !std::isnan(one));
    });
  }

  // Computes elements of the stored numbers, which may begin and end anywhere.
  void Fill(int64_t first, int64_t count, uint8_t* out) const {
    const CodeMatrices& codes = values_.widening().codes;
    if (fresh_ != nullptr) {
      std::memset(out, 0, static_cast<size_t>(count * codes.element_bytes));
    } else {
      values_.stored(Widening::kNumbers)(first, count, out);
    }
    const int64_t most = std::max<int64_t>(1, kCodesAtOnce / CodesInElement(codes));
    for (const StoredPart& part : PartsIn(codes, first, count, most, out)) FillPart(part);
  }

 private:
  static std::array<BoxElements, Widening::kParts> Parts(
      const Widening& widening, std::array<BoxElements, Widening::kParts> stored,
      const std::shared_ptr<const FreshScales>& fresh) {
    if (fresh == nullptr) return ReadingAhead(widening, std::move(stored));
    for (const auto part : {Widening::kScales, Widening::kZeros, Widening::kGlobal}) {
      stored[part] = [fresh, part](int64_t first, int64_t count, void* out) {
        fresh->Fill(part, first, count, out);
      };
    }
    return stored;
  }

  void FillPart(const StoredPart& stored) const {
    const Rectangle part = CodesIn(values_.widening().codes, stored);
    if (part.rows * part.columns == 0) return;  // only bits that pad a row
    fresh_ != nullptr ? MakeCodes(stored, part) : ReplaceCodes(stored, part);
  }

  // Writes the codes of a part with new scales.
  void MakeCodes(const StoredPart& stored, const Rectangle& part) const {
    const Widening& widening = values_.widening();
    const auto bytes = static_cast<size_t>(InfoOf(dtype()).bytes);
    std::vector<uint8_t> wanted(static_cast<size_t>(part.rows * part.columns) * bytes);
    ReadMade(part, wanted.data());
    // The values of codes, which scaled numbers are rounded to.
    const std::vector<float> values = fresh_->Values();
    const Candidates candidates(order_, reinterpret_cast<const uint8_t*>(values.data()),
                                DType::f32);
    const auto least = static_cast<float>(candidates.least());
    const auto most = static_cast<float>(candidates.most());
    const bool is_f8 = widening.numbers().dtype() == DType::f8e4m3fn;
    const bool is_lesser = widening.fresh == Widening::Fresh::kLargest && widening.codes.bits == 4;
    BlockValues::Scratch scratch;
    std::array<uint8_t, sizeof(double)> held;
    for (const BlockValues::Block& block : values_.BlocksIn(part)) {
      const float factor = fresh_->FactorOf(BlockAt(part, block), block.scale);
      const uint8_t* const table = values_.TableOf(block, &scratch);
      int64_t made = 0, rounded = 0, clipped = 0;  // other threads count, too
      for (int64_t row = block.row; row < block.end_row; ++row) {
        for (int64_t column = block.column; column < block.end_column; ++column) {
          const uint8_t* const number =
              &wanted[static_cast<size_t>(row * part.columns + column) * bytes];
          const float scaled = fresh_->Scaled(static_cast<float>(Decode(number, dtype())),
                                              block.scale, block.zero, factor);
          const uint8_t code = is_f8       ? EncodeF8E4M3Fn(std::clamp(scaled, least, most))
                               : is_lesser ? candidates.Lesser(scaled)
                                           : candidates.Signed(scaled);
          const int64_t element =
              WriteCode(widening.codes, stored, part.row + row, part.column + column, code);
          if (element < 0 || !is_counted_(element)) continue;
          ++made;
          // A scale may be so large that the type cannot hold the number of each code.
          const bool is_same = table != nullptr
                                   ? std::memcmp(number, table + code * bytes, bytes) == 0
                                   : values_.ElementOf(code, block, held.data()) &&
                                         std::memcmp(number, held.data(), bytes) == 0;
          if (is_same) continue;
          ++rounded;
          clipped += scaled < least || scaled > most;
        }
      }
      counts_.changed += made;
      counts_.rounded += rounded;
      counts_.clipped += clipped;
    }
  }

  // Returns the element of the scales for a block of a part.
  int64_t BlockAt(const Rectangle& part, const BlockValues::Block& block) const {
    const Widening& widening = values_.widening();
    const int64_t width = CeilDiv(widening.codes.columns, widening.block_columns);
    const int64_t height = CeilDiv(widening.codes.rows, widening.block_rows);
    return (part.matrix * height + (part.row + block.row) / widening.block_rows) * width +
           (part.column + block.column) / widening.block_columns;
  }

  // Replaces the codes of a part whose numbers have changed.
  void ReplaceCodes(const StoredPart& stored, const Rectangle& part) const {
    const Widening& widening = values_.widening();
    const auto size = static_cast<size_t>(part.rows * part.columns);
    const auto bytes = static_cast<size_t>(InfoOf(widening.made.dtype()).bytes);
    std::vector<uint8_t> codes(size), known(size * bytes), wanted(size * bytes);
    ReadCodes(widening.codes, values_.stored(Widening::kNumbers), part, codes.data());
    values_.Fill(part, codes.data(), part.columns, 1, known.data());
    ReadMade(part, wanted.data());
    if (known == wanted) return;
    BlockValues::Scratch scratch;
    for (const BlockValues::Block& block : values_.BlocksIn(part)) {
      std::optional<Candidates> candidates;
      for (int64_t row = block.row; row < block.end_row; ++row) {
        for (int64_t column = block.column; column < block.end_column; ++column) {
          const auto at = static_cast<size_t>(row * part.columns + column) * bytes;
          if (std::memcmp(&wanted[at], &known[at], bytes) == 0) continue;
          if (!candidates) candidates.emplace(order_, TableOf(block, &scratch), dtype());
          const Found found = CodeOf(&wanted[at], *candidates);
          const int64_t element =
              WriteCode(widening.codes, stored, part.row + row, part.column + column, found.code);
          if (element < 0 || !is_counted_(element)) continue;
          ++counts_.changed;
          counts_.rounded += found.is_rounded;
          counts_.clipped += found.is_clipped;
        }
      }
    }
  }

  // Reads the numbers to represent, row by row of the codes.
  void ReadMade(const Rectangle& part, uint8_t* out) const {
    const Widening& widening = values_.widening();
    const CodeMatrices& codes = widening.codes;
    const int64_t bytes = InfoOf(widening.made.dtype()).bytes;
    const int64_t matrix = part.matrix * codes.rows * codes.columns;
    if (!widening.is_transposed) {
      const bool is_whole = part.columns == codes.columns;
      const int64_t rows = is_whole ? 1 : part.rows;
      const int64_t count = part.columns * part.rows / rows;
      for (int64_t row = 0; row < rows; ++row, out += count * bytes) {
        made_(matrix + (part.row + row) * codes.columns + part.column, count, out);
      }
      return;
    }
    std::vector<uint8_t> column(static_cast<size_t>(part.rows * bytes));
    for (int64_t c = 0; c < part.columns; ++c) {
      made_(matrix + (part.column + c) * codes.rows + part.row, part.rows, column.data());
      for (int64_t row = 0; row < part.rows; ++row) {
        std::memcpy(out + (row * part.columns + c) * bytes, column.data() + row * bytes,
                    static_cast<size_t>(bytes));
      }
    }
  }

  // Returns the code of a number that is not represented yet.
  Found CodeOf(const uint8_t* number, const Candidates& candidates) const {
    if (const auto code = candidates.Find(number)) return {*code};
    const double wanted = Decode(number, dtype());
    if (!std::isfinite(wanted) || candidates.empty()) {
      throw Error(ExitCode::kUsage,
                  fmt::format("`{}` has the value {}, for which its scale has no code",
                              values_.widening().made.path(), wanted),
                  "quantize this model with the library that made the scales");
    }
    return {candidates.Nearest(wanted), true,
            wanted < candidates.least() || wanted > candidates.most()};
  }

  // Returns the number of each code of a block.
  const uint8_t* TableOf(const BlockValues::Block& block, BlockValues::Scratch* scratch) const {
    const uint8_t* const table = values_.TableOf(block, scratch);
    if (table != nullptr) return table;
    const Widening& widening = values_.widening();
    throw Error(ExitCode::kUsage,
                fmt::format("`{}` has changed in a block with the scale {}, with which {} cannot "
                            "hold the number of each code",
                            widening.made.path(), block.scale, InfoOf(dtype()).name),
                "quantize this model with the library that made the scales");
  }

  DType dtype() const { return values_.widening().made.dtype(); }

  const std::shared_ptr<const FreshScales> fresh_;  // null: scales are kept
  const BlockValues values_;
  const BoxElements made_;
  const IsCounted is_counted_;
  NarrowingCounts& counts_;
  std::vector<uint8_t> order_;  // codes, by the values that they have without a scale
};

}  // namespace

BoxElements Narrow(const Widening& widening, std::array<BoxElements, Widening::kParts> stored,
                   BoxElements made, IsCounted is_counted, NarrowingCounts* counts,
                   std::shared_ptr<const FreshScales> fresh) {
  const auto narrowing =
      std::make_shared<const Narrowing>(widening, std::move(stored), std::move(made),
                                        std::move(is_counted), counts, std::move(fresh));
  return [narrowing](int64_t first, int64_t count, void* out) {
    narrowing->Fill(first, count, static_cast<uint8_t*>(out));
  };
}

}  // namespace shardinit
