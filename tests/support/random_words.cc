// Writes an engine's words in the order in which tensors use them, as input for batteries of
// statistical tests:
//
//   random_words ENGINE ORDER      ENGINE: philox, jax; ORDER: one of kOrders
//
// Writes little-endian words until the reader closes the pipe.
#include <array>
#include <cstdint>
#include <cstdio>
#include <string>
#include <string_view>
#include <vector>

#include "rng/engines.h"
#include "rng/jax_threefry.h"
#include "rng/philox4x32.h"
#include "rng/stream.h"

namespace shardinit {
namespace {

constexpr uint64_t kFirst = 4;  // words of each stream if many streams are interleaved

// Returns word i of a stream.
uint32_t WordOf(bool is_jax, const Stream& stream, uint64_t element) {
  if (is_jax) return jax_threefry::Word(stream, element);
  const uint64_t block = element / 4;
  const philox4x32::Words counter = {static_cast<uint32_t>(block),
                                     static_cast<uint32_t>(block >> 32), stream.draw, 0};
  const std::array<uint32_t, 2> key = {static_cast<uint32_t>(stream.key),
                                       static_cast<uint32_t>(stream.key >> 32)};
  return philox4x32::Block(counter, key)[element % 4];
}

Stream StreamOf(bool is_jax, uint64_t seed, const std::string& path, uint32_t draw = 0) {
  Stream stream;
  stream.engine = is_jax ? &kJaxThreefry : &kPhilox4x32;
  stream.key = stream.engine->key(seed, path);
  stream.draw = draw;
  return stream;
}

std::string PathOf(uint64_t layer) {
  return "model.layers." + std::to_string(layer) + ".mlp.up_proj.weight";
}

struct Order {
  std::string_view name;
  // Appends words; `turn` counts the calls.
  void (*append)(bool is_jax, uint64_t turn, std::vector<uint32_t>* words);
};

constexpr uint64_t kAtOnce = 1 << 16;  // words of a turn

const Order kOrders[] = {
    // along the rows of one tensor
    {"rows",
     [](bool is_jax, uint64_t turn, std::vector<uint32_t>* words) {
       const Stream stream = StreamOf(is_jax, 0, PathOf(0));
       for (uint64_t i = 0; i < kAtOnce; ++i) {
         words->push_back(WordOf(is_jax, stream, turn * kAtOnce + i));
       }
     }},
    // the first words of tensors whose names differ in a number
    {"names",
     [](bool is_jax, uint64_t turn, std::vector<uint32_t>* words) {
       for (uint64_t i = 0; i < kAtOnce / kFirst; ++i) {
         const Stream stream = StreamOf(is_jax, 0, PathOf(turn * kAtOnce / kFirst + i));
         for (uint64_t w = 0; w < kFirst; ++w) words->push_back(WordOf(is_jax, stream, w));
       }
     }},
    // the first words of one tensor for seeds 0, 1, ...
    {"seeds",
     [](bool is_jax, uint64_t turn, std::vector<uint32_t>* words) {
       for (uint64_t i = 0; i < kAtOnce / kFirst; ++i) {
         const Stream stream = StreamOf(is_jax, turn * kAtOnce / kFirst + i, PathOf(0));
         for (uint64_t w = 0; w < kFirst; ++w) words->push_back(WordOf(is_jax, stream, w));
       }
     }},
    // the same element of 32 tensors, then the next one
    {"across",
     [](bool is_jax, uint64_t turn, std::vector<uint32_t>* words) {
       constexpr uint64_t kTensors = 32;
       std::vector<Stream> streams;
       for (uint64_t t = 0; t < kTensors; ++t) streams.push_back(StreamOf(is_jax, 0, PathOf(t)));
       for (uint64_t i = 0; i < kAtOnce / kTensors; ++i) {
         for (const Stream& stream : streams) {
           words->push_back(WordOf(is_jax, stream, turn * kAtOnce / kTensors + i));
         }
       }
     }},
    // both draws of one initializer, side by side
    {"draws",
     [](bool is_jax, uint64_t turn, std::vector<uint32_t>* words) {
       const Stream first = StreamOf(is_jax, 0, PathOf(0), 0);
       const Stream second = StreamOf(is_jax, 0, PathOf(0), 1);
       for (uint64_t i = 0; i < kAtOnce / 2; ++i) {
         for (const Stream* stream : {&first, &second}) {
           words->push_back(WordOf(is_jax, *stream, turn * kAtOnce / 2 + i));
         }
       }
     }},
};

int Run(std::string_view engine, std::string_view order) {
  for (const Order& known : kOrders) {
    if (known.name != order || (engine != "philox" && engine != "jax")) continue;
    std::vector<uint32_t> words;
    for (uint64_t turn = 0;; ++turn) {
      words.clear();
      known.append(engine == "jax", turn, &words);
      if (fwrite(words.data(), sizeof words[0], words.size(), stdout) != words.size()) return 0;
    }
  }
  fputs("usage: random_words philox|jax rows|names|seeds|across|draws\n", stderr);
  return 2;
}

}  // namespace
}  // namespace shardinit

int main(int argc, char** argv) {
  return shardinit::Run(argc == 3 ? argv[1] : "", argc == 3 ? argv[2] : "");
}
