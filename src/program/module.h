// The init graph as a StableHLO module: a program whose results are the tensors.
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

// What a program makes: a box of one of the plan's tensors.
struct ProgramBox {
  const Tensor* tensor;
  Box box;
  size_t part = 0;  // Its number among a rank's boxes of the tensor.
};
// The tensors as a whole, or what a rank holds of them.
std::vector<ProgramBox> ProgramBoxesOf(const Plan& plan, const std::vector<const Tensor*>& tensors,
                                       std::optional<int64_t> rank);

struct ProgramRequest {
  std::vector<ProgramBox> boxes;
  program::Arithmetic arithmetic = program::Arithmetic::kSingle;
  // Boxes are whole tensors, and lie on the plan's mesh: which annotations say so. Those of Shardy
  // are of a dialect that portable artifacts of StableHLO have not.
  bool with_mhlo = false, with_shardy = false;
  bool stacked = false;  // Tensors that are alike but for a layer's number as one.

  bool annotated() const { return with_mhlo || with_shardy; }
};

// The most bytes of a program's functions and tables: no compiler gets through more.
inline constexpr size_t kLargestProgram = size_t{256} << 20;

// All of it as one module, in text. Throws Error (kUsage) for what no program does.
std::string WriteProgram(const Plan& plan, const ProgramRequest& request);

// A module for each kind of tensor, and which tensor is which.
struct ProgramKind {
  std::string name;
  std::string dtype;
  Shape shape;  // Of the result.
  bool needs_zero;
  std::vector<Shape> arguments;  // Tables of words, behind the zero if that is needed.
  std::vector<std::vector<std::string>> partition;  // Names of axes for each dimension.
};
struct ProgramTensor {
  std::string path;
  size_t part;  // Of a rank's several boxes.
  size_t kind;
  std::vector<std::vector<uint32_t>> arguments;  // The words of each table, row by row.
};
struct ProgramKinds {
  std::vector<ProgramKind> kinds;
  std::vector<ProgramTensor> tensors;
};
// `visit` sees the modules one by one: all together they may be large.
using ModuleVisitor = std::function<void(const std::string& name, std::string_view module)>;
ProgramKinds WriteProgramKinds(const Plan& plan, const ProgramRequest& request,
                               const ModuleVisitor& visit);

}  // namespace shardinit
