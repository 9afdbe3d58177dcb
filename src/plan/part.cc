#include "plan/part.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "plan/balance.h"

namespace shardinit {

std::vector<int64_t> CutInParts(std::vector<int64_t> bytes, int64_t count) {
  using Wide = __int128;
  Wide all = std::accumulate(bytes.begin(), bytes.end(), Wide{0});
  // A thing belongs to the part that contains the middle of its bytes. If the total is 0, count
  // things instead.
  if (all == 0) {
    std::fill(bytes.begin(), bytes.end(), 1);
    all = std::ssize(bytes);
  }
  std::vector<int64_t> first = {0};
  Wide before = 0;
  for (size_t i = 0; i < bytes.size(); ++i) {
    const Wide twice_middle = 2 * before + bytes[i];
    const auto part =
        static_cast<int64_t>(std::min<Wide>(twice_middle * count / (2 * all), count - 1));
    while (std::ssize(first) <= part) first.push_back(static_cast<int64_t>(i));
    before += bytes[i];
  }
  while (std::ssize(first) <= count) first.push_back(std::ssize(bytes));
  return first;
}

std::vector<int64_t> RanksOfParts(const Plan& plan, int64_t count) {
  const std::vector<TensorKind> kinds = KindsOf(plan);
  std::vector<int64_t> bytes;
  for (int64_t rank = 0; rank < plan.world_size(); ++rank) {
    bytes.push_back(LoadOf(plan, kinds, rank).stored);
  }
  return CutInParts(std::move(bytes), count);
}

}  // namespace shardinit
