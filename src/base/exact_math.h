// These are functions that libm does not promise to round: here each result is the correctly
// rounded one, so it is the same on every machine. They are the only door to MPFR, and are for
// scalars (microseconds a call), not for elements.
#pragma once

namespace shardinit::exact {

double Exp(double x);
double Expm1(double x);
double Log(double x);
double Log1p(double x);
double Pow(double x, double y);
double Sin(double x);
double Cos(double x);
double Tanh(double x);
double Erf(double x);
double NormalCdf(double z);  // the standard normal's: (1 + erf(z / sqrt 2)) / 2

}  // namespace shardinit::exact
