#include "quantized/search.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/checked_math.h"
#include "plan/relayout.h"
#include "tensor/encode.h"

namespace shardinit {

namespace {

std::vector<float> Table(int codes, const std::function<float(int code)>& value) {
  std::vector<float> values;
  for (int code = 0; code < codes; ++code) values.push_back(value(code));
  return values;
}

// Returns whether scales of blocks of this size have this shape.
bool HasBlocks(const Shape& shape, const Widening& widening, int64_t rows, int64_t columns) {
  const Shape& numbers = widening.numbers().shape();
  Shape wanted(numbers.begin(), numbers.end() - 2);
  wanted.push_back(CeilDiv(widening.codes.rows, rows));
  wanted.push_back(CeilDiv(widening.codes.columns, columns));
  return shape == wanted;
}

}  // namespace

// Returns the values of codes that are whole numbers plus `offset`.
std::vector<float> WholeValues(int bits, int offset) {
  return Table(1 << bits, [&](int code) { return static_cast<float>(code - offset); });
}

std::vector<float> ValuesOf(DType dtype) {
  const DTypeInfo& info = InfoOf(dtype);
  return Table(1 << (8 * info.bytes / info.numbers), [=](int code) {
    const auto byte = static_cast<uint8_t>(code);
    return static_cast<float>(Decode(&byte, dtype));
  });
}

bool IsFloatScale(DType dtype) {
  return dtype == DType::f32 || dtype == DType::bf16 || dtype == DType::f16;
}

std::string Described(const Tensor& tensor) {
  return fmt::format("`{}` is {} [{}]", tensor.path(), InfoOf(tensor.dtype()).name,
                     fmt::join(tensor.shape_in_numbers(), ", "));
}

Shape WithMatrix(const Shape& shape, int64_t rows, int64_t columns) {
  Shape made(shape.begin(), shape.end() - 2);
  made.push_back(rows);
  made.push_back(columns);
  return made;
}

void ThrowUnreadable(const Tensor& tensor, const std::string& why) {
  ThrowUnreadable(std::string(tensor.path()), why);
}

Search::Search(const Plan& plan, DType dtype, const IsDropped& is_dropped, const ReadWhole& read)
    : config_(plan.graph.config), dtype_(dtype), read_(read) {
  for (const Tensor& tensor : plan.graph.tensors) {
    std::string path(tensor.path());
    if (is_dropped(path)) {
      dropped_.push_back(std::move(path));
    } else {
      there_.emplace(std::move(path), &tensor);
    }
  }
}

const Tensor* Search::TensorAt(const std::string& path) const {
  const auto found = there_.find(path);
  return found == there_.end() ? nullptr : found->second;
}

const Tensor& Search::Need(const Tensor& numbers, const std::string& path) const {
  const Tensor* const tensor = TensorAt(path);
  if (tensor == nullptr) ThrowUnreadable(numbers, fmt::format("there is no `{}`", path));
  return *tensor;
}

std::vector<double> Search::Read(const Tensor& tensor) const {
  if (InfoOf(tensor.dtype()).kind == DTypeKind::kCarried) {
    ThrowUnreadable(tensor, fmt::format("it is {}", InfoOf(tensor.dtype()).name));
  }
  return read_(tensor);
}

// Returns a widening without scales. The made tensor has the shape of the numbers.
Widening Search::Begin(const Tensor& numbers, CodeMatrices codes, std::vector<float> values) const {
  Widening widening;
  widening.parts[Widening::kNumbers] = numbers;
  codes.element_bytes = InfoOf(numbers.dtype()).bytes;
  if (codes.stored_columns == 0) codes.stored_columns = numbers.shape().back();
  widening.codes = codes;
  widening.values = std::move(values);
  widening.made = numbers;
  widening.made.Edit().dtype = dtype_;
  return widening;
}

// Sets the tensor that is made, whose matrices have this size.
void Make(Widening* widening, const std::string& path, Shape shape) {
  Tensor& made = widening->made;
  made.set_path(path);
  made.Edit().partition = PartitionSpec(shape.size());
  made.Edit().shape = std::move(shape);
  made.Edit().distribution = ValuesOfSource();
}

void TakeScales(Widening* widening, const Tensor& scales, int64_t rows, int64_t columns) {
  widening->parts[Widening::kScales] = scales;
  widening->block_rows = rows;
  widening->block_columns = columns;
}

void Search::TakeGroups(Widening* widening, const Tensor& scales, int64_t size) const {
  if (widening->codes.columns % size != 0 || !HasBlocks(scales.shape(), *widening, 1, size)) {
    ThrowUnreadable(widening->numbers(),
                    fmt::format("{}, but rows of {} numbers need a scale for each {}",
                                Described(scales), widening->codes.columns, size));
  }
  TakeScales(widening, scales, 1, size);
}

void Search::TakeScalesByShape(Widening* widening, const Tensor& scales) const {
  const int64_t rows = widening->codes.rows, columns = widening->codes.columns;
  std::set<std::pair<int64_t, int64_t>> blocks = config_.Blocks(rows, columns);
  if (config_.method() != "compressed-tensors") blocks = {{rows, columns}, {1, columns}};
  std::erase_if(blocks, [&](const auto& block) {
    const bool is_all = block.first == rows && block.second == columns;
    return !HasBlocks(scales.shape(), *widening, block.first, block.second) &&
           !(is_all && scales.elements() == 1 && widening->numbers().shape().size() == 2);
  });
  if (blocks.size() != 1) {
    ThrowUnreadable(
        widening->numbers(),
        fmt::format("{}, which fits {} that config.json has for [{}, {}]", Described(scales),
                    blocks.empty() ? "no blocks" : "several blocks", rows, columns));
  }
  const auto [block_rows, block_columns] = *blocks.begin();
  TakeScales(widening, scales, block_rows, block_columns);
}

void Search::Add(Widening widening) {
  for (const Tensor& part : widening.parts) {
    if (!part.path().empty()) used_.emplace(part.path());
  }
  const std::string numbers(widening.numbers().path()), made(widening.made.path());
  if (made != numbers && there_.contains(made)) {
    ThrowUnreadable(widening.numbers(), fmt::format("`{}` also exists", made));
  }
  found_.push_back(std::move(widening));
}

void Search::Leave(Widening* widening, const std::string& path) {
  if (TensorAt(path) == nullptr) return;
  widening->unused.push_back(path);
  used_.insert(path);
}

void RequireGlobal(const Tensor& numbers, const Tensor& scales, const Tensor& global,
                   const Shape& shape) {
  if (scales.dtype() != DType::f8e4m3fn) {
    ThrowUnreadable(numbers, fmt::format("{}, not f8e4m3fn", Described(scales)));
  }
  if (global.dtype() == DType::f32 && global.shape() == shape) return;
  ThrowUnreadable(numbers,
                  fmt::format("{}, not f32 [{}]", Described(global), fmt::join(shape, ", ")));
}

void Search::LeaveActivations(Widening* widening, const std::string& around) {
  for (const char* name :
       {".input_scale", ".input_zero_point", ".input_global_scale", ".output_scale"}) {
    Leave(widening, around + name);
  }
}

}  // namespace shardinit
