// Python's pickles, as far as PyTorch's checkpoints have them, written without Python: protocol 2,
// which all of its readers take.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace shardinit::dcp {

// What is written goes on a stack, in the order of the calls: a container is begun, filled and
// ended; a call, an object and its state take what is on top of them.
class PickleWriter {
 public:
  void Text(std::string_view text);  // A `str`; at most 4 GiB - 1.
  void Int(int64_t value);
  void None() { out_ += 'N'; }
  void Bool(bool value) { out_ += value ? "\x88" : "\x89"; }
  void Float(double value);
  void Ints(const std::vector<int64_t>& values);  // A tuple.

  void BeginTuple() { out_ += '('; }
  void EndTuple() { out_ += 't'; }
  void BeginList() { out_ += "]("; }
  void EndList() { out_ += 'e'; }
  void BeginDict() { out_ += "}("; }  // Then key, value, key, value, …
  void EndDict() { out_ += 'u'; }

  // What a module has under a name: `torch`, `float32`.
  void Global(std::string_view module, std::string_view name);
  void Call() { out_ += 'R'; }  // Of a global with a tuple of arguments.
  // An object of a class, then its state: a dict, or what its `__setstate__` takes.
  void New(std::string_view module, std::string_view name);
  void SetState() { out_ += 'b'; }
  void PersistentId() { out_ += 'Q'; }  // Of the value on top.

  std::string Finish();  // Once.

 private:
  bool Recall(const std::string& key);
  void Memorize(const std::string& key);

  std::string out_ = "\x80\x02";
  std::unordered_map<std::string, uint32_t> memo_;  // By the bytes that make it.
};

}  // namespace shardinit::dcp
