#include "init/distribution.h"

#include <algorithm>
#include <cmath>

namespace shardinit {
namespace {

struct Largest {
  double operator()(const Constant& c) const { return std::fabs(c.value); }
  double operator()(const Uniform& u) const {
    return std::max(std::fabs(u.low), std::fabs(u.high));
  }
  double operator()(const Normal& n) const { return std::fabs(n.mean) + 7 * n.std; }
  double operator()(const Expression&) const { return 0; }
  double operator()(const TruncatedNormal& t) const {
    const double sigmas = std::max(std::fabs(t.low), std::fabs(t.high));
    return std::fabs(t.mean) + std::min(7.0, sigmas) * t.std;
  }
};

}  // namespace

double LargestMagnitude(const Distribution& distribution) {
  return std::visit(Largest(), distribution);
}

}  // namespace shardinit
