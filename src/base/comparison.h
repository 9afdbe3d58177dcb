// Compares a text that arrives in pieces with a known one.
#pragma once

#include <algorithm>
#include <string_view>

namespace shardinit {

class Comparison {
 public:
  explicit Comparison(std::string_view wanted) : rest_(wanted) {}

  void Add(std::string_view text) {
    equal_ = equal_ && rest_.starts_with(text);
    rest_.remove_prefix(std::min(rest_.size(), text.size()));
  }
  bool equal() const { return equal_; }  // So far: the wanted text may be longer.
  bool at_end() const { return rest_.empty(); }

 private:
  std::string_view rest_;
  bool equal_ = true;
};

}  // namespace shardinit
