// Warns about standard deviations that no initialization rule gives, and values that a dtype rounds
// to one number. (Values beyond its largest number are an error, graph/validate.h.)
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/overloaded.h"
#include "base/table.h"
#include "graph/warnings/warnings.h"
#include "init/distribution.h"

namespace shardinit {
namespace {

struct Moments {
  double mean, std;
};

double Density(double z) { return std::exp(-z * z / 2) / std::sqrt(2 * M_PI); }
// Returns the probability of a standard normal number between the two, precise in both tails.
double ProbabilityBetween(double low, double high) {
  const double s = std::sqrt(0.5);
  return low > 0 ? (std::erfc(low * s) - std::erfc(high * s)) / 2
                 : (std::erfc(-high * s) - std::erfc(-low * s)) / 2;
}

// Returns nothing for values that are not drawn from one distribution, or that depend on other
// values.
std::optional<Moments> MomentsOf(const Tensor& tensor) {
  using Result = std::optional<Moments>;
  return std::visit(
      Overloaded{
          [](const Uniform& u) -> Result {
            return Moments{(u.low + u.high) / 2, (u.high - u.low) / std::sqrt(12.)};
          },
          [](const Normal& n) -> Result {
            return Moments{n.mean, n.std};
          },
          [](const Sparse& s) -> Result {
            return Moments{0, s.std};
          },
          [&](const Orthogonal& o) -> Result {
            const OrthogonalSize size = SizeOf(o, tensor.shape());
            return Moments{0, std::abs(o.gain) / std::sqrt(static_cast<double>(size.rows))};
          },
          [](const TruncatedNormal& t) -> Result {
            const double kept = ProbabilityBetween(t.low, t.high);
            if (!(kept > 1e-6)) return {};
            const auto moment = [](double z) { return std::isfinite(z) ? z * Density(z) : 0; };
            const double shift = (Density(t.low) - Density(t.high)) / kept;
            const double spread = 1 + (moment(t.low) - moment(t.high)) / kept - shift * shift;
            return Moments{t.mean + t.std * shift, t.std * std::sqrt(std::max(spread, 0.))};
          },
          [](const OneOf<Constant, Expression, Normalized, FromFile, FromSource, RowsLike, Parts,
                         Norm> auto&) -> Result { return {}; },
      },
      tensor.distribution());
}

// What is odd about a tensor's values, and how to fix it.
struct UnusualValues {
  std::string what, hint;
};

// Reports odd tensors, grouped by the initializer that determines their values.
class OddityReport {
 public:
  explicit OddityReport(const WarningContext& context) : context_(context) {
    for (const auto& init : context.building.spec.inits) {
      inits_.try_emplace(init.name.value, &init.value);
    }
  }

  // Calls `find`, which returns UnusualValues or nothing, for every drawn tensor. Consecutive equal
  // tensors of one TensorSpec get one call.
  template <typename Find>
  void Run(const Find& find) {
    struct Last {
      const Tensor* tensor;
      bool is_odd;
    };
    std::unordered_map<const TensorSpec*, Last> known;
    const std::vector<Tensor>& all = context_.graph.logical();
    for (size_t i = 0; i < all.size(); ++i) {
      const TensorSpec& spec = *context_.drawn.specs[i];
      const auto [it, is_new] = known.try_emplace(&spec, Last{&all[i], false});
      Last& last = it->second;
      if (is_new || last.tensor->dtype() != all[i].dtype() ||
          last.tensor->shape() != all[i].shape() ||
          !(last.tensor->distribution() == all[i].distribution())) {
        std::optional<UnusualValues> oddity = find(all[i], spec);
        last = {&all[i], oddity.has_value()};
        if (oddity) Add(spec, all[i].path(), std::move(*oddity));
      } else if (last.is_odd) {
        Add(spec, all[i].path(), {});
      }
    }
    for (const auto& [init, first, oddity, tensors] : found_) {
      const std::string more = tensors == 1 ? "" : fmt::format(" and {} more", tensors - 1);
      context_.Warn(PlaceOf(*init), fmt::format("values of `{}`{} {}", first, more, oddity.what),
                    oddity.hint);
    }
  }

 private:
  struct Finding {
    const InitSpec* init;
    std::string_view first;
    UnusualValues oddity;
    int64_t tensors = 0;
  };

  static Span PlaceOf(const InitSpec& init) {
    for (const auto& argument : init.arguments) {
      if (argument.name.value == "std" && argument.value) return SpanOf(*argument.value);
    }
    return init.name.span;
  }

