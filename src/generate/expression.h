// Computes the values of an expression over elements, `init: {expr: …}`.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "expr/program.h"
#include "generate/filler.h"
#include "generate/placed_numbers.h"
#include "graph/graph.h"

namespace shardinit {

class ExpressionFiller final : public Filler {
 public:
  ExpressionFiller(const Expression& expression, const Tensor& tensor);

  // Throws Error (kUsage) for an element that is not a number, or that the tensor's type cannot
  // hold.
  void Fill(const Runs& runs, int64_t first, int64_t count, void* out) const override;

 private:
  void FillIndices(const Runs& runs, int64_t first, int64_t count, double* slots) const;
  void FillDraws(const Runs& runs, int64_t first, int64_t count, double* slots) const;
  void Store(const Runs& runs, int64_t first, int64_t count, const double* values,
             uint8_t* out) const;
  [[noreturn]] void Refuse(int64_t linear, double value) const;

  std::shared_ptr<const Program> program_;
  std::string path_;
  DType dtype_;
  Shape shape_;
  Stream stream_;
  std::vector<PlacedNumbers> placed_;  // one for each call of the program
};

}  // namespace shardinit
