// One lambda per alternative, for std::visit.
#pragma once

namespace shardinit {

template <typename... Cases>
struct Overloaded : Cases... {
  using Cases::operator()...;
};
template <typename... Cases>
Overloaded(Cases...) -> Overloaded<Cases...>;  // clang 14 needs it said.

}  // namespace shardinit
