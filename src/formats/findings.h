// Collects faults in bounded memory, because a hostile folder may have any number.
#pragma once

#include <cstdint>
#include <iterator>
#include <set>
#include <string>
#include <tuple>
#include <utility>

namespace shardinit {

struct Finding {
  std::string file;    // path within the folder
  std::string tensor;  // empty if not about one tensor
  std::string message;

  bool operator<(const Finding& other) const {
    return std::tie(file, tensor, message) < std::tie(other.file, other.tensor, other.message);
  }
};

// Counts all findings and keeps the first by file, tensor and message, in whatever order they come.
class Findings {
 public:
  static constexpr size_t kMost = 1000;

  void Add(Finding finding) {
    ++count_;
    first_.insert(std::move(finding));
    if (first_.size() > kMost) first_.erase(std::prev(first_.end()));
  }
  bool empty() const { return count_ == 0; }
  int64_t count() const { return count_; }
  int64_t more() const { return count_ - static_cast<int64_t>(first_.size()); }
  auto begin() const { return first_.begin(); }
  auto end() const { return first_.end(); }

 private:
  std::multiset<Finding> first_;
  int64_t count_ = 0;
};

}  // namespace shardinit
