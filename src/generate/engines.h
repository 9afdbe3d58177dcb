// How each random engine fills tensors, a row for each that has a way of its own.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <new>
#include <span>

#include "generate/filler.h"
#include "graph/graph.h"

namespace shardinit {

// Makes a whole matrix, row-major.
using MatrixMaker = void (*)(const Stream& stream, double gain, const OrthogonalSize& size,
                             float* values);

[[noreturn]] void ThrowNoMemory(const OrthogonalSize& size);

// Gets memory for numbers of a matrix, or throws Error (kWorld).
template <typename T>
std::unique_ptr<T[]> AllocateNumbers(int64_t count, const OrthogonalSize& size) {
  std::unique_ptr<T[]> numbers(new (std::nothrow) T[static_cast<size_t>(count)]);
  if (!numbers) ThrowNoMemory(size);
  return numbers;
}

// The numbers of one call in an expression.
struct CalledNumbers {
  uint64_t elements;  // how many there are
  // Scattered numbers that lie within so many are made with all those between.
  uint64_t longest_window;
  // Makes the numbers from `first` on. It is safe to use from several threads.
  std::function<void(uint64_t first, std::span<double> numbers)> make;
};

// Turns encoded numbers at the beginning of `numbers` into doubles.
void DecodeInPlace(DType dtype, std::span<double> numbers);

struct FillEngine {
  const Engine* engine = nullptr;
  // Returns the engine's own filler for a tensor, or null. If this is null, elements are made by
  // `Engine::sample`, or by kernels with the same bits.
  std::unique_ptr<const Filler> (*filler)(const Tensor& tensor) = nullptr;
  // Null: orthogonal matrices are made by reflections (rng/orthogonal.h).
  MatrixMaker matrix = nullptr;
  // Returns the numbers that an expression of a tensor with this stream takes from the engine.
  CalledNumbers (*numbers)(const Program::PlacedCall& call, const Stream& stream) = nullptr;
};

extern const FillEngine kFillJaxThreefry, kFillTorchCpu;

// Returns the engine's row, which is empty if it has none.
const FillEngine& FillEngineOf(const Engine& engine);

}  // namespace shardinit
