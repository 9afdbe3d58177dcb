// Defines a std::variant whose copy may fail for lack of memory.
#pragma once

#include <variant>

namespace shardinit {

// libstdc++ 12 assumes that a variant of only numbers, strings, vectors and pointers always has a
// value (`__never_valueless`). If a copy of such a variant throws, the library destroys a value
// that does not exist. Assignment first copies to a temporary, so the copy constructor assigns.
// Variants with other alternatives do not need this.
template <typename... Types>
struct Variant : std::variant<Types...> {
  using Base = std::variant<Types...>;
  using Base::Base;
  using Base::operator=;
  Variant() = default;
  Variant(const Variant& other) : Base() { Base::operator=(other); }
  Variant(Variant&&) noexcept = default;
  Variant& operator=(const Variant&) = default;
  Variant& operator=(Variant&&) noexcept = default;
  ~Variant() = default;
};

}  // namespace shardinit
