// One lambda per alternative, for std::visit; `OneOf<A, B> auto` takes several that are alike.
// Neither takes what nobody thought of, as `auto` would: that does not compile.
#pragma once

#include <concepts>

namespace shardinit {

template <typename... Cases>
struct Overloaded : Cases... {
  using Cases::operator()...;
};
template <typename... Cases>
Overloaded(Cases...) -> Overloaded<Cases...>;  // clang 14 needs it said.

template <typename T, typename... Ts>
concept OneOf = (std::same_as<T, Ts> || ...);

}  // namespace shardinit
