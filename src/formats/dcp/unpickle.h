// Pickles that anyone may have written, as values: nothing that one says is called or looked up.
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <string_view>
#include <vector>

namespace shardinit::dcp {

struct Value {
  enum class Kind {
    kNone,        // Also what is not told apart here: floats, bytes, sets.
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

  // Of a tuple, list or object; null: it is something else, or there is none.
  const Value* At(size_t index) const;
  // Of a dict, what the text is the last key of. Null: it has none, or is no dict.
  const Value* Find(std::string_view key) const;
  // Of an object, what it is called or made by: `torch.Size`; else empty.
  std::string_view Maker() const;
  // Of an object, the state it was given last; null: none.
  const Value* State() const;
  bool IsText(std::string_view wanted) const { return kind == Kind::kText && text == wanted; }

  Kind kind = Kind::kNone;
  int64_t number = 0;
  std::string text = {};
  std::vector<Value*> items = {};
};

// What all values live in. They may hold one another, and themselves.
struct Pickle {
  std::deque<Value> values;
  const Value* root = nullptr;
};

// Throws Error (kRefused) that names `path` if it is damaged, or has what checkpoints do not.
Pickle ReadPickle(std::string_view bytes, const std::string& path);

}  // namespace shardinit::dcp
