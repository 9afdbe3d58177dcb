// Makes the values of an orthogonal matrix: it is made whole, once for all boxes of it that are at
// work, and boxes are copied from it.
#pragma once

#include <cstdint>
#include <memory>
#include <new>

#include "generate/filler.h"
#include "graph/graph.h"

namespace shardinit {

[[noreturn]] void ThrowNoMemory(const OrthogonalSize& size);

// Gets memory for numbers of a matrix, or throws Error (kWorld).
template <typename T>
std::unique_ptr<T[]> AllocateNumbers(int64_t count, const OrthogonalSize& size) {
  std::unique_ptr<T[]> numbers(new (std::nothrow) T[static_cast<size_t>(count)]);
  if (!numbers) ThrowNoMemory(size);
  return numbers;
}

class WholeMatrix;

class OrthogonalFiller final : public Filler {
 public:
  OrthogonalFiller(const Orthogonal& orthogonal, const Tensor& tensor);

  void Prepare() const override;
  void Fill(const Runs& runs, int64_t first, int64_t count, void* out) const override;

 private:
  DType dtype_;
  Shape shape_;
  // For each dimension: how far apart its neighbours are in the matrix, and the only index along it
  // where the matrix is, or -1.
  Shape stride_, centre_;
  std::shared_ptr<WholeMatrix> matrix_;
};

}  // namespace shardinit
