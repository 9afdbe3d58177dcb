// Parses untrusted pickles into plain values. Never calls or looks up anything that a pickle names.
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <string_view>
#include <vector>

namespace shardinit::dcp {

struct Value {
  enum class Kind {
    kNone,        // also floats, bytes and sets
    kBool,        // `number`
    kInt,         // `number`
    kText,        // `text`
    kTuple,       // `items`
    kList,        // `items`
    kDict,        // `items`: key, value, key, value, …
    kGlobal,      // `text`: `torch.float32`
    kObject,      // `items`: the callable, its arguments, then the states it is given
    kPersistent,  // `items`: its id
  };

  // Returns an item of a tuple, list, object or id. Returns null for other values, or if the item
  // does not exist.
  const Value* At(size_t index) const;
  // Returns the value of the last key in a dict that equals `key`. Returns null if the key does not
  // exist, or if the value is not a dict.
  const Value* Find(std::string_view key) const;
  // Returns the name of an object's callable, such as `torch.Size`; empty for other values.
  std::string_view Maker() const;
  // Returns the last state that an object was given, or null.
  const Value* State() const;
  bool IsText(std::string_view wanted) const { return kind == Kind::kText && text == wanted; }

  Kind kind = Kind::kNone;
  int64_t number = 0;
  std::string text = {};
  std::vector<Value*> items = {};
  std::vector<Value*> held = {};  // items added to an object; keyword arguments
};

// Owns all values. Values may contain one another, and themselves.
struct Pickle {
  std::deque<Value> values;
  const Value* root = nullptr;
  size_t bytes = 0;  // the pickle's length within the given bytes
};

// Throws Error (kRefused) that names `path` if the pickle is damaged, or has anything that
// checkpoints do not have.
Pickle ReadPickle(std::string_view bytes, const std::string& path);

}  // namespace shardinit::dcp
