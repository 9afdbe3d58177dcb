// Helps to find quantized tensors: what all kinds of them need.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "plan/plan.h"
#include "quantized/config.h"
#include "quantized/find.h"
#include "quantized/widening.h"

namespace shardinit {

inline constexpr int64_t kMxNumbers = 32, kNvNumbers = 16;  // numbers with one scale

// Return the values of codes.
std::vector<float> ValuesOf(DType dtype);              // of at most 8 bits
std::vector<float> WholeValues(int bits, int offset);  // code - offset

bool IsFloatScale(DType dtype);  // f32, bf16 or f16
// Returns, for messages, the path, type and shape.
std::string Described(const Tensor& tensor);
// Returns the shape with other last dimensions.
Shape WithMatrix(const Shape& shape, int64_t rows, int64_t columns);
// Throws Error (kUsage) that the tensor cannot be widened.
[[noreturn]] void ThrowUnreadable(const Tensor& tensor, const std::string& why);
// Throws Error (kUsage) unless the scales of `numbers` are f8e4m3fn and `global` f32 of this shape.
void RequireGlobal(const Tensor& numbers, const Tensor& scales, const Tensor& global,
                   const Shape& shape);

// The tensors of a model, and the quantized ones that were found. The functions throw Error
// (kUsage) if shapes or types do not match.
class Search {
 public:
  Search(const Plan& plan, DType dtype, const IsDropped& is_dropped, const ReadWhole& read);

  const QuantizationConfig& config() const { return config_; }
  const std::map<std::string, const Tensor*>& there() const { return there_; }
  // Tensors that are left out of the model.
  const std::vector<std::string>& dropped() const { return dropped_; }
  bool IsUsed(const std::string& path) const { return used_.contains(path); }
  bool has_found() const { return !used_.empty(); }
  std::deque<Widening> Take() { return std::move(found_); }

  const Tensor* TensorAt(const std::string& path) const;
  const Tensor& Need(const Tensor& numbers, const std::string& path) const;
  std::vector<double> Read(const Tensor& tensor) const;

  // Returns a widening without scales, whose tensor has the path and shape of the numbers.
  Widening Begin(const Tensor& numbers, CodeMatrices codes, std::vector<float> values) const;
  // Takes scales for each of some columns of one row. They must divide the row.
  void TakeGroups(Widening* widening, const Tensor& scales, int64_t size) const;
  // Takes scales for blocks of a size that the config has and the shape of the scales allows.
  void TakeScalesByShape(Widening* widening, const Tensor& scales) const;
  // Notes a tensor that only a quantized model needs.
  void Leave(Widening* widening, const std::string& path);
  // Notes those that only quantized activations need.
  void LeaveActivations(Widening* widening, const std::string& around);
  void Add(Widening widening);

 private:
  const QuantizationConfig config_;
  const DType dtype_;
  const ReadWhole& read_;
  std::map<std::string, const Tensor*> there_;
  std::vector<std::string> dropped_;
  std::deque<Widening> found_;
  std::set<std::string> used_;
};

void TakeScales(Widening* widening, const Tensor& scales, int64_t rows, int64_t columns);
// Sets the path and the shape of the tensor that is made.
void Make(Widening* widening, const std::string& path, Shape shape);

// The kinds. Each gets a tensor with numbers, and its path without the ending that is in find.cc.
// It returns false if the tensor is not of this kind.
bool FindMxfp4Blocks(Search& search, const Tensor& numbers, const std::string& around);
bool FindPacked(Search& search, const Tensor& numbers, const std::string& around);
bool FindBytes(Search& search, const Tensor& numbers, const std::string& around);
bool FindTransposed(Search& search, const Tensor& numbers, const std::string& around);
bool FindBlocks(Search& search, const Tensor& numbers, const std::string& around);
bool FindBitsAndBytes(Search& search, const Tensor& numbers, const std::string& around);
bool FindInt8(Search& search, const Tensor& numbers, const std::string& around);
bool FindModelOpt(Search& search, const Tensor& numbers, const std::string& around);

}  // namespace shardinit
