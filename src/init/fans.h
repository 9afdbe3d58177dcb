// Computes fans. fan_in is the number of elements of a tensor that one output of its layer depends
// on; fan_out is the number that one input affects. Both follow from the whole logical tensor,
// never from a shard. They also depend on which dimensions are inputs and which are outputs; a
// shape alone does not determine this.
//
// Example: a [5, 5, 64, 128] convolution kernel has inputs in dimension 2 and outputs in dimension
// 3. Its receptive field is 5 × 5, so fan_in = 64 × 25 = 1600 and fan_out = 128 × 25 = 3200.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/diagnostics.h"
#include "tensor/box.h"

namespace shardinit {

// The order of the dimensions that are not in `batch`, whatever their number.
enum class FanOrder {
  kOutIn,  // [out, in, …], as in torch.nn.init._calculate_fan_in_and_fan_out
  kInOut,  // […, in, out], as in jax.nn.initializers and Keras
};

struct FanAxes {
  std::vector<size_t> in, out;
};

// A spec's statements about the dimensions of a tensor. Dimensions that it does not mention are the
// receptive field. A batch dimension (the layers of a stack, the experts of a layer) belongs to
// neither fan.
struct FanSource {
  std::optional<FanOrder> order;
  std::optional<FanAxes> axes;  // takes precedence over `order`
  std::vector<size_t> batch;
};

// Returns the in and out dimensions of a tensor of rank `dimensions`. If the source does not give
// them, uses PyTorch's order. Returns nothing if fewer than two non-batch dimensions remain.
std::optional<FanAxes> DirectionsOf(const FanSource& source, size_t dimensions);

// The fan modes. JAX has all of them; PyTorch and Keras have some.
inline constexpr std::string_view kFanModes[] = {"fan_in", "fan_out", "fan_avg", "fan_geo_avg"};

// One step in computing the parameters of a distribution from a spec: `std = gain / sqrt(fan_in) =
// 1.41421 / sqrt(4096) = 0.0220971`.
struct ComputationStep {
  std::string name, formula, numbers;
  double value;
  std::string reason;  // for fans: how their dimensions were determined
};

// The fans of one tensor, for an initializer that may need one. Nothing is computed or reported
// until the initializer calls Get().
class Fans {
 public:
  Fans() = default;
  // The message names `initializer` and its `place` at the tensor.
  Fans(const Shape& shape, const FanSource& source, std::string_view initializer, Span place)
      : shape_(&shape), source_(&source), initializer_(initializer), place_(place) {}

  // Appends the steps of all later computations to `working`.
  void ExplainIn(std::vector<ComputationStep>& working) { working_ = &working; }

  // Returns the fan for `mode`, one of kFanModes. Reports an error if the in and out dimensions are
  // unknown and the two orders give different numbers.
  std::optional<double> Get(std::string_view mode, Diagnostics& diagnostics) const;

  // The tensor itself, for initializers that need more than its fans. Calling these without a
  // tensor is a bug.
  const Shape& shape() const { return *shape_; }
  const FanSource& source() const { return *source_; }

  // Reports a mistake of the tensor, not of the initializer.
  Reported Report(std::string message, std::string hint, Diagnostics& diagnostics) const;
  bool reported() const { return reported_; }

  // Returns whether the caller wants to know how the numbers are computed.
  bool explains() const { return working_ != nullptr; }

  // The engine may draw tensors one after another, so that an all-zero tensor also takes numbers.
  void DrawZeros(bool draws) { draws_zeros_ = draws; }
  bool draws_zeros() const { return draws_zeros_; }

  void Explain(ComputationStep step) const { working_->push_back(std::move(step)); }

 private:
  double Combine(std::string_view mode, const FanAxes& axes, std::string_view reason) const;

  const Shape* shape_ = nullptr;
  const FanSource* source_ = nullptr;
  std::string_view initializer_;
  Span place_;
  std::vector<ComputationStep>* working_ = nullptr;
  bool draws_zeros_ = false;
  mutable bool reported_ = false;
};

}  // namespace shardinit
