// The values of an expression over elements, `init: {expr: …}`.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "expr/program.h"
#include "generate/filler.h"
#include "graph/graph.h"

namespace shardinit {

class ExpressionFiller final : public Filler {
 public:
  ExpressionFiller(const Tensor& tensor, const Box& box);

  // Throws Error (kUsage) for an element that is not a number, or that the
  // tensor's type cannot hold.
  void Fill(int64_t first, int64_t count, void* out) const override;

 private:
  void FillIndices(int64_t first, int64_t count, double* slots) const;
  void FillDraws(int64_t first, int64_t count, double* slots) const;
  void Store(int64_t first, int64_t count, const double* values, uint8_t* out) const;
  [[noreturn]] void Refuse(int64_t element, double value) const;

  std::shared_ptr<const Program> program_;
  std::string path_;
  DType dtype_;
  Shape shape_;
  Box box_;
  Runs runs_;
  uint64_t key_;
};

}  // namespace shardinit
