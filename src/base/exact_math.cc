#include "base/exact_math.h"

#include <mpfr.h>

#include "base/error.h"

namespace shardinit::exact {
namespace {

// Sets MPFR's exponent range to the range of double, including subnormals. With double's precision,
// a function then rounds once, from the true value to the double.
class DoubleRange {
 public:
  DoubleRange() : emin_(mpfr_get_emin()), emax_(mpfr_get_emax()) {
    mpfr_set_emin(-1073);
    mpfr_set_emax(1024);
  }
  ~DoubleRange() {
    mpfr_set_emin(emin_);
    mpfr_set_emax(emax_);
  }

 private:
  mpfr_exp_t emin_, emax_;  // MPFR's own range, per thread
};

// Frees the constants that MPFR caches per thread. An MPFR that shared them and the exponent range
// among threads would compute wrong values or crash.
struct Constants {
  Constants() { Check(mpfr_buildopt_tls_p() != 0, "MPFR was built for one thread"); }
  ~Constants() { mpfr_free_cache2(MPFR_FREE_LOCAL_CACHE); }
};

class Number {
 public:
  explicit Number(mpfr_prec_t precision) {
    [[maybe_unused]] thread_local const Constants constants;
    mpfr_init2(value_, precision);
  }
  explicit Number(double value) : Number(mpfr_prec_t{53}) { mpfr_set_d(value_, value, MPFR_RNDN); }
  ~Number() { mpfr_clear(value_); }
  Number(const Number&) = delete;
  Number& operator=(const Number&) = delete;
  operator mpfr_ptr() { return value_; }

 private:
  mpfr_t value_;
};

template <typename Function, typename... Arguments>
double Rounded(Function function, Arguments... arguments) {
  const DoubleRange range;
  Number result(mpfr_prec_t{53});
  const int inexact = function(result, Number(arguments)..., MPFR_RNDN);
  mpfr_subnormalize(result, inexact, MPFR_RNDN);
  return mpfr_get_d(result, MPFR_RNDN);
}

}  // namespace

double Exp(double x) { return Rounded(mpfr_exp, x); }
double Expm1(double x) { return Rounded(mpfr_expm1, x); }
double Log(double x) { return Rounded(mpfr_log, x); }
double Log1p(double x) { return Rounded(mpfr_log1p, x); }
double Pow(double x, double y) { return Rounded(mpfr_pow, x, y); }
double Sin(double x) { return Rounded(mpfr_sin, x); }
double Cos(double x) { return Rounded(mpfr_cos, x); }
double Tanh(double x) { return Rounded(mpfr_tanh, x); }
double Erf(double x) { return Rounded(mpfr_erf, x); }

double NormalCdf(double z) {
  // Computes erfc(-z / sqrt 2) / 2 with enough digits that only the last step, to double, rounds
  // visibly.
  constexpr mpfr_prec_t kDigits = 320;
  Number x(kDigits), root(kDigits);
  mpfr_sqrt_ui(root, 2, MPFR_RNDN);
  mpfr_set_d(x, -z, MPFR_RNDN);
  mpfr_div(x, x, root, MPFR_RNDN);
  mpfr_erfc(x, x, MPFR_RNDN);
  mpfr_div_2ui(x, x, 1, MPFR_RNDN);
  return mpfr_get_d(x, MPFR_RNDN);
}

}  // namespace shardinit::exact
