// A tensor with its shape, type, distribution and sharding. A model may have millions, mostly from
// a few repeats, so shared properties are stored once.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "base/packed_text.h"
#include "base/shared_value.h"
#include "init/distribution.h"
#include "rng/stream.h"
#include "sharding/partition.h"
#include "tensor/box.h"
#include "tensor/dtype.h"

namespace shardinit {

struct View;

// A trainer may store values in its own convention. Conversions multiply values by `times` and add
// `plus`. On the way back they subtract `plus` and multiply by `back`, or divide by `times` if
// `back` is 0.
struct Convention {
  float times = 1, back = 0, plus = 0;
  bool changes() const { return times != 1 || plus != 0; }
  bool operator==(const Convention& other) const = default;
};

// The properties that many tensors share: everything but names, keys and views.
struct TensorForm {
  Convention convention = {};  // of a stored tensor; used only by conversions
  DType dtype = DType::f32;
  bool is_buffer = false;  // drawn but not trained; for views, call IsBuffer()
  Shape shape = {};
  Distribution distribution = {};
  PartitionSpec partition = {};  // one entry per dimension
};

// A drawn tensor has a distribution; a tensor that is assembled from drawn ones has a view.
class Tensor {
 public:
  Tensor() = default;
  explicit Tensor(std::string_view path) : path_(path) {}

  // Valid as long as this tensor or a copy of it has this path. A zero byte follows the text, for
  // C. This and stream() return `const` because an assignment to a copy would be lost.
  const std::string_view path() const { return path_.view(); }
  const Convention& convention() const { return form_->convention; }
  DType dtype() const { return form_->dtype; }
  bool is_buffer() const { return form_->is_buffer; }
  const Shape& shape() const { return form_->shape; }
  const Distribution& distribution() const { return form_->distribution; }
  const PartitionSpec& partition() const { return form_->partition; }
  // From `key:` or `tie:`. Under an engine of places, the place where the tensor begins.
  const DrawKey& key() const { return own_->key; }
  // The first draw of a drawn tensor. Its key is 0 if nothing is random.
  const Stream stream() const;
  // Null: the tensor is drawn.
  const std::shared_ptr<const View>& view() const { return own_->view; }
  // The tensor whose norms this one holds, set once all tensors are known; else null.
  const std::shared_ptr<const Tensor>& measured() const { return own_->measured; }

  int64_t elements() const { return ElementCount(shape()); }
  int64_t numbers() const { return elements() * InfoOf(dtype()).numbers; }
  Shape shape_in_numbers() const { return InNumbers(shape(), dtype()); }  // as shown
  int64_t bytes() const { return elements() * InfoOf(dtype()).bytes; }

  void set_path(std::string_view path) { path_ = PackedText(path); }
  void set_key(DrawKey key);
  void set_stream(const Stream& stream);
  void set_view(std::shared_ptr<const View> view) { own_.Edit().view = std::move(view); }
  void set_measured(std::shared_ptr<const Tensor> tensor) {
    if (tensor != own_->measured) own_.Edit().measured = std::move(tensor);
  }

  // After an edit, only this tensor uses the form, until FormPool finds an equal one.
  const SharedValue<TensorForm>& form() const { return form_; }
  TensorForm& Edit() { return form_.Edit(); }
  void set_form(SharedValue<TensorForm> form) { form_ = std::move(form); }

 private:
  // Members that few tensors have, or that differ between tensors.
  struct Own {
    DrawKey key = {};
    Stream stream = {};  // without its key and engine
    std::shared_ptr<const View> view = nullptr;
    std::shared_ptr<const Tensor> measured = nullptr;
  };

  PackedText path_;
  uint64_t stream_key_ = 0;
  const Engine* engine_ = Stream().engine;
  SharedValue<TensorForm> form_;
  SharedValue<Own> own_;
};

// Returns the distribution, with the name of the tensor that FromSource takes values from.
Distribution NamedDistribution(const Tensor& tensor);
// Returns the distribution, such as `normal mean 0 std 0.02`.
std::string InText(const Tensor& tensor);

// Lets tensors share forms that are bitwise equal.
class FormPool {
 public:
  // Replaces the tensor's form with an equal form of the pool, or else adds it to the pool. Keeps
  // only the newest forms, which is enough for the tensors of a repeat.
  void ShareForm(Tensor& tensor);

 private:
  std::array<SharedValue<TensorForm>, 512> forms_;
};

}  // namespace shardinit
