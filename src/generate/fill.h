// Generates the values of a box. Any stretch can be generated independently.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "generate/filler.h"
#include "generate/preparations.h"

namespace shardinit {

// Returns the filler that generates a drawn tensor's elements, as stored bytes, for any runs.
std::unique_ptr<const Filler> FillerOf(const Tensor& tensor);

class ViewFiller;

// Lists the preparations of BoxFiller::Prepare, each tensor once.
std::vector<Preparation> PreparationsOf(const Tensor& tensor, const Box& box);

// Generates elements of one box of a tensor, as stored bytes, in the box's own row-major order. It
// is safe to use from several threads.
class BoxFiller {
 public:
  BoxFiller(const Tensor& tensor, const Box& box);
  ~BoxFiller();

  // Writes elements first … first + count - 1 of the box to `out`.
  void Fill(int64_t first, int64_t count, void* out) const;

  // Generates everything that the first element needs, such as a whole matrix. Fill also does so
  // when it needs it. Threads that call this at the same time share the work.
  void Prepare() const;

  // Returns whether elements cost less if many are generated in one call. The caller then asks for
  // the most that fit in memory.
  bool wants_long_stretches() const;

  int64_t elements() const { return elements_; }
  int element_bytes() const { return element_bytes_; }

 private:
  int64_t elements_;
  int element_bytes_;
  Runs runs_;
  std::unique_ptr<const Filler> drawn_;  // Null: the tensor is a view.
  std::unique_ptr<const ViewFiller> view_;
};

// Writes a whole box, on up to `jobs` threads.
void FillBox(const Tensor& tensor, const Box& box, int jobs, void* out);

}  // namespace shardinit