  void Add(const TensorSpec& spec, std::string_view path, UnusualValues oddity) {
    const InitSpec* init = &*spec.init;
    for (auto named = inits_.find(init->name.value); named != inits_.end();
         named = inits_.find(init->name.value)) {
      init = named->second;
    }
    const auto [place, is_new] = places_.try_emplace(init, found_.size());
    if (is_new) found_.push_back({init, path, std::move(oddity)});
    ++found_[place->second].tensors;
  }

  const WarningContext& context_;
  std::unordered_map<std::string_view, const InitSpec*> inits_;
  std::unordered_map<const InitSpec*, size_t> places_;
  std::vector<Finding> found_;
};

// The range of standard deviations that rules give a tensor. A rule is gain / sqrt(fan) with a
// fan_in or fan_out and a gain from 1 to sqrt(2), a value in between (Xavier), or the constant 0.02
// of GPT-2 and BERT. Lookup tables may also have 1, as in torch.nn.Embedding and T5.
struct RuleRange {
  static constexpr double kConstant = 0.02;
  // Rules have extra factors. For depth, such as GPT-NeoX's 2 / layers: 1 / 64 for the 128 layers
  // of the deepest models. For the width of heads: T5's 1 / sqrt(d_kv). Also muP's. Shipped and
  // imported specs stay within these.
  static constexpr double kLeast = 1 / 64., kMost = 8;

  double low, high;
  double fan_in, fan_out;

