// Combines one lambda per alternative for std::visit. `OneOf<A, B> auto` takes several similar
// alternatives; unlike `auto`, it does not compile if an alternative was forgotten.
#pragma once

#include <concepts>

namespace shardinit {

template <typename... Cases>
struct Overloaded : Cases... {
  using Cases::operator()...;
};
template <typename... Cases>
Overloaded(Cases...) -> Overloaded<Cases...>;  // clang 14 needs this guide

template <typename T, typename... Ts>
concept OneOf = (std::same_as<T, Ts> || ...);

}  // namespace shardinit
