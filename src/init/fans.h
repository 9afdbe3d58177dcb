// fan_in and fan_out of a tensor: how many elements of it meet in one output of
// its layer, and how many elements one input reaches. They follow from the
// whole logical tensor, never from a shard, and from which of its dimensions
// are inputs and which are outputs, which a shape alone does not say.
//
// A [5, 5, 64, 128] kernel of a convolution, with inputs in dimension 2 and
// outputs in 3, has a receptive field of 5 × 5, so fan_in = 64 × 25 = 1600 and
// fan_out = 128 × 25 = 3200.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/diagnostics.h"
#include "tensor/box.h"

namespace shardinit {

// Where a spec says no more than this, of the dimensions that are not in
// `batch`, whatever their number:
enum class FanOrder {
  kOutIn,  // [out, in, …], as in torch.nn.init._calculate_fan_in_and_fan_out.
  kInOut,  // […, in, out], as in jax.nn.initializers and Keras.
};

struct FanAxes {
  std::vector<size_t> in, out;
};

// What a spec says about the dimensions of a tensor. Those that are nowhere in
// it are the receptive field. A batch dimension (the layers of a stack, the
// experts of a layer) counts in neither fan.
struct FanSource {
  std::optional<FanOrder> order;
  std::optional<FanAxes> axes;  // Go before the order.
  std::vector<size_t> batch;
};

// The dimensions of a tensor with so many that are in and out; where nothing says it, by the order
// of PyTorch. None: all but one of them are batch dimensions.
std::optional<FanAxes> DirectionsOf(const FanSource& source, size_t dimensions);

// Numbers that can be asked for. JAX has all of them, the others some.
inline constexpr std::string_view kFanModes[] = {"fan_in", "fan_out", "fan_avg", "fan_geo_avg"};

// One step from what a spec says to the parameters of a distribution:
// `std = gain / sqrt(fan_in) = 1.41421 / sqrt(4096) = 0.0220971`.
struct Working {
  std::string name, formula, numbers;
  double value;
  std::string reason;  // Of fans: what settled which dimensions they are.
};

// The fans of one tensor, for the initializer that may need one: nothing is
// computed, and nothing can be wrong, until it asks.
class Fans {
 public:
  // Of no tensor.
  Fans() = default;
  // `initializer` and its `place` at the tensor are for the message. What is
  // computed goes to `working`, if that is not null.
  Fans(const Shape& shape, const FanSource& source, std::string_view initializer, Span place,
       std::vector<Working>* working = nullptr)
      : shape_(&shape),
        source_(&source),
        initializer_(initializer),
        place_(place),
        working_(working) {}

  // `mode` is one of kFanModes. Where nothing settles which dimensions are in
  // and out, and the two orders give different numbers, reports both of them.
  std::optional<double> Get(std::string_view mode, Diagnostics& diagnostics) const;

  // For what needs to know more of the tensor. Of no tensor: a bug.
  const Shape& shape() const { return *shape_; }
  const FanSource& source() const { return *source_; }

  // Reports a mistake of the tensor, not of the initializer.
  std::nullopt_t Report(std::string message, std::string hint, Diagnostics& diagnostics) const;
  bool reported() const { return reported_; }

  // Whether anyone wants to know how numbers come about.
  bool explains() const { return working_ != nullptr; }
  void Explain(Working step) const { working_->push_back(std::move(step)); }

 private:
  double Combine(std::string_view mode, const FanAxes& axes, std::string_view reason) const;

  const Shape* shape_ = nullptr;
  const FanSource* source_ = nullptr;
  std::string_view initializer_;
  Span place_;
  std::vector<Working>* working_ = nullptr;
  mutable bool reported_ = false;
};

}  // namespace shardinit
