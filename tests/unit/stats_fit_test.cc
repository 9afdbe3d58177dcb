#include <gtest/gtest.h>

#include <cmath>

#include "stats/fit.h"

namespace shardinit {
namespace {

// Makes two bins on [0, 1), the first with `first` of `total` elements.
Fit FitOfHalves(int64_t first, int64_t total) {
  const Bin bins[] = {{0, 0.4, 0, 0.5, first}, {0.5, 0.9, 0.5, 1, total - first}};
  return FitOf(bins, Uniform{0, 1}).value();
}

// The probabilities equal scipy.special.kolmogorov's.
TEST(Fit, FitIsTheKolmogorovSmirnovTest) {
  EXPECT_NEAR(FitOfHalves(5136, 10000).distance, 0.0136, 1e-15);
  EXPECT_NEAR(FitOfHalves(5136, 10000).probability, 0.04904424380124727, 1e-14);
  EXPECT_NEAR(FitOfHalves(4920, 10000).probability, 0.542566960026158, 1e-12);
  EXPECT_NEAR(FitOfHalves(5300, 10000).probability, 2.9159787511501395e-08, 1e-20);
  EXPECT_NEAR(FitOfHalves(52, 100).probability, 0.9999999999988989, 1e-10);
  EXPECT_EQ(FitOfHalves(5000, 10000).probability, 1);
}

TEST(Fit, FitComparesAtTheEndsOfBins) {
  const auto distance = [](double from, double to, const Distribution& distribution) {
    const Bin bin = {from, to, from, to, 7};
    return FitOf(std::span(&bin, 1), distribution).value().distance;
  };
  // All elements are in the bin, so elements that the distribution has outside are missing.
  EXPECT_DOUBLE_EQ(distance(-INFINITY, INFINITY, Normal{0, 1}), 0);
  EXPECT_NEAR(distance(1 - 8, INFINITY, Normal{1, 2}), 3.167124183311986e-05, 1e-15);
  EXPECT_DOUBLE_EQ(distance(0.1, 0.7, Uniform{0, 1}), 0.3);
  // scipy.stats.truncnorm.cdf(1, 0.5, 3); mean 10, std 2, so 1 is at 12.
  EXPECT_DOUBLE_EQ(distance(12, 20, TruncatedNormal{10, 2, 0.5, 3}), 0.48791769244277156);
}

TEST(Fit, FitSkipsTensorsThatAreNotDrawn) {
  const Bin bin = {0, 0, -1, 1, 5};
  EXPECT_FALSE(FitOf(std::span(&bin, 1), Constant{0}));
  EXPECT_FALSE(FitOf(std::span(&bin, 1), Normal{0, 0}));
  EXPECT_FALSE(FitOf({}, Normal{0, 1}));
}

TEST(DeclaredMoments, DeclaredMomentsMatchTheDistribution) {
  const auto of = [](const Distribution& d) { return DeclaredMomentsOf(d).value(); };
  EXPECT_EQ(of(Normal{1, 2}).mean, 1);
  EXPECT_EQ(of(Normal{1, 2}).std, 2);
  EXPECT_EQ(of(Uniform{-1, 2}).mean, 0.5);
  EXPECT_DOUBLE_EQ(of(Uniform{-1, 2}).std, std::sqrt(0.75));
  EXPECT_EQ(of(Constant{4}).std, 0);
  // From scipy.stats.truncnorm.stats.
  EXPECT_NEAR(of(TruncatedNormal{0, 1, -2, 2}).std, 0.8796256610342398, 1e-14);
  EXPECT_NEAR(of(TruncatedNormal{10, 2, 0.5, 3}).mean, 10 + 2 * 1.1316649249513497, 1e-13);
  EXPECT_NEAR(of(TruncatedNormal{10, 2, 0.5, 3}).std, 2 * 0.4990982211099089, 1e-13);
  EXPECT_NEAR(of(TruncatedNormal{0, 1, -1, 40}).std, 0.7935277473262076, 1e-14);
}

}  // namespace
}  // namespace shardinit