  bool Has(double std) const { return std >= low * kLeast && std <= high * kMost; }
};

bool IsTable(const Tensor& tensor, const TensorSpec& spec) {
  constexpr std::string_view kWords[] = {"emb", "vocab", "table", "pos", "tok", "wte", "wpe"};
  const auto says = [&](std::string_view name) {
    return std::ranges::any_of(kWords,
                               [&](std::string_view word) { return name.find(word) != name.npos; });
  };
  return says(tensor.path()) ||
         (spec.axes && std::ranges::any_of(spec.axes->value,
                                           [&](const auto& name) { return says(name.value); }));
}

// Returns nothing for vectors and scalars, which have no fans.
std::optional<RuleRange> RulesOf(const Tensor& tensor, const TensorSpec& spec,
                                 const WarningContext& context) {
  const auto source = context.drawn.fans.find(&spec);
  if (source == context.drawn.fans.end()) return {};
  const auto directions = DirectionsOf(source->second, tensor.shape().size());
  if (!directions) return {};
  double in = 1, out = 1, field = 1;
  for (size_t d = 0; d < tensor.shape().size(); ++d) {
    const auto extent = static_cast<double>(tensor.shape()[d]);
    const bool is_in = Contains(directions->in, d), is_out = Contains(directions->out, d);
    if (is_in) in *= extent;
    if (is_out) out *= extent;
    if (!is_in && !is_out && !Contains(source->second.batch, d)) field *= extent;
  }
  in *= field;
  out *= field;
  const double least = 1 / std::sqrt(std::max(in, out)), most = std::sqrt(2 / std::min(in, out));
  return RuleRange{
      std::min(least, RuleRange::kConstant),
      IsTable(tensor, spec) ? std::max(most, 1.) : std::max(most, RuleRange::kConstant), in, out};
}

// Returns the probability that a value rounds to `*number`, the number that the mean rounds to.
double ProbabilityOfOne(const Tensor& tensor, const Moments& moments, double* number) {
  const DTypeInfo& info = InfoOf(tensor.dtype());
  const int mantissa = std::min(info.mantissa_bits, InfoOf(DType::f32).mantissa_bits);
  const int least = 2 - (1 << (info.exponent_bits - 1));  // the exponent of the smallest numbers
  const auto step = [&](int exponent) {
    return std::ldexp(1, std::max(exponent, least) - mantissa);
  };
  const double mean = std::abs(moments.mean);
  const int exponent = mean == 0 ? least : std::ilogb(mean);
  const double rounded = std::nearbyint(mean / step(exponent)) * step(exponent);
  const bool is_power = rounded > 0 && rounded == std::ldexp(1, std::ilogb(rounded));
  const double above = step(rounded == 0 ? least : std::ilogb(rounded)) / 2;
  const double below = is_power ? step(std::ilogb(rounded) - 1) / 2 : above;
  *number = rounded == 0 ? 0 : std::copysign(rounded, moments.mean);
  const double low = rounded - below, high = rounded + above;
  if (const auto* u = std::get_if<Uniform>(&tensor.distribution())) {
    const double half = (u->high - u->low) / 2;
    return (std::min(high, mean + half) - std::max(low, mean - half)) / (2 * half);
  }
  if (const auto* t = std::get_if<TruncatedNormal>(&tensor.distribution())) {
    const bool is_mirrored = std::signbit(moments.mean);
    const double centre = is_mirrored ? -t->mean : t->mean;
    const double first = is_mirrored ? -t->high : t->low, last = is_mirrored ? -t->low : t->high;
    const double from = std::max((low - centre) / t->std, first);
    const double to = std::min((high - centre) / t->std, last);
    return from < to ? ProbabilityBetween(from, to) / ProbabilityBetween(first, last) : 0;
  }
  return ProbabilityBetween((low - mean) / moments.std, (high - mean) / moments.std);
}

// Returns how a spec can state that it intends this standard deviation.
std::string HintForMeant(const Distribution& distribution) {
  if (const auto* n = std::get_if<Normal>(&distribution)) {
    return fmt::format(
        "if this is intended, `{{expr: \"{}normal() * {}\"}}` has such values, except for rounding",
        n->mean == 0 ? "" : fmt::format("{} + ", n->mean), n->std);
  }
  if (const auto* u = std::get_if<Uniform>(&distribution)) {
    return fmt::format(
        "if this is intended, `{{expr: \"{} + uniform() * {}\"}}` has such values, except for "
        "rounding",
        u->low, u->high - u->low);
  }
  return "if this is intended, `-q` hides warnings";
}

std::optional<UnusualValues> DeviationOf(const Tensor& tensor, const TensorSpec& spec,
                                         const WarningContext& context) {
  const auto moments = MomentsOf(tensor);
  if (!moments || moments->std == 0 || tensor.is_buffer()) return {};
  // Floats of one byte are stored with a separate scale, which is not part of their values.
  if (InfoOf(tensor.dtype()).bytes == 1) return {};
  const auto rules = RulesOf(tensor, spec, context);
  if (!rules || rules->Has(moments->std)) return {};
  const bool is_large = moments->std > rules->high;
  return UnusualValues{
      fmt::format("have the standard deviation {:.3g}, {:.0f} times {} that rules give for fans of "
                  "{} and {}, {:.3g}",
                  moments->std, is_large ? moments->std / rules->high : rules->low / moments->std,
                  is_large ? "the largest" : "smaller than the smallest", rules->fan_in,
                  rules->fan_out, is_large ? rules->high : rules->low),
      fmt::format("`xavier_normal` and `kaiming_normal` are such rules; {}",
                  HintForMeant(tensor.distribution()))};
}

std::optional<UnusualValues> RoundingOf(const Tensor& tensor) {
  const DTypeInfo& info = InfoOf(tensor.dtype());
  if (!info.is_float()) return {};
  double number = 0, part = 0;
  const auto* constant = std::get_if<Constant>(&tensor.distribution());
  if (constant != nullptr) {
    // A constant is one number anyway, but it must not become 0.
    if (constant->value == 0) return {};
    ProbabilityOfOne(tensor, {constant->value, 1}, &number);
    if (number != 0) return {};
    part = 1;
  } else if (const auto moments = MomentsOf(tensor); moments && moments->std > 0) {
    part = ProbabilityOfOne(tensor, *moments, &number);
  }
  if (!(part > 0.5)) return {};
  const std::string written = number == 0 ? "zeros" : fmt::format("{{constant: {}}}", number);
  return UnusualValues{fmt::format("are {}: in {}, {:.3g} % of them become {}", InText(tensor),
                                   info.name, 100 * part, number),
                       fmt::format("choose {}, or write `{}` if that is intended",
                                   number == 0 ? "a dtype with smaller numbers, such as bf16"
                                               : "a dtype with more digits, such as f32",
                                   written)};
}

}  // namespace

void WarnOfDeviations(const WarningContext& context) {
  OddityReport(context).Run([&](const Tensor& tensor, const TensorSpec& spec) {
    return DeviationOf(tensor, spec, context);
  });
}

void WarnOfRounding(const WarningContext& context) {
  OddityReport(context).Run(
      [](const Tensor& tensor, const TensorSpec&) { return RoundingOf(tensor); });
}

}  // namespace shardinit
