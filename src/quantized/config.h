// Reads the quantization_config of a model's config.json, or of its text_config.
#pragma once

#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <set>
#include <string>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "tensor/box.h"

namespace shardinit {

class QuantizationConfig {
 public:
  // Throws Error (kUsage) if the text, of a config.json, names a quantization that is not read.
  explicit QuantizationConfig(const std::string& text);

  bool is_there() const;
  // Returns quant_method, or an empty string.
  const std::string& method() const { return method_; }
  // Returns the model_type of the config and of the configs in it.
  const std::set<std::string>& model_types() const { return model_types_; }
  bool IsTrue(std::string_view key) const;
  // Returns a whole number from 1 to 2^30, or 0.
  int64_t Number(std::string_view key) const;
  // Returns a text in lower case, or an empty string.
  std::string Text(std::string_view key) const;
  bool HasBlock() const;
  // Returns the rows and columns of a block. Shapes do not determine them, because blocks at the
  // edges may be cut. Throws Error (kUsage) about the tensor at `path` if they are not there.
  std::pair<int64_t, int64_t> Block(const std::string& path) const;
  // Return the settings of the groups of compressed-tensors: numbers of bits, whether numbers have
  // no zero points, and rows and columns of the blocks of a matrix of this size.
  std::set<int64_t> Bits() const;
  std::set<bool> AreSymmetric() const;
  std::set<std::pair<int64_t, int64_t>> Blocks(int64_t rows, int64_t columns) const;

 private:
  std::shared_ptr<const nlohmann::json> json_;  // quantization_config
  std::string method_;
  std::set<std::string> model_types_;
};

// Returns a config.json with the `quantization_config` of another one; the other one if it is
// empty.
std::string WithQuantization(const std::string& config, const std::string& like);
// Returns a config.json without its `quantization_config`, also in its text_config.
std::string WithoutQuantization(const std::string& config);

// The model, or a tensor, cannot be widened.
class Unreadable : public Error {
 public:
  using Error::Error;
};
// Throw Unreadable (kUsage).
[[noreturn]] void ThrowUnreadable(const std::string& why);
[[noreturn]] void ThrowUnreadable(const std::string& path, const std::string& why);

}  // namespace shardinit
