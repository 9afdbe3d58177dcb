// Tests expressions: any stretch of any box equals the same part of the whole tensor, and the whole
// equals the expression evaluated one element at a time.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <functional>
#include <random>

#include "base/error.h"
#include "generate/fill.h"
#include "rng/reference.h"
#include "support/filled.h"
#include "support/random_plan.h"
#include "tensor/encode.h"

namespace shardinit {
namespace {

Tensor Make(const std::string& text, Shape shape, DType dtype = DType::f64) {
  Tensor tensor;
  tensor.set_path("w");
  tensor.Edit().shape = std::move(shape);
  tensor.Edit().dtype = dtype;
  tensor.Edit().distribution = Expression{CompileCanonical(text, tensor.shape())};
  EXPECT_NE(std::get<Expression>(tensor.distribution()).program, nullptr) << text;
  tensor.Edit().partition.dimensions.resize(tensor.shape().size());
  tensor.set_stream({.key = KeyOf(3, tensor.path())});
  return tensor;
}

std::vector<double> Values(const Tensor& tensor) {
  const std::vector<uint8_t> bytes = Filled(tensor, WholeOf(tensor.shape()));
  std::vector<double> values(static_cast<size_t>(tensor.elements()));
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = Decode(bytes.data() + i * InfoOf(tensor.dtype()).bytes, tensor.dtype());
  }
  return values;
}

TEST(Expressions, ExpressionsDependOnlyOnTheElement) {
  const Tensor tensor =
      Make("where(i0 >= i2, normal() * 0.02, uniform() - i1) + bits() + index", {13, 5, 17});
  const std::vector<double> values = Values(tensor);
  const Sampler normal = MakeNormal(0, 1), uniform = MakeUniform(0, 1);
  for (int64_t i = 0; i < tensor.elements(); ++i) {
    const auto element = static_cast<uint64_t>(i);
    const double n = Sample(normal, {tensor.stream().key, 0}, element);
    const double u = Sample(uniform, {tensor.stream().key, 1}, element);
    const auto bits = static_cast<double>(Word({tensor.stream().key, 2}, element));
    const int64_t i0 = i / 85, i1 = i / 17 % 5, i2 = i % 17;
    const double chosen = i0 >= i2 ? n * 0.02 : u - static_cast<double>(i1);
    ASSERT_EQ(values[element], chosen + bits + static_cast<double>(i)) << i;
  }
}

double At(const std::vector<uint8_t>& bytes, size_t element) {
  double value;
  std::memcpy(&value, &bytes[element * sizeof value], sizeof value);
  return value;
}

uint64_t BitsOf(double value) { return std::bit_cast<uint64_t>(value); }

// 0 and -0 are equal numbers but different constants.
TEST(Expressions, ExpressionsDistinguishZeroAndMinusZero) {
  const uint64_t zero = BitsOf(0.0), minus = BitsOf(-0.0);
  const struct {
    const char* text;
    uint64_t first, other;  // Of element 0, and of all others.
  } kCases[] = {
      {"where(i0 < 1, -0, 0)", minus, zero},
      {"where(i0 < 1, 0, -0)", zero, minus},
      {"where(i0 < 1, 0, 0)", zero, zero},
      {"where(i0 < 1, -0, -0)", minus, minus},
      // Either constant may already exist for another use.
      {"where(i0 + 0 < 1, -0, 0)", minus, zero},
      {"where(-0 < i0, 0, -0)", minus, zero},
      {"where(i0 < 1, 0 * i0, i0 * -0)", zero, minus},
  };
  for (const auto& c : kCases) {
    const Tensor tensor = Make(c.text, {300});
    const std::vector<uint8_t> bytes = Filled(tensor, WholeOf(tensor.shape()));
    for (size_t i = 0; i < 300; ++i) {
      ASSERT_EQ(BitsOf(At(bytes, i)), i == 0 ? c.first : c.other) << c.text << " element " << i;
    }
    for (const DType dtype : {DType::f32, DType::bf16, DType::f16, DType::f8e5m2}) {
      const Tensor narrow = Make(c.text, {2}, dtype);
      const std::vector<uint8_t> made = Filled(narrow, WholeOf(narrow.shape()));
      const size_t size = made.size() / 2;
      EXPECT_EQ(made[size - 1], c.first == minus ? 0x80 : 0) << c.text;
      EXPECT_EQ(made[2 * size - 1], c.other == minus ? 0x80 : 0) << c.text;
    }
  }
}

// A tree of operations that computes its value without the compiler's constants and slots.
struct RandomTree {
  std::string text;
  std::function<double(int64_t i0, int64_t i1)> value;
};

// No operation here can give an infinity or a NaN, which tensors never contain.
RandomTree MakeTree(Random& random, int depth) {
  if (depth == 0 || random.Chance(5)) {
    static constexpr struct {
      const char* text;
      double value;
    } kNumbers[] = {{"0", 0.0},     {"-0", -0.0}, {"0.0", 0.0}, {"(0 * -1)", -0.0}, {"0.5", 0.5},
                    {"-0.5", -0.5}, {"3", 3.0},   {"-3", -3.0}, {"1e-300", 1e-300}};
    if (random.Chance(3)) return {"i0", [](int64_t i0, int64_t) { return double(i0); }};
    if (random.Chance(3)) return {"i1", [](int64_t, int64_t i1) { return double(i1); }};
    const auto& number = kNumbers[random.In(0, std::ssize(kNumbers) - 1)];
    return {number.text, [value = number.value](int64_t, int64_t) { return value; }};
  }
  const RandomTree a = MakeTree(random, depth - 1), b = MakeTree(random, depth - 1);
  const auto binary = [&](const std::string& text, auto operation) -> RandomTree {
    return {text,
            [=](int64_t i0, int64_t i1) { return operation(a.value(i0, i1), b.value(i0, i1)); }};
  };
  const auto infix = [&](const char* symbol, auto operation) {
    return binary("(" + a.text + symbol + b.text + ")", operation);
  };
  switch (random.In(0, 9)) {
    case 0:
      return infix(" + ", [](double x, double y) { return x + y; });
    case 1:
      return infix(" - ", [](double x, double y) { return x - y; });
    case 2:
      return infix(" * ", [](double x, double y) { return x * y; });
    case 3:
      return infix(" < ", [](double x, double y) { return x < y ? 1.0 : 0.0; });
    case 4:
      return infix(" == ", [](double x, double y) { return x == y ? 1.0 : 0.0; });
    case 5:
      return binary("min(" + a.text + ", " + b.text + ")",
                    [](double x, double y) { return y < x ? y : x; });
    case 6:
      return {"(-" + a.text + ")", [=](int64_t i0, int64_t i1) { return -a.value(i0, i1); }};
    case 7:
      return {"abs(" + a.text + ")",
              [=](int64_t i0, int64_t i1) { return std::fabs(a.value(i0, i1)); }};
    default: {
      const RandomTree c = MakeTree(random, depth - 1);
      return {"where(" + c.text + ", " + a.text + ", " + b.text + ")", [=](int64_t i0, int64_t i1) {
                return c.value(i0, i1) != 0 ? a.value(i0, i1) : b.value(i0, i1);
              }};
    }
  }
}

class NoVariables : public Scope {
 public:
  std::optional<Value> Find(const std::string&, Diagnostics&) const override { return {}; }
  std::vector<std::string> Names() const override { return {}; }
};

TEST(Expressions, RandomExpressionsEqualTheirTrees) {
  Random random(11);
  const Shape shape = {3, 5};
  int64_t with_both = 0;
  for (int i = 0; i < 3000; ++i) {
    const RandomTree tree = MakeTree(random, 4);
    Diagnostics diagnostics;
    const auto expr = ParseExpr(tree.text, {}, diagnostics);
    ASSERT_NE(expr, nullptr) << tree.text << Render(diagnostics.all());
    Tensor tensor = MakeTensor("w", DType::f64, shape, Constant{0});
    tensor.Edit().distribution = Expression{Compile(*expr, shape, {}, NoVariables(), diagnostics)};
    const auto& program = std::get<Expression>(tensor.distribution()).program;
    ASSERT_NE(program, nullptr) << tree.text << Render(diagnostics.all());
    bool zero = false, minus = false;
    for (const Program::Literal& literal : program->literals) {
      zero |= BitsOf(literal.value) == BitsOf(0.0);
      minus |= BitsOf(literal.value) == BitsOf(-0.0);
    }
    with_both += zero && minus;
    const std::vector<uint8_t> bytes = Filled(tensor, WholeOf(shape));
    for (int64_t e = 0; e < tensor.elements(); ++e) {
      ASSERT_EQ(BitsOf(At(bytes, static_cast<size_t>(e))), BitsOf(tree.value(e / 5, e % 5)))
          << tree.text << " as " << program->text << ", element " << e;
    }
  }
  EXPECT_GT(with_both, 300);
}

TEST(Expressions, ExpressionsOfABoxEqualTheWholeTensor) {
  std::mt19937_64 random(5);
  const auto below = [&](int64_t n) {
    return static_cast<int64_t>(random() % static_cast<uint64_t>(n));
  };
  const struct {
    const char* text;
    Shape shape;
  } kCases[] = {
      {"normal() * (i0 + 1) + index", {2000}},
      {"where(i0 >= i1, normal(), sin(i1 - i0))", {70, 61}},
      {"uniform() * i0 + i1 - i2 / 7 + i3 * normal()", {5, 6, 7, 9}},
      {"i0 + 1000 * i1 + bits()", {300, 3}},
      {"where(i1 == 0, i0, exp(-i0))", {3, 1, 700}},
      {"index * 2 + normal()", {}},
  };
  for (const auto& c : kCases) {
    for (const DType dtype : {DType::f64, DType::f32, DType::bf16}) {
      const Tensor tensor = Make(c.text, c.shape, dtype);
      const auto bytes = static_cast<size_t>(InfoOf(dtype).bytes);
      const std::vector<uint8_t> whole = Filled(tensor, WholeOf(tensor.shape()));
      for (int trial = 0; trial < 12; ++trial) {
        Box box = WholeOf(tensor.shape());
        for (size_t d = 0; d < box.shape.size(); ++d) {
          if (below(3) == 0) continue;
          box.offset[d] = below(box.shape[d]);
          box.shape[d] = 1 + below(tensor.shape()[d] - box.offset[d]);
        }
        const int64_t count = ElementCount(box.shape);
        const int64_t first = below(count), length = 1 + below(count - first);
        std::vector<uint8_t> part(static_cast<size_t>(length) * bytes);
        BoxFiller(tensor, box).Fill(first, length, part.data());
        for (int64_t e = 0; e < length; ++e) {
          int64_t rest = first + e, linear = 0, stride = 1;
          for (size_t d = box.shape.size(); d-- > 0;) {
            linear += (box.offset[d] + rest % box.shape[d]) * stride;
            rest /= box.shape[d];
            stride *= tensor.shape()[d];
          }
          ASSERT_EQ(std::memcmp(&part[static_cast<size_t>(e) * bytes],
                                &whole[static_cast<size_t>(linear) * bytes], bytes),
                    0)
              << c.text << " element " << e;
        }
      }
    }
  }
}

TEST(Expressions, ExpressionsRoundToF32ThenToTheirType) {
  const std::string text = "normal() * 0.02 + sqrt(i0)";
  const std::vector<double> exact = Values(Make(text, {1000}));
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    const std::vector<double> values = Values(Make(text, {1000}, dtype));
    for (size_t i = 0; i < values.size(); ++i) {
      uint8_t bytes[8];
      Encode(static_cast<float>(exact[i]), dtype, bytes);
      ASSERT_EQ(values[i], Decode(bytes, dtype));
    }
  }
}

