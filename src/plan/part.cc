#include "plan/part.h"

#include <algorithm>

#include "plan/balance.h"

namespace shardinit {

std::vector<int64_t> RanksOfParts(const Plan& plan, int64_t count) {
  using Wide = __int128;
  const int64_t ranks = plan.world_size();
  const std::vector<TensorKind> kinds = KindsOf(plan);
  std::vector<int64_t> bytes;
  Wide all = 0;
  for (int64_t rank = 0; rank < ranks; ++rank) {
    bytes.push_back(LoadOf(plan, kinds, rank).stored);
    all += bytes.back();
  }
  // A rank belongs to the part in which the middle of its bytes lies. Where there are no bytes at
  // all, ranks are as good.
  if (all == 0) {
    std::fill(bytes.begin(), bytes.end(), 1);
    all = ranks;
  }
  std::vector<int64_t> first = {0};
  Wide before = 0;
  for (int64_t rank = 0; rank < ranks; ++rank) {
    const Wide twice_middle = 2 * before + bytes[static_cast<size_t>(rank)];
    const auto part =
        static_cast<int64_t>(std::min<Wide>(twice_middle * count / (2 * all), count - 1));
    while (std::ssize(first) <= part) first.push_back(rank);
    before += bytes[static_cast<size_t>(rank)];
  }
  while (std::ssize(first) <= count) first.push_back(ranks);
  return first;
}

}  // namespace shardinit
