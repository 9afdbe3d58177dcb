// Tests SHA-256 with the vectors of FIPS 180-2, appendix B.1-B.3, and the SHA-256 examples and
// "additional" vectors of NIST's CSRC (Cryptographic Standards and Guidelines, Example Values,
// SHA256.pdf and SHA2_Additional.pdf).
#include <gtest/gtest.h>

#include <utility>
#include <vector>

#include "base/sha256.h"
#include "support/cases.h"

namespace shardinit {
namespace {

struct Vector {
  std::string message;
  const char* digest;
};

const Vector kVectors[] = {
    {"abc", "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"},
    {"abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq",
     "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1"},
    {std::string(1'000'000, 'a'),
     "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0"},
    {"", "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"},
    {"\xbd", "68325720aabd7c82f30f554b313d0570c95accbb7dc4b5aae11204c08ffe732b"},
    {"\xc9\x8c\x8e\x55", "7abc22c0ae5af26ce93dbb94433a0e0b2e119d014f8e7f65bd56c61ccccd9504"},
    {std::string(55, '\0'), "02779466cdec163811d078815c633f21901413081449002f24aa3e80f0b88ef7"},
    {std::string(56, '\0'), "d4817aa5497628e7c77e6b606107042bbba3130888c5f47a375e6179be789fbb"},
    {std::string(57, '\0'), "65a16cb7861335d5ace3c60718b5052e44660726da4cd13bb745381b235a1785"},
    {std::string(64, '\0'), "f5a5fd42d16a20302798ef6ed309979b43003d2320d9f0e8ea9831a92759fb4b"},
    {std::string(1000, '\0'), "541b3e9daa09b20bf85fa273e5cbd3e80185aa4ec298e765db87742b70138a53"},
    {std::string(1000, 'A'), "c2e686823489ced2017f6059b8b239318b6364f6dcd835d0a519105a1eadd6e4"},
    {std::string(1005, 'U'), "f4d62ddec0f3dd90ea1380fa16a5ff8dc4c54b21740650f24afc4120903552b0"},
};

TEST(Sha256, Sha256MatchesPublishedVectors) {
  for (const Vector& v : kVectors) {
    EXPECT_EQ(ToHex(Sha256Of(v.message)), v.digest) << v.message.size() << " bytes";
  }
}

TEST(Sha256, Sha256DoesNotDependOnPieces) {
  for (const Vector& v : kVectors) {
    for (const size_t piece : {1, 7, 64, 1000}) {
      if (v.message.size() / piece > 100'000) continue;
      Sha256 hash;
      for (size_t at = 0; at < v.message.size(); at += piece) {
        hash.Update(std::string_view(v.message).substr(at, piece));
        hash.Update(nullptr, 0);
      }
      EXPECT_EQ(ToHex(hash.Finish()), v.digest) << v.message.size() << " by " << piece;
    }
  }
}

// Hashing two texts at once, with unequal and odd sizes, equals hashing each of them. This includes
// texts whose number of bits does not fit in 32 bits.
TEST(Sha256, HashingTwoAtOnceEqualsHashingEach) {
  std::string data(1 << 20, '\0');
  uint32_t x = 1;
  for (char& c : data) c = static_cast<char>((x = x * 1664525 + 1013904223) >> 24);
  struct Piece {
    size_t a, b;
  };
  const std::vector<Piece> cases[] = {
      {{0, 0}},
      {{64, 64}},
      {{64, 128}, {63, 1}, {64, 64}, {1, 63}, {640, 640}},
      {{100, 100}, {28, 28}, {1 << 20, 1 << 19}, {4096, 4097}},
      std::vector<Piece>(Cases(600), {1 << 20, 1 << 20}),
  };
  for (const std::vector<Piece>& pieces : cases) {
    Sha256 a, b, a_alone, b_alone;
    for (const auto [a_size, b_size] : pieces) {
      const char* const b_data = data.data() + data.size() - b_size;
      Sha256::UpdateBoth(a, data.data(), a_size, b, b_data, b_size);
      a_alone.Update(data.data(), a_size);
      b_alone.Update(b_data, b_size);
    }
    EXPECT_EQ(ToHex(a.Finish()), ToHex(a_alone.Finish()));
    EXPECT_EQ(ToHex(b.Finish()), ToHex(b_alone.Finish()));
  }
}

TEST(Sha256, Sha256CanBeMoved) {
  Sha256 first;
  first.Update("a");
  Sha256 second = std::move(first);
  second.Update("bc");
  EXPECT_EQ(ToHex(second.Finish()), kVectors[0].digest);
}

TEST(Sha1, Sha1MatchesFips180) {
  const auto digest = Sha1Of("abc");
  EXPECT_EQ(digest[0] << 24 | digest[1] << 16 | digest[2] << 8 | digest[3],
            static_cast<int>(0xa9993e36));
  EXPECT_EQ(digest[19], 0x9d);
}

TEST(FromHex, FromHexInvertsToHex) {
  const Digest digest = Sha256Of("abc");
  Digest back{};
  ASSERT_TRUE(FromHex(ToHex(digest), &back));
  EXPECT_EQ(back, digest);
}

TEST(FromHex, FromHexRejectsOtherText) {
  Digest digest;
  const std::string good = kVectors[0].digest;
  EXPECT_TRUE(FromHex(good, &digest));
  EXPECT_FALSE(FromHex("", &digest));
  EXPECT_FALSE(FromHex(good.substr(1), &digest));
  EXPECT_FALSE(FromHex(good + "0", &digest));
  for (const char c : {'A', 'F', 'g', ' ', 'x', '\0', '/', ':', '`', '\xff'}) {
    std::string bad = good;
    bad[10] = c;
    EXPECT_FALSE(FromHex(bad, &digest)) << bad;
  }
}

}  // namespace
}  // namespace shardinit
