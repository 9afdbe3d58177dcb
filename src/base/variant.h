// A std::variant whose copy may fail for want of memory.
#pragma once

#include <variant>

namespace shardinit {

// libstdc++ 12 takes it for granted that a variant of numbers, strings, vectors and pointers alone
// always has a value (`__never_valueless`), and if a copy of one throws, destroys a value that is
// not there. Assignment copies to a place of its own first. Variants with another alternative do
// not need this.
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
