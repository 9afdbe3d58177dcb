#include "expr/elementary.h"

#include <cfloat>

#include "expr/elementary-inl.h"

static_assert(FLT_EVAL_METHOD == 0, "f64 operations must be rounded to f64");

namespace shardinit {

namespace {

// Each loop has a fixed operation, so that compilers can vectorize it.
template <typename Operation, typename... Operands>
void ForEach(double* out, size_t n, Operation operation, Operands... of) {
  for (size_t i = 0; i < n; ++i) out[i] = operation(of[i]...);
}

}  // namespace

void Apply(ElementOp op, const double* a, const double* b, const double* c, double* out, size_t n) {
  using F = double;
#define SHARDINIT_ONE(name, result) \
  case ElementOp::name:             \
    return ForEach(                 \
        out, n, [](F x) { return result; }, a);
#define SHARDINIT_TWO(name, result) \
  case ElementOp::name:             \
    return ForEach(                 \
        out, n, [](F x, F y) { return result; }, a, b);
#define SHARDINIT_THREE(name, result) \
  case ElementOp::name:               \
    return ForEach(                   \
        out, n, [](F x, F y, F z) { return result; }, a, b, c);
  switch (op) { SHARDINIT_ELEMENT_OPERATIONS(SHARDINIT_ONE, SHARDINIT_TWO, SHARDINIT_THREE) }
#undef SHARDINIT_ONE
#undef SHARDINIT_TWO
#undef SHARDINIT_THREE
}

double Apply(ElementOp op, double a, double b, double c) {
  double out;
  Apply(op, &a, &b, &c, &out, 1);
  return out;
}

}  // namespace shardinit
