#include <gtest/gtest.h>

#include <fstream>
#include <sstream>

#include "kernels/kernels.h"
#include "rng/philox4x32.h"
#include "rng/reference.h"
#include "rng/stream.h"
#include "support/forced_target.h"

namespace shardinit {
namespace {

struct KnownAnswer {
  philox4x32::Words counter, expected;
  std::array<uint32_t, 2> key;
};

std::vector<KnownAnswer> KnownAnswers() {
  std::ifstream file(SHARDINIT_SOURCE_DIR "/tests/vectors/philox4x32.txt");
  std::vector<KnownAnswer> answers;
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with('#')) continue;
    std::istringstream in(line);
    std::string name;
    int rounds = 0;
    KnownAnswer answer;
    in >> name >> rounds >> std::hex;
    for (uint32_t& word : answer.counter) in >> word;
    for (uint32_t& word : answer.key) in >> word;
    for (uint32_t& word : answer.expected) in >> word;
    EXPECT_TRUE(in) << line;
    EXPECT_EQ(rounds, philox4x32::kRounds);
    answers.push_back(answer);
  }
  return answers;
}

TEST(Philox4x32, PhiloxHasKnownAnswers) {
  const auto answers = KnownAnswers();
  ASSERT_EQ(answers.size(), 3u);
  for (const KnownAnswer& answer : answers) {
    EXPECT_EQ(philox4x32::Block<uint32_t>(answer.counter, answer.key), answer.expected);
  }
}

// Every instruction set gives the first published vector. The contract's last counter word is 0, so
// a stream cannot give the other vectors.
TEST(Philox4x32, EveryTargetGivesTheKnownAnswer) {
  const KnownAnswer answer = KnownAnswers().front();
  for (const std::string& target : kernels::Targets()) {
    const ForcedTarget forced(target);
    philox4x32::Words words;
    kernels::Fill(BitsSampler{}, Stream{0, 0}, 0, 4, DType::f32, words.data());
    EXPECT_EQ(words, answer.expected) << target;
  }
}

// Counter, key and draw each go to their own word.
TEST(Philox4x32, CounterContainsBlockAndDraw) {
  const Stream stream{0x299f31d0a4093822, 0x13198a2e};
  const uint64_t block = 0x05a308d3243f6a88;
  const auto expected = philox4x32::Block<uint32_t>({0x243f6a88, 0x05a308d3, 0x13198a2e, 0},
                                                    {0xa4093822, 0x299f31d0});
  for (int i = 0; i < 4; ++i) EXPECT_EQ(Word(stream, 4 * block + i), expected[i]);
}

// Python: hashlib.sha256(b"shardinit.key.v1\0" + seed.to_bytes(8, "little") + path).digest()[:8]
TEST(Stream, KeysFollowFromSeedAndPath) {
  EXPECT_EQ(KeyOf(0, "w"), 0xe0567135029c5a75u);
  EXPECT_EQ(KeyOf(0x0123456789abcdef, "decoder.layers.0.attn.q.weight"), 0x6ec207b3d4af8d4eu);
  EXPECT_EQ(KeyOf(1, "gewicht.\xc3\xa9"), 0x6ac40cccc09613ecu);
}

}  // namespace
}  // namespace shardinit
