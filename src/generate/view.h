// Makes the values of a tensor that is put together from drawn ones.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "generate/fill.h"
#include "graph/stored/view.h"

namespace shardinit {

// Makes only what a stretch needs, in runs along the drawn tensors' last dimension. Runs that do
// not lie along the stored tensor's last dimension are made by the tile and moved to their places.
class ViewFiller {
 public:
  // Returns the filler of a drawn tensor that the view is made of.
  using FillerFunction = std::function<std::unique_ptr<const Filler>(const Tensor& drawn)>;
  ViewFiller(const Tensor& tensor, const Box& box, const FillerFunction& filler_of = FillerOf);

  // These do what BoxFiller's do.
  void Prepare() const;
  void Fill(int64_t first, int64_t count, void* out) const;

  // Returns whether runs are moved; longer stretches then have longer runs.
  bool transposes() const { return transposes_; }

 private:
  // An index has one digit for each of `places_`. For each digit, `low` and `high` bound the
  // indices of pieces, or of a stretch.
  struct Digits {
    std::vector<int64_t> low, high;
  };
  Digits DigitsOf(const Piece& piece) const;
  void ChoosePlaces(const Shape& shape);
  void BuildTree(size_t node, size_t begin, size_t end);

  // Finds the parts of pieces with indices in [first, last); the first `level` digits are settled.
  void Find(int64_t first, int64_t last, size_t level, Digits* wanted,
            std::vector<Piece>* parts) const;
  void Search(size_t node, size_t begin, size_t end, const Digits& wanted, int64_t first,
              int64_t last, std::vector<Piece>* parts) const;

  void MakePart(const Piece& part, uint8_t* out) const;
  void MakeMoved(const Piece& part, uint8_t* out) const;

  const int64_t element_bytes_;
  std::vector<std::unique_ptr<const Filler>> fillers_;
  std::vector<Piece> pieces_;  // The box's pieces by their first index; sources are in `fillers_`.
  bool transposes_ = false;
  std::vector<int64_t> places_;  // Largest first, each a multiple of the next.
  std::vector<Digits> tree_;     // Node i has the halves 2i + 1 and 2i + 2.
};

// Does what PreparationsOf does for a view: lists those of every tensor that the box has elements
// of.
std::vector<Preparation> PreparationsOfView(const Tensor& tensor, const Box& box);

}  // namespace shardinit
