// A tensor with its shape, type, distribution and sharding. A model may have millions, most of them
// of a few repeats, so what the tensors of a repeat have in common is kept once.
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

// A drawn tensor has a distribution; a tensor that is put together from drawn ones has a view.
// A trainer may store values in a convention of its own, and conversions follow it: values are
// multiplied by `times`, and `plus` is added. On the way back that is subtracted, and they
// are multiplied by `back` or, where that is 0, divided by `times`.
struct Convention {
  float times = 1, back = 0, plus = 0;
  bool changes() const { return times != 1 || plus != 0; }
  bool operator==(const Convention& other) const = default;
};

// A form is all that many tensors have in common: everything but names, keys and views.
struct TensorForm {
  Convention convention = {};  // of a stored tensor; only conversions regard it
  DType dtype = DType::f32;
  bool is_buffer = false;  // drawn, but not trained; for views ask IsBuffer()
  Shape shape = {};
  Distribution distribution = {};
  PartitionSpec partition = {};  // one entry per dimension
};

class Tensor {
 public:
  Tensor() = default;
  explicit Tensor(std::string_view path) : path_(path) {}

  // The text is valid as long as this, or a copy of this, has it. A zero byte is behind it, for C.
  // This and stream() are `const`, as what is assigned to a copy would be lost.
  const std::string_view path() const { return path_.view(); }
  const Convention& convention() const { return form_->convention; }
  DType dtype() const { return form_->dtype; }
  bool is_buffer() const { return form_->is_buffer; }
  const Shape& shape() const { return form_->shape; }
  const Distribution& distribution() const { return form_->distribution; }
  const PartitionSpec& partition() const { return form_->partition; }
  // From `key:` or `tie:`; under an engine of places, where the tensor begins.
  const DrawKey& key() const { return own_->key; }
  // The first draw of a drawn tensor; its key is 0 if nothing is random.
  const Stream stream() const;
  // Null: the tensor is drawn.
  const std::shared_ptr<const View>& view() const { return own_->view; }
  // The tensor whose norms this one holds, which is set once all tensors are known; else null.
  const std::shared_ptr<const Tensor>& measured() const { return own_->measured; }

  int64_t elements() const { return ElementCount(shape()); }
  int64_t bytes() const { return elements() * InfoOf(dtype()).bytes; }

  void set_path(std::string_view path) { path_ = PackedText(path); }
  void set_key(DrawKey key);
  void set_stream(const Stream& stream);
  void set_view(std::shared_ptr<const View> view) { own_.Edit().view = std::move(view); }
  void set_measured(std::shared_ptr<const Tensor> tensor) {
    if (tensor != own_->measured) own_.Edit().measured = std::move(tensor);
  }

  // The form is this tensor's alone once it is edited, until a FormPool has an equal one.
  const SharedValue<TensorForm>& form() const { return form_; }
  TensorForm& Edit() { return form_.Edit(); }
  void set_form(SharedValue<TensorForm> form) { form_ = std::move(form); }

 private:
  // These members are of few tensors, or differ from tensor to tensor.
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

// Lets tensors share forms that are equal to the bit.
class FormPool {
 public:
  // Gives the tensor a form of the pool if there is an equal one; else the pool gets the tensor's.
  // It keeps the newest forms alone, which is enough for the tensors of a repeat.
  void Share(Tensor& tensor);

 private:
  std::array<SharedValue<TensorForm>, 512> forms_;
};

}  // namespace shardinit
