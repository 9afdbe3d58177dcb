// What boxes need whole before their first element, such as an orthogonal matrix:
// which of it is in memory, for how many boxes, and what gives way to what.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "graph/graph.h"

namespace shardinit {

// A drawn tensor that a box needs whole, and the memory that this takes, about.
struct Preparation {
  const Tensor* drawn;
  int64_t bytes;
};

// As many are held as fit in the limit, if only those of one box. What no box at work needs is
// kept for the boxes of later ranks, while it fits. Of that the one that was used last gives
// way first: ranks need the same ones in the same order, so it is needed last again.
class Preparations {
 public:
  // What `hold` returns for a tensor keeps its preparation while it lives.
  using Hold = std::function<std::shared_ptr<const void>(const Tensor& drawn)>;

  Preparations(int64_t limit, Hold hold) : limit_(limit), hold_(std::move(hold)) {}

  bool AreHeld(const std::vector<Preparation>& needs) const;
  // A box begins that needs these. False: it has to wait until another ends.
  bool Use(const std::vector<Preparation>& needs);
  // A box ends that needed these.
  void Release(const std::vector<Preparation>& needs);

  int64_t bytes() const { return bytes_; }  // Of all that is held.

 private:
  struct Held {
    int64_t bytes;
    int users = 0;          // Boxes at work.
    int64_t last_used = 0;  // By a box that ended; larger: later.
    std::shared_ptr<const void> holder;
  };
  // Until `added` more fit or nothing is idle.
  void GiveUpIdle(int64_t added);

  const int64_t limit_;
  const Hold hold_;
  std::map<const Tensor*, Held> held_;
  int64_t bytes_ = 0, uses_ = 0;
  int boxes_ = 0;  // At work.
};

}  // namespace shardinit
