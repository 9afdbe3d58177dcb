// The values of a tensor that is put together from drawn ones.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "generate/fill.h"
#include "graph/view.h"

namespace shardinit {

// Makes only what a stretch needs, in runs along the drawn tensors' last
// dimension. Where these do not lie along the stored one, they are made by the
// tile and moved to their places.
class ViewFiller {
 public:
  // `filler_of` makes those of what the view is of.
  using FillerFunction = std::function<std::unique_ptr<const Filler>(const Tensor& drawn)>;
  ViewFiller(const Tensor& tensor, const Box& box, const FillerFunction& filler_of = FillerOf);

  // As BoxFiller's.
  void Prepare() const;
  void Fill(int64_t first, int64_t count, void* out) const;

  // Whether runs are moved: longer stretches then have longer runs.
  bool transposes() const { return transposes_; }

 private:
  // An index has one digit for each of `places_`. A range of each: what the
  // indices of pieces, or of a stretch, lie within.
  struct Digits {
    std::vector<int64_t> low, high;
  };
  Digits DigitsOf(const Piece& piece) const;
  void ChoosePlaces(const Shape& shape);
  void BuildTree(size_t node, size_t begin, size_t end);

  // The parts of pieces with indices in [first, last); `level` digits are settled.
  void Find(int64_t first, int64_t last, size_t level, Digits* wanted,
            std::vector<Piece>* parts) const;
  void Search(size_t node, size_t begin, size_t end, const Digits& wanted, int64_t first,
              int64_t last, std::vector<Piece>* parts) const;

  void MakePart(const Piece& part, uint8_t* out) const;
  void MakeMoved(const Piece& part, uint8_t* out) const;

  const int64_t element_bytes_;
  std::vector<std::unique_ptr<const Filler>> fillers_;
  std::vector<Piece> pieces_;  // Of the box, by their first index; sources are in `fillers_`.
  bool transposes_ = false;
  std::vector<int64_t> places_;  // Largest first, each a multiple of the next.
  std::vector<Digits> tree_;     // Node i has the halves 2i + 1 and 2i + 2.
};

// PreparationsOf a view: of all that the box has elements of.
std::vector<Preparation> PreparationsOfView(const Tensor& tensor, const Box& box);

}  // namespace shardinit
