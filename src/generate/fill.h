// Makes the values of a box; any stretch can be made alone.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "generate/filler.h"
#include "generate/preparations.h"
#include "graph/graph.h"

namespace shardinit {

// Returns what makes a drawn tensor's elements, as stored bytes, wherever they stand.
std::unique_ptr<const Filler> FillerOf(const Tensor& tensor);

class ViewFiller;

// Lists what BoxFiller::Prepare prepares, each tensor once.
std::vector<Preparation> PreparationsOf(const Tensor& tensor, const Box& box);

// Makes elements of one box of a tensor, as stored bytes, in the box's own row-major order. It is
// safe to use from several threads.
class BoxFiller {
 public:
  BoxFiller(const Tensor& tensor, const Box& box);
  ~BoxFiller();

  // Writes elements first … first + count - 1 of the box to `out`.
  void Fill(int64_t first, int64_t count, void* out) const;

  // Makes what must be there before the first element, such as a whole matrix. Fill also does so
  // when it needs it; threads that call this at the same time share the work.
  void Prepare() const;

  // Returns whether many elements in one call cost less each. The caller then asks for as many as
  // there is memory for.
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
