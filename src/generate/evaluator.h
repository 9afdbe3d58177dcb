// Computes the numbers of a program (expr/program.h) for elements of a tensor.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "expr/program.h"
#include "generate/engines.h"
#include "generate/source_cells.h"

namespace shardinit {

// The numbers of one call in an expression. It is safe to use from several threads.
class PlacedNumbers {
 public:
  PlacedNumbers(const Program::PlacedCall& call, const Stream& stream);

  // The numbers that one thread has in memory. Callers ask for neighbours one after another.
  struct Window {
    uint64_t first = 0;
    std::vector<double> values = {};
  };

  // Sets out[i] to number element[i], or to NaN if that number does not exist.
  void Get(const double* element, size_t count, Window& window, double* out) const;

 private:
  CalledNumbers called_;
};

// It is safe to use from several threads.
class Evaluator {
 public:
  Evaluator(ProgramPtr program, const Tensor& tensor);

  // Each thread has its own state.
  struct State {
    std::vector<double> slots;
    std::vector<PlacedNumbers::Window> windows;
    std::vector<SourceCells> cells;
    // The numbers from each source from element `gathered_from` on, if they were gathered.
    std::vector<std::vector<double>> gathered;
    int64_t gathered_from = 0;
  };
  State Begin() const;

  // Gathers the values of elements first … first + count - 1, up to kGathered, from sources whose
  // cells would otherwise be read repeatedly. Throws Error as Evaluate() does.
  void Gather(const Runs& runs, int64_t first, int64_t count, State& state) const;

  // Returns the numbers of elements first … first + count - 1 of the runs, up to kTile. They are
  // valid until the next call with this state. Throws Error as sources do, and kUsage for an index
  // that a source does not have.
  const double* Evaluate(const Runs& runs, int64_t first, int64_t count, State& state) const;

 private:
  void FillIndices(const Runs& runs, int64_t first, int64_t count, double* slots) const;
  void FillDraws(const Runs& runs, int64_t first, int64_t count, double* slots) const;
  // Runs the instructions. Stops when the indices into source number `until` are computed.
  void Compute(const Runs& runs, int64_t first, int64_t count, State& state, size_t until) const;
  // Runs the calls before instruction `before`. Stops and returns false at source `until`.
  bool Call(size_t before, const Runs& runs, int64_t first, int64_t count, State& state,
            size_t* placed, size_t* source, size_t until) const;
  void ReadSource(const Program::SourceCall& call, const Runs& runs, int64_t first, int64_t count,
                  State& state, size_t source) const;
  void FindPlacesOf(const Program::SourceCall& call, const Runs& runs, int64_t first, int64_t count,
                    const State& state, int64_t* places) const;
  [[noreturn]] void RefuseIndex(const Program::SourceCall& call, int64_t linear, int64_t at,
                                const State& state) const;

  const ProgramPtr program_;
  const std::string path_;
  const Shape shape_;
  const Stream stream_;
  std::vector<PlacedNumbers> placed_;  // one for each call of the program
};

// Returns the index of an element as text: `[3, 4]`.
std::string IndexInText(const Shape& shape, int64_t linear);

}  // namespace shardinit
