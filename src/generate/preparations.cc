#include "generate/preparations.h"

#include <algorithm>

namespace shardinit {

bool Preparations::AreHeld(const std::vector<Preparation>& needs) const {
  return std::all_of(needs.begin(), needs.end(),
                     [&](const Preparation& need) { return held_.count(need.drawn) != 0; });
}

bool Preparations::Use(const std::vector<Preparation>& needs) {
  if (!AreHeld(needs)) {
    int64_t added = 0, idle = 0;
    for (const auto& [drawn, held] : held_) idle += held.users == 0 ? held.bytes : 0;
    for (const Preparation& need : needs) {
      const auto held = held_.find(need.drawn);
      if (held == held_.end()) added += need.bytes;
      if (held != held_.end() && held->second.users == 0) idle -= held->second.bytes;
    }
    if (boxes_ > 0 && bytes_ - idle + added > limit_) return false;
    // After this loop, no preparation that this box needs is idle.
    for (const Preparation& need : needs) {
      if (const auto held = held_.find(need.drawn); held != held_.end()) ++held->second.users;
    }
    GiveUpIdle(added);
    for (const Preparation& need : needs) {
      if (held_.count(need.drawn) != 0) continue;
      held_[need.drawn] = {.bytes = need.bytes, .users = 1, .holder = hold_(*need.drawn)};
    }
    bytes_ += added;
  } else {
    for (const Preparation& need : needs) ++held_.at(need.drawn).users;
  }
  ++boxes_;
  return true;
}

void Preparations::Release(const std::vector<Preparation>& needs) {
  ++uses_;
  for (const Preparation& need : needs) {
    HeldPreparation& held = held_.at(need.drawn);
    --held.users;
    held.last_used = uses_;
  }
  --boxes_;
  GiveUpIdle(0);
}

void Preparations::GiveUpIdle(int64_t added) {
  while (bytes_ + added > limit_) {
    auto last = held_.end();
    for (auto it = held_.begin(); it != held_.end(); ++it) {
      if (it->second.users > 0) continue;
      if (last == held_.end() || it->second.last_used > last->second.last_used) last = it;
    }
    if (last == held_.end()) return;
    bytes_ -= last->second.bytes;
    held_.erase(last);
  }
}

}  // namespace shardinit
