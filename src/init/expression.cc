// Defines initializers whose values are functions of the index. Each row gives the expression that
// computes them, in which the row's parameters are names.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "init/initializer.h"

namespace shardinit {
namespace {

constexpr Parameter kDiagonalGain[] = {{"gain", "the number on the diagonal", 1.0}};
constexpr Parameter kGroups[] = {{"groups", "how many groups of output channels", 1.0}};
constexpr Parameter kStartStep[] = {{"start", "the first element", 0.0},
                                    {"step", "between neighbours", 1.0}};

std::optional<std::string> Diagonal(Arguments, const Shape& shape, Span span,
                                    Diagnostics& diagnostics) {
  if (shape.size() == 2) return "where(row == col, gain, 0)";
  return diagnostics.Error(
      span,
      fmt::format("an identity matrix has 2 dimensions, but this tensor has {}", shape.size()));
}

// Implements torch.nn.init.dirac_: in each group, output channel d passes on input channel d.
std::optional<std::string> Dirac(Arguments a, const Shape& shape, Span span,
                                 Diagnostics& diagnostics) {
  if (shape.size() < 3 || shape.size() > 5) {
    return diagnostics.Error(
        span,
        fmt::format(
            "`dirac` needs the 3 to 5 dimensions of a convolution's weight, but this tensor has {}",
            shape.size()));
  }
  const double groups = a[0].value;
  const auto whole = static_cast<int64_t>(groups >= 1 && groups <= 0x1p53 ? groups : 0);
  if (whole == 0 || static_cast<double>(whole) != groups || shape[0] % whole != 0) {
    return diagnostics.Error(
        a[0].span,
        fmt::format("`groups` is {}, but must divide dimension 0, which is {}", groups, shape[0]));
  }
  std::string text = "(mod(i0, n0 / groups) == i1)";
  for (size_t d = 2; d < shape.size(); ++d) text += fmt::format(" * (i{0} == floor(n{0} / 2))", d);
  return text;
}

constexpr std::string_view kSides[] = {"real", "imag"};
constexpr std::string_view kWindows[] = {"hann", "hamming", "none"};
constexpr std::string_view kScalings[] = {"density", "spectrum", "none"};
constexpr Parameter kStftParameters[] = {
    {"side", "which part of the transform", "real", kSides},
    {"window", "the window that multiplies each frame", "hann", kWindows},
    {"scaling", "the quantity of the window that is scaled to 1: the sum of its squares or its sum",
     "density", kScalings},
    {"periodic", "1: the window has the period of the frame; 0: it ends as it starts", 0.0},
};

// Implements keras.initializers.STFT: returns the real or imaginary parts of the lower half of a
// discrete Fourier transform, times a window a - (1 - a) cos(2 pi t / period). The window may be
// scaled to a sum of squares or a sum of 1.
std::optional<std::string> Stft(Arguments a, const Shape& shape, Span span,
                                Diagnostics& diagnostics) {
  if (shape.size() != 3 || shape[1] != 1 || shape[2] < 2) {
    return diagnostics.Error(span,
                             fmt::format("`stft` needs the shape [length of a frame, 1, half the "
                                         "length of the transform + 1], the last at least 2, but "
                                         "this tensor is [{}]",
                                         fmt::join(shape, ", ")));
  }
  if (a[3].value != 0 && a[3].value != 1) {
    return diagnostics.Error(a[3].span,
                             fmt::format("`periodic` is {}, but must be 0 or 1", a[3].value));
  }
  constexpr double kTwoPi = 0x1.921fb54442d18p+2;
  const int64_t turn = 2 * (shape[2] - 1);
  const std::string angle = fmt::format("{} * mod(i0 * i2, {}) / {}", kTwoPi, turn, turn);
  const std::string part = a[0].word == "real" ? "cos(" + angle + ")" : "-sin(" + angle + ")";
  if (a[1].word == "none") return part;

  const double low = a[1].word == "hann" ? 0.5 : 0.54, high = 1 - low;
  const bool periodic = a[3].value == 1;
  const int64_t period = std::max<int64_t>(1, shape[0] - (periodic ? 0 : 1));
  // Over a period, the cosines add up to 0. Their squares add up to half of the period, or to the
  // whole period if each cosine is 1 or -1.
  const auto count = static_cast<double>(period);
  double sum = low * count, squares = (low * low + high * high * (period > 2 ? 0.5 : 1)) * count;
  if (period == 1) sum = low - high, squares = sum * sum;
  if (!periodic) {
    sum += low - high;
    squares += (low - high) * (low - high);
  }
  std::string window = fmt::format("({} - {} * cos({} * i0 / {}))", low, high, kTwoPi, period);
  if (shape[0] == 1) window = "1", sum = squares = 1;
  const double scale = a[2].word == "density"    ? std::sqrt(squares)
                       : a[2].word == "spectrum" ? sum
                                                 : 1;
  if (scale == 0) {
    return diagnostics.Error(span,
                             fmt::format("this window of {} elements is 0 everywhere", shape[0]));
  }
  return fmt::format("{} * {} / {}", part, window, scale);
}

constexpr Initializer kOfIndexRows[] = {
    // `lower` is null, because lowering needs the spec's own expression.
    {.name = "expr",
     .description =
         "each element as an expression over draws `normal() uniform() bits()`, indices `row col "
         "index i0 i1` and names of axes, sizes `n0 n1`, and `vars`; such as \"where(row >= col, "
         "normal() * 0.02, 0)\""},
    {.name = "eye",
     .description = "ones where the row is the column, else zeros",
     .parameters = kDiagonalGain,
     .formula = Diagonal},
    {.name = "identity",
     .description = "as `eye`",
     .parameters = kDiagonalGain,
     .formula = Diagonal},
    {.name = "dirac",
     .description = "the identity of a convolution, as torch.nn.init.dirac_",
     .parameters = kGroups,
     .formula = Dirac},
    {.name = "arange",
     .description = "start + step * index",
     .parameters = kStartStep,
     .formula = [](Arguments, const Shape&, Span, Diagnostics&) -> std::optional<std::string> {
       return "start + step * index";
     }},
    {.name = "stft",
     .description = "the kernel of a short-time Fourier transform, as of Keras",
     .parameters = kStftParameters,
     .formula = Stft},
};

}  // namespace

extern constinit const std::span<const Initializer> kOfIndex = kOfIndexRows;

}  // namespace shardinit
