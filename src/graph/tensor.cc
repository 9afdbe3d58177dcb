#include "graph/tensor.h"

#include <array>
#include <bit>
#include <functional>
#include <string>

namespace shardinit {
namespace {

// Mixes numbers into one number that is the same for equal forms.
class Mixer {
 public:
  void Add(uint64_t value) { mixed_ = (std::rotl(mixed_, 23) ^ value) * 0x9E3779B97F4A7C15; }
  void Add(double value) { Add(std::bit_cast<uint64_t>(value)); }
  void Add(const std::string& text) { Add(uint64_t{std::hash<std::string>()(text)}); }
  void Add(const auto& /*of another kind*/) {}
  // Returns a number from 0 to `end` - 1.
  size_t Below(size_t end) const { return static_cast<size_t>((mixed_ >> 32) % end); }

 private:
  uint64_t mixed_ = 0;
};

size_t PlaceOf(const TensorForm& form, size_t end) {
  Mixer mixer;
  mixer.Add(static_cast<uint64_t>(form.dtype));
  for (const int64_t extent : form.shape) mixer.Add(static_cast<uint64_t>(extent));
  mixer.Add(uint64_t{form.distribution.index()});
  std::visit(
      [&](const auto& each) {
        ForEachMember(each, [&](const auto&, const auto& value) { mixer.Add(value); });
      },
      form.distribution);
  for (const DimensionPartition& by : form.partition.dimensions)
    mixer.Add(uint64_t{by.axes.size()});
  for (const Pin& pin : form.partition.pins) {
    mixer.Add(static_cast<uint64_t>(pin.axis));
    for (const int64_t index : pin.indices) mixer.Add(static_cast<uint64_t>(index));
  }
  return mixer.Below(end);
}

bool AreIdentical(const Convention& a, const Convention& b) {
  const auto bits = [](const Convention& of) {
    return std::bit_cast<std::array<uint32_t, 3>>(std::array{of.times, of.back, of.plus});
  };
  return bits(a) == bits(b);
}

bool AreIdentical(const TensorForm& a, const TensorForm& b) {
  return a.dtype == b.dtype && a.is_buffer == b.is_buffer && a.shape == b.shape &&
         a.partition == b.partition && AreIdentical(a.convention, b.convention) &&
         AreIdentical(a.distribution, b.distribution);
}

}  // namespace

const Stream Tensor::stream() const {
  Stream stream = own_->stream;
  stream.key = stream_key_;
  stream.engine = engine_;
  return stream;
}

void Tensor::set_key(DrawKey key) {
  const auto is_default = [](const DrawKey& of) {
    const auto* const path = std::get_if<DrawPath>(&of);
    return path != nullptr && path->path.empty();
  };
  if (!is_default(key) || !is_default(own_->key)) own_.Edit().key = std::move(key);
}

void Tensor::set_stream(const Stream& stream) {
  stream_key_ = stream.key;
  engine_ = stream.engine;
  Stream rest = stream;
  rest.key = 0;
  rest.engine = Stream().engine;
  if (rest != own_->stream) own_.Edit().stream = rest;
}

Distribution NamedDistribution(const Tensor& tensor) {
  Distribution named = tensor.distribution();
  if (auto* const from = std::get_if<FromSource>(&named); from != nullptr && from->tensor.empty()) {
    from->tensor = tensor.path();
  }
  return named;
}

std::string InText(const Tensor& tensor) { return InText(NamedDistribution(tensor)); }

void FormPool::ShareForm(Tensor& tensor) {
  SharedValue<TensorForm>& known = forms_[PlaceOf(*tensor.form(), forms_.size())];
  if (tensor.form().IsSharedWith(known)) return;
  if (AreIdentical(*known, *tensor.form())) {
    tensor.set_form(known);
  } else {
    known = tensor.form();
  }
}

}  // namespace shardinit
