// Finds tensors of bitsandbytes, as its functional.dequantize_4bit and int8_vectorwise_dequant
// compute them.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <set>
#include <string_view>

#include "base/checked_math.h"
#include "base/error.h"
#include "base/json.h"
#include "base/text.h"
#include "formats/foreign_names.h"
#include "quantized/search.h"

namespace shardinit {
namespace {

using nlohmann::json;

constexpr int64_t kMostState = 1 << 16;  // bytes

// The numbers of codes of 4 bits. bitsandbytes computes with these, whatever the `quant_map` next
// to them says. FP4 has no -0.
struct Table {
  std::string_view type;
  std::array<float, 16> values;
};
constexpr Table kTables[] = {
    {"nf4",
     {-1.0F, -0.6961928009986877F, -0.5250730514526367F, -0.39491748809814453F,
      -0.28444138169288635F, -0.18477343022823334F, -0.09105003625154495F, 0.0F,
      0.07958029955625534F, 0.16093020141124725F, 0.24611230194568634F, 0.33791524171829224F,
      0.44070982933044434F, 0.5626170039176941F, 0.7229568362236023F, 1.0F}},
    {"fp4",
     {0.0F, 0.0625F / 12, 8.0F / 12, 1.0F, 4.0F / 12, 0.5F, 2.0F / 12, 0.25F, 0.0F, -0.0625F / 12,
      -8.0F / 12, -1.0F, -4.0F / 12, -0.5F, -2.0F / 12, -0.25F}},
};

// Transformers transposes the matrices of its Conv1D before it quantizes them. The models that have
// such layers are known by type, and others, whose code is not Transformers', by names of GPT-2.
void RequireNoConv1D(const Search& search, const Tensor& numbers) {
  constexpr std::string_view kModels[] = {"gpt2", "openai-gpt", "imagegpt", "decision_transformer",
                                          "clvp"};
  constexpr std::string_view kOthers[] = {"gpt_bigcode", "gpt_neo"};  // linear, with these names
  const std::set<std::string>& types = search.config().model_types();
  const auto is_there = [&](std::string_view type) { return types.contains(std::string(type)); };
  const std::string path(numbers.path());
  bool has_name = false;
  for (const char* name : {"c_attn.", "c_proj.", "c_fc."}) has_name |= path.find(name) != path.npos;
  if (std::ranges::none_of(kModels, is_there) &&
      (!has_name || std::ranges::any_of(kOthers, is_there))) {
    return;
  }
  ThrowUnreadable(numbers,
                  "bitsandbytes may store it transposed, as it does with the layers of GPT-2");
}

// What `quant_state` of a tensor says.
struct State {
  Shape shape;
  int64_t block = 0, nested_block = 0;  // numbers with one scale, and scales with one
  float offset = 0;                     // of nested scales
  DType dtype = DType::f32;             // of the dequantized tensor
};

// Reads the text, which is a tensor of bytes.
State ReadState(const Search& search, const Tensor& stored) {
  if (stored.dtype() != DType::u8 || stored.elements() > kMostState) {
    ThrowUnreadable(stored, fmt::format("{}, not the bytes of a JSON object", Described(stored)));
  }
  std::string text;
  for (const double byte : search.Read(stored)) {
    text += static_cast<char>(static_cast<uint8_t>(byte));
  }
  json in;
  try {
    in = ParseJson(text, std::string(stored.path()));
  } catch (const Error& error) {
    ThrowUnreadable(stored, error.what());
  }
  const auto refuse = [&](std::string_view key) {
    ThrowUnreadable(stored, fmt::format("its {} is missing or wrong, in {}", key, Quote(text)));
  };
  const auto size = [&](const char* key) {
    const bool is_size = in.is_object() && in.contains(key) && in[key].is_number_unsigned() &&
                         in[key] != 0 && in[key].get<uint64_t>() < (1u << 30);
    if (!is_size) refuse(key);
    return in[key].get<int64_t>();
  };
  State state;
  state.block = size("blocksize");
  const json shape = in.value("shape", json()), dtype = in.value("dtype", json());
  int64_t count = 1;
  if (!shape.is_array() || shape.empty() || shape.size() > kMaxRank) refuse("shape");
  for (const json& extent : shape) {
    if (!extent.is_number_unsigned() || extent == 0 || extent.get<uint64_t>() >> 62 != 0 ||
        __builtin_mul_overflow(count, extent.get<int64_t>(), &count)) {
      refuse("shape");
    }
    state.shape.push_back(extent);
  }
  const DTypeInfo* const known =
      dtype.is_string() ? FindDType(&ForeignNames::torch, dtype.get<std::string>()) : nullptr;
  if (known == nullptr || !IsFloatScale(known->dtype)) refuse("dtype");
  state.dtype = known->dtype;
  if (!in.contains("nested_blocksize")) return state;
  state.nested_block = size("nested_blocksize");
  const json offset = in.value("nested_offset", json());
  if (!offset.is_number()) refuse("nested_offset");
  state.offset = offset.get<float>();
  return state;
}

// Returns a stored tensor of f32, with this many elements.
const Tensor& NeedFloats(const Search& search, const Tensor& numbers, const char* name,
                         int64_t count, DType dtype = DType::f32) {
  const Tensor& found = search.Need(numbers, fmt::format("{}.{}", numbers.path(), name));
  if (found.dtype() == dtype && found.shape() == Shape{count}) return found;
  ThrowUnreadable(numbers,
                  fmt::format("{}, not {} [{}]", Described(found), InfoOf(dtype).name, count));
}

std::vector<float> ValuesIn(const Search& search, const Tensor& stored) {
  const std::vector<double> values = search.Read(stored);
  return {values.begin(), values.end()};
}

}  // namespace

// 4 bits, of a table of numbers. Scales may be codes, too.
bool FindBitsAndBytes(Search& search, const Tensor& numbers, const std::string& around) {
  const Tensor* stored = nullptr;
  const Table* table = nullptr;
  for (const Table& each : kTables) {
    const std::string path = fmt::format("{}.quant_state.bitsandbytes__{}", around, each.type);
    if (const Tensor* const found = search.TensorAt(path)) stored = found, table = &each;
  }
  if (stored == nullptr) return false;
  RequireNoConv1D(search, numbers);
  const State state = ReadState(search, *stored);
  const int64_t count = ElementCount(state.shape), blocks = CeilDiv(count, state.block);
  if (!numbers.shape().empty() && numbers.shape()[0] == 1) {
    ThrowUnreadable(numbers, "it is one row, which bitsandbytes transposes");
  }
  if (numbers.bytes() != CeilDiv(count, 2)) {
    ThrowUnreadable(numbers,
                    fmt::format("it has {} bytes, but `{}` has the shape [{}]", numbers.bytes(),
                                stored->path(), fmt::join(state.shape, ", ")));
  }
  // Blocks go on from one row to the next.
  Widening widening = search.Begin(numbers,
                                   {.packing = Packing::kAlongRowsHighFirst,
                                    .bits = 4,
                                    .rows = 1,
                                    .columns = count,
                                    .stored_columns = numbers.elements()},
                                   {});
  const Tensor& map = NeedFloats(search, numbers, "quant_map", 16);
  widening.values = {table->values.begin(), table->values.end()};
  if (ValuesIn(search, map) != widening.values) {
    ThrowUnreadable(map, fmt::format("its numbers differ from the table of {}", table->type));
  }
  search.Leave(&widening, std::string(map.path()));
  search.Leave(&widening, std::string(stored->path()));
  const bool is_nested = state.nested_block != 0;
  TakeScales(&widening,
             NeedFloats(search, numbers, "absmax", blocks, is_nested ? DType::u8 : DType::f32), 1,
             state.block);
  if (is_nested) {
    const Tensor& codes = NeedFloats(search, numbers, "nested_quant_map", 256);
    widening.parts[Widening::kGlobal] =
        NeedFloats(search, numbers, "nested_absmax", CeilDiv(blocks, state.nested_block));
    widening.scale = Widening::Scale::kNested;
    widening.scale_values = ValuesIn(search, codes);
    widening.nested_block = state.nested_block;
    widening.offset = state.offset;
    search.Leave(&widening, std::string(codes.path()));
  }
  if (is_nested) {
    widening.unknown = "bitsandbytes subtracts a mean of scales that depends on its threads";
  } else if (count % state.block != 0) {
    widening.unknown = "its last block is cut";
  } else {
    widening.fresh = Widening::Fresh::kLargest;
  }
  widening.through = state.dtype;
  Make(&widening, around, state.shape);
  search.Add(std::move(widening));
  return true;
}

// 8 bits, and the largest number of each row, which is 127.
bool FindInt8(Search& search, const Tensor& numbers, const std::string& around) {
  const Tensor* const largest = search.TensorAt(around + ".SCB");
  if (largest == nullptr) return false;
  RequireNoConv1D(search, numbers);
  const Shape& shape = numbers.shape();
  if (shape.size() != 2 || largest->dtype() != DType::f32 || largest->shape() != Shape{shape[0]}) {
    ThrowUnreadable(numbers, fmt::format("{}, not f32 with a number for each row of a matrix",
                                         Described(*largest)));
  }
  const std::string format = around + ".weight_format";
  if (const Tensor* const stored = search.TensorAt(format)) {
    const bool is_rows = stored->elements() == 1 && search.Read(*stored)[0] == 0;
    if (!is_rows) ThrowUnreadable(*stored, "it is not 0, which means rows");
  }
  Widening widening =
      search.Begin(numbers, {.rows = shape[0], .columns = shape[1]}, ValuesOf(DType::i8));
  TakeScales(&widening, *largest, 1, shape[1]);
  widening.fresh = Widening::Fresh::kLargest;
  widening.times = 7.874015718698502e-3F;  // 1 / 127, as bitsandbytes writes it
  search.Leave(&widening, format);
  search.Add(std::move(widening));
  return true;
}

}  // namespace shardinit
