// Manages preparations: data that boxes need whole before their first element, such as an
// orthogonal matrix. Decides how many are in memory, and which are dropped first.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "graph/graph.h"

namespace shardinit {

// A drawn tensor that a box needs whole, and approximately how much memory this takes.
struct Preparation {
  const Tensor* drawn;
  int64_t bytes;
};

// Holds as many preparations as fit in the limit, but always those that one box needs. Idle ones,
// which no box at work needs, are kept for the boxes of later ranks while they fit. The most
// recently used one is dropped first: ranks need the same ones in the same order, so it will be
// needed last.
class Preparations {
 public:
  // The result of `hold` keeps a tensor's preparation alive.
  using Hold = std::function<std::shared_ptr<const void>(const Tensor& drawn)>;

  Preparations(int64_t limit, Hold hold) : limit_(limit), hold_(std::move(hold)) {}

  bool AreHeld(const std::vector<Preparation>& needs) const;
  // Begins a box with these needs. Returns false if the box must wait until another one ends.
  bool Use(const std::vector<Preparation>& needs);
  // Ends a box with these needs.
  void Release(const std::vector<Preparation>& needs);

  int64_t bytes() const { return bytes_; }  // all held bytes

 private:
  struct HeldPreparation {
    int64_t bytes;
    int users = 0;          // boxes at work
    int64_t last_used = 0;  // The number of the latest Release() of it; larger: later.
    std::shared_ptr<const void> holder;
  };
  // Drops idle preparations until `added` more bytes fit or none is idle.
  void GiveUpIdle(int64_t added);

  const int64_t limit_;
  const Hold hold_;
  std::map<const Tensor*, HeldPreparation> held_;
  int64_t bytes_ = 0, uses_ = 0;
  int boxes_ = 0;  // boxes at work
};

}  // namespace shardinit
