#include <gtest/gtest.h>

#include <cstddef>
#include <memory>
#include <new>
#include <string>
#include <variant>
#include <vector>

#include "base/variant.h"

namespace shardinit {
namespace {

// How many allocations a test may still make, and how many it has not freed.
struct Memory {
  int left, held = 0;
} memory;

template <typename T>
struct Limited {
  using value_type = T;
  Limited() = default;
  template <typename U>
  Limited(const Limited<U>&) noexcept {}
  T* allocate(size_t n) {
    if (memory.left-- == 0) throw std::bad_alloc();
    ++memory.held;
    return static_cast<T*>(operator new(n * sizeof(T)));
  }
  void deallocate(T* at, size_t) {
    --memory.held;
    operator delete(at);
  }
  bool operator==(const Limited&) const = default;
};

using Numbers = std::vector<int, Limited<int>>;
using Any = Variant<std::nullptr_t, bool, int, double, std::string, std::shared_ptr<int>, Numbers,
                    std::vector<double, Limited<double>>>;

// A copy that runs out of memory leaks nothing. The types are those in a spec's `config`. With
// std::variant, this test crashes or frees more than it allocated.
TEST(Variant, FailedCopyLeaksNothing) {
  memory.left = 100;
  const std::vector<Any> values = {Numbers{1, 2, 3}, 5, std::string(100, 'x'), Numbers{4},
                                   std::vector<double, Limited<double>>{0.5}};
  const int held = memory.held;
  EXPECT_EQ(held, 3);
  for (int n = 0; n < 3; ++n) {
    memory.left = n;
    EXPECT_THROW(std::vector<Any>{values}, std::bad_alloc);
    EXPECT_EQ(memory.held, held);
    memory.left = n;
    Any assigned = 0.25;
    EXPECT_THROW(for (const Any& value : values) assigned = value, std::bad_alloc);
    assigned = nullptr;
    EXPECT_EQ(memory.held, held);
  }
  memory.left = 3;
  std::vector<Any> copy;
  copy = values;
  EXPECT_EQ(copy, values);
  EXPECT_EQ(memory.held, 2 * held);
}

}  // namespace
}  // namespace shardinit
