// Writes the init graph as a StableHLO module: a program whose results are the tensors.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "plan/plan.h"
#include "program/function.h"

namespace shardinit {

// One result of a program: a box of one of the plan's tensors.
struct ProgramBox {
  const Tensor* tensor;
  Box box;
  size_t part = 0;  // number among a rank's boxes of the tensor
};
// Returns the tensors as a whole, or the boxes of them that a rank holds.
std::vector<ProgramBox> ProgramBoxesOf(const Plan& plan, const std::vector<const Tensor*>& tensors,
                                       std::optional<int64_t> rank);

struct ProgramRequest {
  std::vector<ProgramBox> boxes;
  program::Arithmetic arithmetic = program::Arithmetic::kSingle;
  // These annotations describe the sharding of whole tensors on the plan's mesh, so all boxes must
  // be whole. Shardy's are in a dialect that portable artifacts of StableHLO lack.
  bool with_mhlo = false, with_shardy = false;
  bool stacked = false;  // Writes tensors that differ only in a layer's number as one.

  bool annotated() const { return with_mhlo || with_shardy; }
};

// The most bytes in a program's functions and tables. No compiler handles more.
inline constexpr size_t kLargestProgram = size_t{256} << 20;

// Returns all boxes as one module, as text. Throws Error (kUsage) for unsupported features.
std::string WriteProgram(const Plan& plan, const ProgramRequest& request);

// One kind of tensor, which has one module.
struct ProgramKind {
  std::string name;
  std::string dtype;
  Shape shape;  // shape of the result
  bool needs_zero;
  std::vector<Shape> arguments;  // tables of words, after the zero if it is needed
  std::vector<std::vector<std::string>> partition;  // names of axes for each dimension
};
struct ProgramTensor {
  std::string path;
  size_t part;  // number among a rank's boxes
  size_t kind;
  std::vector<std::vector<uint32_t>> arguments;  // the words of each table, row by row
};
struct ProgramKinds {
  std::vector<ProgramKind> kinds;
  std::vector<ProgramTensor> tensors;
};
// `visit` receives the modules one by one, because all together may be large.
using ModuleVisitor = std::function<void(const std::string& name, std::string_view module)>;
ProgramKinds WriteProgramKinds(const Plan& plan, const ProgramRequest& request,
                               const ModuleVisitor& visit);

}  // namespace shardinit
