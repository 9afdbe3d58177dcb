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
#include "graph/explanation.h"

namespace shardinit {

// Turns a leaf into a tensor, except for how it is cut.
class TensorBinder {
 public:
  explicit TensorBinder(Building& building);

  // Fills a new tensor; returns false if it has no shape. `notes` may be null.
  bool Bind(const Leaf& leaf, DrawNotes* notes, Tensor* tensor);

 private:
  void BindDType(const Leaf& leaf, DrawNotes* notes, Tensor* tensor);
  bool BindShape(const TensorSpec& spec, DrawNotes* notes, Tensor* tensor);
  bool CountBytes(const TensorSpec& spec, const Tensor& tensor);
  void BindKey(const TensorSpec& spec, DrawNotes* notes, Tensor* tensor);
  const Engine* EngineOfSpec() const;  // null: no engine has that name
  void BindTorchKey(const TorchKeySpec& key, DrawNotes* notes, Tensor* tensor);
  void CheckPlaceholders(std::string_view where, Span span, std::string_view key);

  const ModelSpec& spec_;
  Diagnostics& diagnostics_;
  SpecScope& names_;
  InitBinder inits_;
  int64_t total_bytes_ = 0;
  std::vector<std::string> dimension_names_;
};

WrittenTensors DrawTensors(Building& building, const Mesh& mesh);

}  // namespace shardinit
