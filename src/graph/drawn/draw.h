// The second pass: shapes, element types, initializers and keys of the drawn tensors. The next pass
// decides how tensors are cut; this one binds `stage` (which ranks hold a tensor), because a stage
// may depend on the numbers of repeats.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "graph/drawn/expand.h"
#include "graph/drawn/initializer.h"

namespace shardinit {

// Turns a leaf into a tensor, except for how it is cut.
class TensorBinder {
 public:
  explicit TensorBinder(Building& building);

  // Fills a new tensor; returns false if it has no shape.
  bool Bind(const Leaf& leaf, Tensor* tensor);
  const std::optional<FanSource>& fans() const { return inits_.fans(); }  // of the last tensor

 private:
  void BindDType(const Leaf& leaf, Tensor* tensor);
  bool BindShape(const TensorSpec& spec, Tensor* tensor);
  bool CountBytes(const TensorSpec& spec, const Tensor& tensor);
  void BindKey(const TensorSpec& spec, Tensor* tensor);
  const Engine* EngineOfSpec() const;  // null: no engine has that name
  // Reports a key of a form that the spec's engine does not have.
  void RequireForm(bool Engine::*has_form, std::string_view form, Span key);
  void BindTorchKey(const TorchKeySpec& key, Tensor* tensor);
  void CheckPlaceholders(std::string_view where, Span span, std::string_view key);

  const ModelSpec& spec_;
  Diagnostics& diagnostics_;
  SpecScope& names_;
  const Recorder& why_;
  InitBinder inits_;
  int64_t total_bytes_ = 0;
  std::vector<std::string> dimension_names_;
};

// `keeps_fans`: fills the tensors' `fans`.
WrittenTensors DrawTensors(Building& building, const Mesh& mesh, bool keeps_fans);

}  // namespace shardinit
