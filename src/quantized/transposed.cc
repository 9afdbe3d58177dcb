// Finds tensors of GPTQ and AWQ.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <string_view>
#include <utility>

#include "base/checked_math.h"
#include "base/text.h"
#include "quantized/search.h"

namespace shardinit {
namespace {

// Returns the bits of a number. Throws if the config tells of another packing.
int TransposedBits(Search& search) {
  const bool is_awq = search.config().method() == "awq";
  const int64_t bits = search.config().Number("bits");
  const auto require = [](bool holds, std::string_view key, const std::string& value) {
    if (!holds) {
      ThrowUnreadable(
          fmt::format("{} of config.json is {}, which shardinit does not read", key, value));
    }
  };
  require(bits == 4 || (bits == 8 && !is_awq), "bits",
          bits == 0 ? "missing" : std::to_string(bits));
  if (is_awq) {
    const std::string version = search.config().Text("version");
    require(version.empty() || version == "gemm", "version", Quote(version));
  } else {
    const std::string format = search.config().Text("checkpoint_format");
    require(format.empty() || format == "gptq" || format == "gptq_v2", "checkpoint_format",
            Quote(format));
  }
  return static_cast<int>(bits);
}

void TakeTransposedZeros(Search& search, Widening* widening, const Tensor& zeros, bool is_awq) {
  const CodeMatrices& codes = widening->codes;
  const int64_t groups = codes.rows / widening->block_rows;
  const Shape wanted = {groups, CeilDiv(codes.columns * codes.bits, 32)};
  if (zeros.dtype() != DType::i32 || zeros.shape() != wanted) {
    ThrowUnreadable(widening->numbers(),
                    fmt::format("{}, not i32 [{}]", Described(zeros), fmt::join(wanted, ", ")));
  }
  // The first format of GPTQ has each zero less one. A zero of 0 would have changed the next.
  const bool is_less = !is_awq && search.config().Text("checkpoint_format") != "gptq_v2";
  const double usual = codes.bits == 4 ? 0x77777777 : 0x7F7F7F7F;
  if (is_less &&
      !std::ranges::all_of(search.Read(zeros), [&](double word) { return word == usual; })) {
    ThrowUnreadable(zeros,
                    "its zeros differ from the middle, which only the checkpoint_format `gptq_v2` "
                    "stores without a doubt");
  }
  widening->parts[Widening::kZeros] = zeros;
  widening->zeros = WholeValues(codes.bits, is_less ? -1 : 0);
  widening->zero_codes = {is_awq ? Packing::kAwq : Packing::kAlongRows,
                          codes.bits,
                          groups,
                          codes.columns,
                          wanted[1],
                          4};
}

// Throws if rows have the scales of other groups than those that they are in.
void RequireOrder(Search& search, Widening* widening, const std::string& path, int64_t size) {
  const Tensor* const order = search.TensorAt(path);
  if (order == nullptr) {
    if (!search.config().IsTrue("desc_act")) return;
    ThrowUnreadable(widening->numbers(),
                    fmt::format("`{}` is missing, but desc_act of config.json is true", path));
  }
  const std::vector<double> groups = search.Read(*order);
  for (size_t i = 0; i < groups.size(); ++i) {
    if (groups[i] == static_cast<double>(static_cast<int64_t>(i) / size)) continue;
    ThrowUnreadable(
        *order, fmt::format("row {} has the scales of group {} (desc_act), which shardinit does "
                            "not read",
                            i, groups[i]));
  }
  search.Leave(widening, path);
}

}  // namespace

// GPTQ and AWQ: words of numbers of f16, [in, out], from which [out, in] is made.
bool FindTransposed(Search& search, const Tensor& numbers, const std::string& around) {
  if (search.config().method() != "gptq" && search.config().method() != "awq") return false;
  const bool is_awq = search.config().method() == "awq";
  const Tensor& scales = search.Need(numbers, around + ".scales");
  const Tensor& zeros = search.Need(numbers, around + ".qzeros");
  const int bits = TransposedBits(search);
  if (numbers.shape().size() != 2 || scales.shape().size() != 2)
    ThrowUnreadable(numbers, "it is not a matrix");
  const int64_t in_word = 32 / bits, stored_rows = numbers.shape()[0];
  CodeMatrices codes = {.packing = is_awq ? Packing::kAwq : Packing::kAlongColumns, .bits = bits};
  codes.rows = is_awq ? stored_rows : stored_rows * in_word;
  codes.columns = is_awq ? numbers.shape()[1] * in_word : numbers.shape()[1];
  Widening widening = search.Begin(numbers, codes, WholeValues(bits, 0));
  const int64_t groups = scales.shape()[0];
  if (codes.rows % groups != 0 || scales.shape()[1] != codes.columns ||
      scales.dtype() != DType::f16) {
    ThrowUnreadable(numbers, fmt::format("{}, not f16 with {} scales for each group of rows",
                                         Described(scales), codes.columns));
  }
  const int64_t size = codes.rows / groups, said = search.config().Number("group_size");
  if (said != 0 && said != size) {
    ThrowUnreadable(numbers, fmt::format("{}: groups of {}, but group_size of config.json is {}",
                                         Described(scales), size, said));
  }
  TakeScales(&widening, scales, size, 1);
  widening.through = DType::f16;
  widening.is_transposed = true;
  widening.unknown = "GPTQ and AWQ need calibration data";
  TakeTransposedZeros(search, &widening, zeros, is_awq);
  RequireOrder(search, &widening, around + ".g_idx", size);
  Make(&widening, around + ".weight", {codes.columns, codes.rows});
  search.Add(std::move(widening));
  return true;
}

}  // namespace shardinit
