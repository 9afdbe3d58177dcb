// Writes the Python pickles that PyTorch's checkpoints need, without Python. Uses protocol 2, which
// all of PyTorch's readers accept.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace shardinit::dcp {

// Each call pushes its value onto a stack. A container is begun, filled and ended. Call(),
// SetState() and PersistentId() take the top of the stack.
class PickleWriter {
 public:
  void Text(std::string_view text);  // a `str` of at most 4 GiB - 1
  void Int(int64_t value);
  void None() { out_ += 'N'; }
  void Bool(bool value) { out_ += value ? "\x88" : "\x89"; }
  void Float(double value);
  void Ints(const std::vector<int64_t>& values);  // a tuple

  void BeginTuple() { out_ += '('; }
  void EndTuple() { out_ += 't'; }
  void BeginList() { out_ += "]("; }
  void EndList() { out_ += 'e'; }
  // Writes a dict; `members` writes its keys and values.
  template <typename F>
  void Dict(F members) {
    out_ += "}(";
    members();
    out_ += 'u';
  }
  // Writes a key; its value comes next.
  PickleWriter& Key(std::string_view key) {
    Text(key);
    return *this;
  }

  // Writes a reference to a name in a module, such as `float32` in `torch`.
  void Global(std::string_view module, std::string_view name);
  void Call() { out_ += 'R'; }  // Calls a global with a tuple of arguments.
  // Makes an object of a class. Its state comes next: a dict, or the argument of its
  // `__setstate__`.
  void New(std::string_view module, std::string_view name);
  void SetState() { out_ += 'b'; }
  // Makes an object whose state is a dict; `members` writes its keys and values.
  template <typename F>
  void Object(std::string_view module, std::string_view name, F members) {
    New(module, name);
    Dict(members);
    SetState();
  }
  void PersistentId() { out_ += 'Q'; }  // Uses the value on top as the id.

  std::string Finish();  // Call it once.

 private:
  bool WriteMemoized(const std::string& key);
  void Memorize(const std::string& key);

  std::string out_ = "\x80\x02";
  std::unordered_map<std::string, uint32_t> memo_;  // numbers of values, by their bytes
};

}  // namespace shardinit::dcp
