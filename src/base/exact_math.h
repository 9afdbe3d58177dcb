// Computes functions that libm may round differently on each machine. Each result is correctly
// rounded, so it is the same everywhere.
//
// Only this file uses MPFR. A call takes microseconds, so use it for scalars, not for elements.
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
double NormalCdf(double z);  // standard normal: (1 + erf(z / sqrt 2)) / 2

}  // namespace shardinit::exact
