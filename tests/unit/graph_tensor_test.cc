// Tests how the tensors of a model share memory: texts in blocks, values until they change, and
// forms that are equal to the bit.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <malloc.h>

#include <cmath>
#include <thread>
#include <vector>

#include "graph/tensor.h"

namespace shardinit {
namespace {

TEST(PackedText, HoldsTextsOfAllLengths) {
  std::vector<PackedText> texts;
  std::vector<std::string> expected;
  for (size_t size : {0,    1,    15,   16,   4000, 4065, 4066, 4067, 4068, 4069, 4070, 4071,
                      4072, 4073, 4074, 4075, 4076, 4077, 4078, 4079, 4080, 4096, 9000, 65535}) {
    for (const char letter : {'a', 'b', 'c'}) {
      expected.emplace_back(size, letter);
      texts.emplace_back(expected.back());
      expected.push_back(fmt::format("{}{}", letter, size));
      texts.emplace_back(expected.back());
    }
  }
  expected.emplace_back("a\0b", 3);
  texts.emplace_back(expected.back());
  for (size_t i = 0; i < texts.size(); ++i) {
    EXPECT_EQ(texts[i].view(), expected[i]);
    EXPECT_EQ(*(expected[i].empty() ? "" : texts[i].view().end()), '\0');
  }
  EXPECT_ANY_THROW(PackedText(std::string(65536, 'a')));
}

TEST(PackedText, PackedTextOutlivesItsOriginal) {
  std::vector<PackedText> copies;
  {
    std::vector<PackedText> texts;
    for (int i = 0; i < 10'000; ++i) texts.emplace_back(fmt::format("layers.{}.weight", i));
    for (size_t i = 0; i < texts.size(); i += 997) copies.push_back(texts[i]);
    for (size_t i = 1; i < texts.size(); i += 997) copies.push_back(std::move(texts[i]));
  }
  // New texts would reuse the freed memory.
  std::vector<PackedText> others;
  for (int i = 0; i < 10'000; ++i) others.emplace_back(fmt::format("others.{}.biases", i));
  for (size_t i = 0, k = 0; i < 10'000; i += 997, ++k) {
    EXPECT_EQ(copies[k].view(), fmt::format("layers.{}.weight", i));
  }
  PackedText& first = copies.front();
  first = *&first;
  EXPECT_EQ(first.view(), "layers.0.weight");
  first = copies.back();
  copies.pop_back();
  EXPECT_NE(first.view(), "layers.0.weight");
  EXPECT_TRUE(first.view().starts_with("layers."));
}

TEST(PackedText, PackedTextOutlivesItsThread) {
  std::vector<std::vector<PackedText>> made(4);
  std::vector<std::thread> threads;
  for (size_t t = 0; t < made.size(); ++t) {
    threads.emplace_back([&texts = made[t], t] {
      for (int i = 0; i < 2000; ++i) texts.emplace_back(fmt::format("{}.{}", t, i));
    });
  }
  for (std::thread& thread : threads) thread.join();
  threads.clear();
  // Each thread copies and drops the texts of all threads.
  for (size_t t = 0; t < made.size(); ++t) {
    threads.emplace_back([&made, t] {
      for (size_t other = 0; other < made.size(); ++other) {
        for (size_t i = 0; i < 2000; ++i) {
          const PackedText copy = made[other][i];
          if (copy.view() != fmt::format("{}.{}", other, i)) ADD_FAILURE() << t << copy.view();
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// Texts are freed with the last text of their block. glibc counts the memory in use. Under the
// address sanitizer the count is always 0, and the sanitizer reports leaks itself.
TEST(PackedText, PackedTextIsFreedWithTheLastOfItsBlock) {
  const auto make_many = [] {
    std::vector<PackedText> texts;
    for (int i = 0; i < 10'000; ++i) texts.emplace_back(fmt::format("layers.{}.weight", i));
  };
  make_many();  // The thread keeps a block.
  const size_t before = mallinfo2().uordblks;
  for (int i = 0; i < 10; ++i) make_many();
  EXPECT_LT(mallinfo2().uordblks, before + 20'000);
}

TEST(SharedValue, SharedValueIsCopiedOnChange) {
  SharedValue<std::string> a;
  EXPECT_EQ(*a, "");
  EXPECT_TRUE(a.IsSharedWith(SharedValue<std::string>()));
  a.Edit() = "first";
  SharedValue<std::string> b = a, c = b;
  EXPECT_TRUE(a.IsSharedWith(c));
  const std::string* const place = &*a;
  b.Edit() += " and more";
  EXPECT_EQ(*a, "first");
  EXPECT_EQ(*b, "first and more");
  EXPECT_FALSE(a.IsSharedWith(b));
  a = SharedValue<std::string>();
  EXPECT_EQ(&*c, place);
  // The last remaining value is changed in place.
  c.Edit() = "last";
  EXPECT_EQ(&*c, place);
  EXPECT_EQ(*a, "");
}

Tensor TensorWith(Distribution distribution) {
  Tensor tensor("w");
  tensor.Edit() = {
      .shape = {2, 3}, .distribution = std::move(distribution), .partition = PartitionSpec(2)};
  return tensor;
}

// Returns whether a pool makes the second tensor share the form of the first.
bool AreShared(Tensor a, Tensor b) {
  FormPool pool;
  pool.ShareForm(a);
  pool.ShareForm(b);
  return a.form().IsSharedWith(b.form());
}

TEST(FormPool, SharesBitwiseEqualForms) {
  const Distribution distributions[] = {Constant{0},
                                        Constant{-0.},
                                        Constant{std::nextafter(0, 1)},
                                        Normal{0, 1},
                                        Normal{-0., 1},
                                        Uniform{0, 1},
                                        TruncatedNormal{0, 1, -2, 2},
                                        TruncatedNormal{0, 1, -2, 2.5},
                                        Orthogonal{1, 1, 2},
                                        Orthogonal{1, 2, 1},
                                        Sparse{1, 1},
                                        Sparse{1, 2},
                                        Normalized{0, 1},
                                        Normalized{1, 1},
                                        FromFile{"ab"},
                                        FromFile{"ac"},
                                        FromSource{"a", "b"},
                                        FromSource{"ab", ""},
                                        RowsLike{"a", "b", 0, 2, 1},
                                        RowsLike{"a", "b", 0, 3, 1},
                                        Norm{"a"},
                                        Norm{"b"},
                                        Parts{0, std::make_shared<PartList>()},
                                        Parts{0, std::make_shared<PartList>()},
                                        Expression{std::make_shared<Program>()},
                                        Expression{std::make_shared<Program>()}};
  for (size_t i = 0; i < std::size(distributions); ++i) {
    for (size_t k = 0; k < std::size(distributions); ++k) {
      EXPECT_EQ(AreShared(TensorWith(distributions[i]), TensorWith(distributions[k])), i == k)
          << i << ' ' << k;
    }
  }
}

ProgramPtr ProgramWith(std::string text) {
  auto program = std::make_shared<Program>();
  program->text = std::move(text);
  return program;
}

PartsPtr PartsWith(std::vector<Part> parts) {
  return std::make_shared<PartList>(PartList{std::move(parts)});
}

// Returns values of a member's type, all different.
std::vector<double> Different(const double&) { return {0, 1, -1, std::nextafter(1, 2)}; }
std::vector<int64_t> Different(const int64_t&) { return {0, 1, int64_t{1} << 32}; }
std::vector<DimensionSet> Different(const DimensionSet&) { return {0, 1, 2, 3}; }
std::vector<std::string> Different(const std::string&) { return {"", "a", "b", "ab"}; }
std::vector<ProgramPtr> Different(const ProgramPtr&) {
  return {ProgramWith(""), ProgramWith("i0"), ProgramWith("i1")};
}
std::vector<std::vector<ProgramPtr>> Different(const std::vector<ProgramPtr>&) {
  const ProgramPtr a = ProgramWith("i0"), b = ProgramWith("i1");
  return {{}, {a}, {b}, {a, b}, {b, a}};
}
std::vector<PartsPtr> Different(const PartsPtr&) {
  const Part a = {1, Constant{0}}, longer = {2, Constant{0}}, other = {1, Constant{1}};
  return {PartsWith({}),          PartsWith({a}),        PartsWith({longer}),
          PartsWith({other}),     PartsWith({a, other}), PartsWith({other, a}),
          PartsWith({a, longer}), PartsWith({longer, a})};
}

// Compares distributions that differ only in one member.
template <size_t i = 0>
void CompareMembers() {
  if constexpr (i < std::variant_size_v<Distribution>) {
    using D = std::variant_alternative_t<i, Distribution>;
    D plain = {};
    ForEachMember(plain, [](const auto&, auto& value) { value = Different(value).front(); });
    ForEachMember(plain, [&](const auto& member, const auto& value) {
      const auto values = Different(value);
      for (size_t a = 0; a < values.size(); ++a) {
        for (size_t b = 0; b < values.size(); ++b) {
          D first = plain, second = plain;
          first.*member.place = values[a];
          second.*member.place = Different(value)[b];  // equal, but not the same
          EXPECT_EQ(Distribution(first) == Distribution(second), a == b)
              << D::kName << ' ' << member.key << ' ' << a << ' ' << b;
        }
      }
    });
    CompareMembers<i + 1>();
  }
}

TEST(Distribution, DistributionsCompareAllMembers) { CompareMembers(); }

TEST(FormPool, NeverSharesDifferentForms) {
  const Tensor tensor = TensorWith(Normal{0, 1});
  const auto is_shared = [&](auto change) {
    Tensor other = tensor;
    change(other.Edit());
    return AreShared(tensor, other) || AreShared(other, tensor);
  };
  EXPECT_TRUE(is_shared([](TensorForm&) {}));
  EXPECT_FALSE(is_shared([](TensorForm& form) { form.dtype = DType::f64; }));
  EXPECT_FALSE(is_shared([](TensorForm& form) { form.is_buffer = true; }));
  EXPECT_FALSE(is_shared([](TensorForm& form) { form.shape = {3, 2}; }));
  EXPECT_FALSE(is_shared([](TensorForm& form) { form.shape = {2, 3, 1}; }));
  EXPECT_FALSE(is_shared([](TensorForm& form) { form.convention.times = 2; }));
  EXPECT_FALSE(is_shared([](TensorForm& form) { form.convention.back = -0.F; }));
  EXPECT_FALSE(is_shared([](TensorForm& form) { form.convention.plus = 1; }));
  EXPECT_FALSE(is_shared([](TensorForm& form) { form.partition.dimensions[1].axes = {0}; }));
  EXPECT_FALSE(is_shared([](TensorForm& form) { form.partition.dimensions[1].segments = 3; }));
  EXPECT_FALSE(is_shared([](TensorForm& form) { form.partition.pins = {{0, {1}}}; }));
  // The source of a distribution is not among its members. These pointers are never dereferenced.
  static const char kPlaces[2] = {};
  const auto source = [](size_t i) {
    return SourceTensorPtr(std::shared_ptr<void>(),
                           reinterpret_cast<const SourceTensor*>(&kPlaces[i]));
  };
  const auto file = [](size_t i) {
    return std::shared_ptr<const CheckedFile>(std::shared_ptr<void>(),
                                              reinterpret_cast<const CheckedFile*>(&kPlaces[i]));
  };
  for (const size_t i : {0, 1}) {
    EXPECT_EQ(AreShared(TensorWith(FromSource{"a", "b", {}, source(0)}),
                        TensorWith(FromSource{"a", "b", {}, source(i)})),
              i == 0);
    EXPECT_EQ(AreShared(TensorWith(RowsLike{"a", "b", 0, 2, 1, source(0)}),
                        TensorWith(RowsLike{"a", "b", 0, 2, 1, source(i)})),
              i == 0);
    EXPECT_EQ(AreShared(TensorWith(FromFile{"ab", file(0)}), TensorWith(FromFile{"ab", file(i)})),
              i == 0);
  }
  EXPECT_FALSE(AreShared(TensorWith(FromSource{"a", "b"}),
                         TensorWith(FromSource{"a", "b", {std::make_shared<Program>()}})));
}

TEST(Tensor, EditedTensorHasItsOwnForm) {
  Tensor a = TensorWith(Constant{1});
  a.set_path("a.b");
  a.set_key(DrawPath{"old"});
  a.set_stream({.key = 3, .position = 7, .is_least = true, .engine = nullptr});
  Tensor b = a;
  b.Edit().shape = {6};
  b.set_path("c");
  b.set_key({});
  b.set_stream({.key = 4});
  EXPECT_EQ(a.path(), "a.b");
  EXPECT_EQ(a.shape(), (Shape{2, 3}));
  EXPECT_EQ(std::get<DrawPath>(a.key()).path, "old");
  EXPECT_EQ(a.stream(), (Stream{.key = 3, .position = 7, .is_least = true, .engine = nullptr}));
  EXPECT_EQ(b.path(), "c");
  EXPECT_EQ(b.shape(), Shape{6});
  EXPECT_EQ(std::get<DrawPath>(b.key()).path, "");
  EXPECT_EQ(b.stream(), Stream{.key = 4});
  EXPECT_EQ(std::get<Constant>(b.distribution()).value, 1);
}

}  // namespace
}  // namespace shardinit
