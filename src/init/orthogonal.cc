// Implements orthogonal matrices: torch.nn.init.orthogonal_, jax.nn.initializers.orthogonal and
// delta_orthogonal, keras.initializers.Orthogonal. These systems differ in how they treat a tensor
// of more than two dimensions as a matrix.
#include <fmt/format.h>

#include "init/gain.h"
#include "init/initializer.h"

namespace shardinit {
namespace {

constexpr std::string_view kOut[] = {"out"};
constexpr Parameter kFactor = {"gain",
                               "a factor: a number, or a nonlinearity, for its gain in PyTorch",
                               1.0, kNonlinearities, true};
constexpr Parameter kGainColumn[] = {
    kFactor,
    {"column_axis",
     "the dimension of the columns, by position or name; all others are the rows; `out`: the "
     "output dimension by `fans`",
     "out", kOut, true, true},
};
constexpr Parameter kGain[] = {kFactor};

DimensionSet SetOf(const std::vector<size_t>& dimensions) {
  DimensionSet set = 0;
  for (const size_t d : dimensions) set |= DimensionSet{1} << d;
  return set;
}

DimensionSet AllOf(const Shape& shape) {
  return static_cast<DimensionSet>((uint64_t{1} << shape.size()) - 1);
}

// Returns a matrix of dimensions `one` by `other`. A matrix and its transpose have the same
// distribution, so `rows` always gets the first dimension.
std::optional<Distribution> MatrixOf(double gain, DimensionSet one, DimensionSet other,
                                     std::string_view name, const Fans& fans,
                                     Diagnostics& diagnostics) {
  if (gain == 0 && !fans.draws_zeros()) return Constant{0};
  const bool first = (one & -one) < (other & -other);
  const Orthogonal orthogonal{gain, first ? one : other, first ? other : one};
  const OrthogonalSize size = SizeOf(orthogonal, fans.shape());
  if (size.operations <= kMaxOperations && size.bytes <= kMaxMatrixBytes) return orthogonal;
  return fans.Report(
      fmt::format("this `{}` matrix is {} × {}: it needs about {:.2g} operations and {:.2g} bytes "
                  "of memory, but at most {:.0e} and {:.2g} are allowed",
                  name, size.rows, size.columns, size.operations, size.bytes, kMaxOperations,
                  kMaxMatrixBytes),
      "make it of several tensors; or use `normal` with `std` gain / sqrt of the longer side, "
      "whose columns are nearly orthogonal",
      diagnostics);
}

// Returns the input and output dimensions, if the spec gives them.
std::optional<FanAxes> GivenAxes(const Fans& fans) {
  const FanSource& source = fans.source();
  if (!source.axes && !source.order) return {};
  return DirectionsOf(source, fans.shape().size());
}

bool CheckArguments(std::string_view name, Arguments a, size_t lowest, size_t highest,
                    const Fans& fans, Diagnostics& diagnostics) {
  if (a[0].word.empty() && !CheckMagnitude("gain", a[0], diagnostics)) return false;
  const size_t rank = fans.shape().size();
  if (rank < lowest || rank > highest) {
    return fans.Report(fmt::format("`{}` needs {} dimensions, but this tensor has {}", name,
                                   highest > 5 ? "2 or more" : "3 to 5", rank),
                       "", diagnostics);
  }
  if (fans.source().batch.empty()) return true;
  return fans.Report(
      fmt::format("`{}` makes one matrix of a tensor, so `batch_axis` has no effect", name),
      "make each matrix a separate tensor, with `repeat`", diagnostics);
}

std::optional<Distribution> LowerOrthogonal(Arguments a, const Fans& fans,
                                            Diagnostics& diagnostics) {
  if (!CheckArguments("orthogonal", a, 2, 32, fans, diagnostics)) return {};
  const Shape& shape = fans.shape();
  DimensionSet column = 0;
  if (a[1].word.empty()) {
    column = DimensionSet{1} << static_cast<int>(a[1].value);
  } else if (const auto axes = GivenAxes(fans)) {
    column = SetOf(axes->out);
  } else if (shape.size() == 2) {
    column = 2;
  } else {
    const int64_t all = ElementCount(shape), first = shape.front(), last = shape.back();
    return fans.Report(
        fmt::format("`orthogonal` needs to know the matrix, which is {} × {} if the shape is [out, "
                    "in, …] and {} × {} if it is […, in, out]",
                    first, all / first, all / last, last),
        "write `fans: out_in` (PyTorch), `fans: in_out` (JAX, Keras) or `column_axis`",
        diagnostics);
  }
  return MatrixOf(GainOf(a[0], fans), column, AllOf(shape) & ~column, "orthogonal", fans,
                  diagnostics);
}

// Lowers the convolution of Xiao et al. 2018, which preserves lengths: it is orthogonal at the
// centre of its receptive field and zero elsewhere.
std::optional<Distribution> LowerDelta(Arguments a, const Fans& fans, Diagnostics& diagnostics) {
  if (!CheckArguments("delta_orthogonal", a, 3, 5, fans, diagnostics)) return {};
  const Shape& shape = fans.shape();
  const std::optional<FanAxes> axes = GivenAxes(fans);
  if (!axes) {
    return fans.Report(
        "`delta_orthogonal` needs to know which dimensions are inputs and outputs",
        "write `fans: in_out` (JAX), `fans: out_in` (PyTorch), or `in_axis` and `out_axis`",
        diagnostics);
  }
  int64_t in = 1, out = 1;
  for (const size_t d : axes->in) in *= shape[d];
  for (const size_t d : axes->out) out *= shape[d];
  if (out < in) {
    return fans.Report(fmt::format("`delta_orthogonal` needs at least as many outputs as inputs, "
                                   "but this tensor has {} and {}",
                                   out, in),
                       "fewer dimensions cannot preserve lengths", diagnostics);
  }
  return MatrixOf(GainOf(a[0], fans), SetOf(axes->in), SetOf(axes->out), "delta_orthogonal", fans,
                  diagnostics);
}

constexpr Initializer kOrthogonalsRows[] = {
    {.name = "orthogonal",
     .description =
         "an orthogonal matrix, as of PyTorch, JAX and Keras: uniformly distributed among those "
         "with orthonormal columns (or rows, if these are fewer), times `gain`",
     .parameters = kGainColumn,
     .lower = LowerOrthogonal},
    {.name = "delta_orthogonal",
     .description =
         "a convolution that is an orthogonal matrix at its centre, else zeros, as of JAX",
     .parameters = kGain,
     .lower = LowerDelta},
};

}  // namespace

extern constinit const std::span<const Initializer> kOrthogonals = kOrthogonalsRows;

}  // namespace shardinit
