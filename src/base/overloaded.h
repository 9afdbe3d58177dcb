// Combines one lambda per alternative, for std::visit; `OneOf<A, B> auto` takes several that are
// alike. An alternative that nobody thought of does not compile, as it would with `auto`.
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
