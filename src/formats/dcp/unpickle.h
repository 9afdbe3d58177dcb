// Reads pickles, which anyone may have written, as values. It neither calls nor looks up anything
// that they name.
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <string_view>
#include <vector>

namespace shardinit::dcp {

struct Value {
  enum class Kind {
    kNone,        // Also stands for what is not told apart here: floats, bytes, sets.
    kBool,        // `number`
    kInt,         // `number`
    kText,        // `text`
    kTuple,       // `items`
    kList,        // `items`
    kDict,        // `items`: key, value, key, value, …
    kGlobal,      // `text`: `torch.float32`
    kObject,      // `items`: what is called, its arguments, and then the states that it is given
    kPersistent,  // `items`: its id
  };

  // Returns an item of a tuple, list, object or id; null: it is something else, or has no such
  // item.
  const Value* At(size_t index) const;
  // Returns the value of the last key in a dict that is this text; null: there is none, or it is no
  // dict.
  const Value* Find(std::string_view key) const;
  // Returns what an object is called or made by: `torch.Size`. It is empty for other values.
  std::string_view Maker() const;
  // Returns the state that an object was given last; null: there is none.
  const Value* State() const;
  bool IsText(std::string_view wanted) const { return kind == Kind::kText && text == wanted; }

  Kind kind = Kind::kNone;
  int64_t number = 0;
  std::string text = {};
  std::vector<Value*> items = {};
  std::vector<Value*> held = {};  // what is added to an object, as to a container of a class
};

// Owns all values. They may hold one another, and themselves.
struct Pickle {
  std::deque<Value> values;
  const Value* root = nullptr;
  size_t bytes = 0;  // The pickle has so many of the bytes that were given.
};

// Throws Error (kRefused) that names `path` if it is damaged, or has what checkpoints do not have.
Pickle ReadPickle(std::string_view bytes, const std::string& path);

}  // namespace shardinit::dcp