std::string Refusal(const std::string& text, DType dtype) {
  const Tensor tensor = Make(text, {40, 50}, dtype);
  try {
    Filled(tensor, {{10, 0}, {30, 50}});
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kUsage);
    EXPECT_EQ(error.hint(), "its initializer is {expr: \"" + text + "\"}");
    return error.what();
  }
  return "";
}

TEST(Expressions, ExpressionsRejectNonfiniteValues) {
  EXPECT_EQ(Refusal("log(i0 * 50 + i1 - 1210)", DType::f32),
            "element [10, 0] of `w` is nan, which f32 cannot hold");
  EXPECT_EQ(Refusal("1 / (i0 * 50 + i1 - 1210)", DType::f64),
            "element [24, 10] of `w` is inf, which f64 cannot hold");
  // The branch that is not taken may have any value.
  EXPECT_EQ(Refusal("where(i0 < 1000, i1, log(-i0))", DType::f32), "");
  // The largest number of f16 is 65504; half a step above it rounds up.
  EXPECT_EQ(Refusal("i0 - i0 + 65519", DType::f16), "");
  EXPECT_EQ(Refusal("i0 - i0 + 65520", DType::f16),
            "element [10, 0] of `w` is 65520, which f16 cannot hold");
  EXPECT_EQ(Refusal("(i0 - i0 + 1) * 3e+38", DType::bf16), "");
  EXPECT_EQ(Refusal("(i0 - i0 + 1) * 3.4e+38", DType::f32), "");
  EXPECT_EQ(Refusal("(i0 - i0 + 1) * 3.4e+38", DType::bf16),
            "element [10, 0] of `w` is 3.4e+38, which bf16 cannot hold");
  EXPECT_EQ(Refusal("(i0 - i0 + 1) * 1e+39", DType::f32),
            "element [10, 0] of `w` is 1e+39, which f32 cannot hold");
}

}  // namespace
}  // namespace shardinit
