#include "program/drawn.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <bit>
#include <cstring>
#include <limits>

#include "base/error.h"
#include "base/overloaded.h"
#include "expr/elementary-inl.h"
#include "generate/fill.h"
#include "graph/engines/jax_draws.h"
#include "program/engine.h"
#include "rng/engines.h"
#include "tensor/encode-inl.h"

namespace shardinit::program {

// The conditions that choose a row of ErfInv's polynomials.
struct ErfInvRows {
  Flag central, past0, past1, past2;
};
inline ErfInvRows ErfInvRowOf(Flag central, Flag past0, Flag past1, Flag past2) {
  return {central, past0, past1, past2};
}
template <typename Member>
Double OfRow(const ErfInvRows& row, Member member) {
  const auto& rows = elementary::kErfInv;
  const Double upper = Select<Double>(row.past2, member(rows[4]), member(rows[3]));
  const Double past0 = Select<Double>(row.past1, upper, member(rows[2]));
  const Double outer = Select<Double>(row.past0, past0, member(rows[1]));
  return Select<Double>(row.central, member(rows[0]), outer);
}

namespace {

using Indices = std::vector<Word64>;

// Orthogonal matrices up to this size are written as their values.
constexpr int64_t kMaxWrittenElements = 1 << 16;
// The elements of files have no other form, so this limit is larger.
constexpr int64_t kMaxFileElements = 1 << 21;

uint32_t BitsIn(float value) { return std::bit_cast<uint32_t>(value); }

void AppendKey(const Tensor& tensor, std::vector<uint32_t>* words) {
  words->push_back(static_cast<uint32_t>(tensor.stream.key));
  words->push_back(static_cast<uint32_t>(tensor.stream.key >> 32));
}

// Returns the number of words that an element of a file takes in a table.
int64_t WordsOf(DType dtype) { return InfoOf(dtype).bytes == 8 ? 2 : 1; }

// Appends the elements of a file, each as words, the low one first.
void AppendElements(const Tensor& tensor, std::vector<uint32_t>* words) {
  if (tensor.elements() > kMaxFileElements) {
    throw Error(ExitCode::kUsage,
                fmt::format("`{}` has its {} elements from a file, but a program has such tensors "
                            "of up to {} alone",
                            tensor.path, tensor.elements(), kMaxFileElements),
                "leave it out with `--only`, and take it from `gen`");
  }
  const auto bytes = static_cast<size_t>(InfoOf(tensor.dtype).bytes);
  const auto count = static_cast<size_t>(tensor.elements());
  std::vector<uint8_t> elements(count * bytes);
  FillBox(tensor, WholeOf(tensor.shape), 1, elements.data());
  const size_t each = 4 * static_cast<size_t>(WordsOf(tensor.dtype));
  for (size_t i = 0; i < count; ++i) {
    uint32_t word[2] = {};
    std::memcpy(word, &elements[i * bytes], bytes);
    words->insert(words->end(), word, word + each / 4);
  }
}

// Appends a tensor's row of the table, in the order in which WriteElement() takes the words.
void AppendRow(const Tensor& tensor, std::vector<uint32_t>* words) {
  if (IsRandom(tensor.distribution) && !std::holds_alternative<Orthogonal>(tensor.distribution)) {
    AppendKey(tensor, words);
  }
  std::visit(
      Overloaded{
          [&](const Uniform& u) {
            const UniformSampler s = MakeUniform(u.low, u.high);
            for (const float x : {s.low, s.span, s.last}) words->push_back(BitsIn(x));
          },
          [&](const Normal& n) {
            const NormalSampler s = MakeNormal(n.mean, n.std);
            for (const float x : {s.mean, s.scale, s.std}) words->push_back(BitsIn(x));
          },
          [&](const TruncatedNormal& t) {
            const TruncatedNormalSampler s = MakeTruncatedNormal(t.mean, t.std, t.low, t.high);
            for (const float x : {s.mean, s.std, s.tail[0], s.tail[1], s.step[0], s.step[1]}) {
              words->push_back(BitsIn(x));
            }
            words->push_back(s.sign_mask);
            words->push_back(s.sign_flip);
            for (const float x :
                 {s.z_low, s.z_high, s.erf_low, s.erf_span, s.inside_low, s.inside_high}) {
              words->push_back(BitsIn(x));
            }
          },
          [&](const Sparse& s) {
            const NormalSampler n = MakeNormal(0, s.std);
            for (const float x : {n.mean, n.scale, n.std}) words->push_back(BitsIn(x));
          },
          [&](const Orthogonal&) {
            if (tensor.elements() > kMaxWrittenElements) {
              throw Error(ExitCode::kUsage,
                          fmt::format("`{}` is an orthogonal matrix of {} elements, but a program "
                                      "has such matrices of up to {} alone, as their values",
                                      tensor.path, tensor.elements(), kMaxWrittenElements),
                          "leave it out with `--only`, and take it from `gen`");
            }
            Tensor whole = tensor;
            whole.dtype = DType::f32;
            std::vector<uint32_t> bits(static_cast<size_t>(whole.elements()));
            FillBox(whole, WholeOf(whole.shape), 1, bits.data());
            words->insert(words->end(), bits.begin(), bits.end());
          },
          [&](const FromFile&) { AppendElements(tensor, words); },
          [&](const Norm& n) {
            if (std::holds_alternative<Sparse>(n.tensor->distribution)) {
              throw Error(ExitCode::kUsage,
                          fmt::format("`{}` holds norms of the sparse `{}`, which no program makes",
                                      tensor.path, n.of),
                          "leave it out with `--only`, and take it from `gen`");
            }
            ProgramEngineOf(*n.tensor->stream.engine);
            AppendRow(*n.tensor, words);
          },
          [](const OneOf<Constant, Expression, Normalized> auto&) {},
      },
      tensor.distribution);
}

// Takes the words of a row, one after another.
class RowReader {
 public:
  RowReader(Function* out, std::string argument, const Word64& row)
      : out_(out), argument_(std::move(argument)), row_(row) {}

  Word32 Next() { return {out_, out_->Take(argument_, row_.value(), next_++)}; }
  Single NextSingle() { return FromBits(Next()); }
  // Returns one of all words of a table whose rows have `length` words.
  Word32 At(int64_t length, const Word64& word) const {
    return {out_, out_->TakeFlat(argument_, (row_ * length + word).value())};
  }
  const Word64& row() const { return row_; }

 private:
  Function* out_;
  std::string argument_;
  Word64 row_;
  int64_t next_ = 0;
};

// Returns the bits of the nearest f32, also of a subnormal one on processors that have none.
Word32 RoundToF32(const Double& number) {
  Function* in = number.in();
  if (in == nullptr) {
    return BitsIn(static_cast<float>(std::bit_cast<double>(BitsOf(number).constant())));
  }
  const Double size = Abs(number);
  // One unit in the last place of 2^-97 is 2^-149.
  const Word64 multiple = BitsOf(size + 0x1p-97) - std::bit_cast<uint64_t>(0x1p-97);
  const Word32 sign = LowWord(BitsOf(number) >> 32) & 0x80000000u;
  const Value near = in->Convert(size.ValueIn(in), Element::kF32);
  const Word32 normal = {in, in->Bitcast(near, Element::kU32)};
  return sign | Select<Word32>(size < 0x1p-126, LowWord(multiple), normal);
}

Value Narrow(const Word32& word, Element element) {
  Function* in = word.in();
  const Word32 low = word & ((1u << (8 * BytesOf(element))) - 1);
  return in->Convert(low.value(), element);
}

// Converts the bits of an element of up to 32 bits to its stored form.
Value AsStored(const Word32& bits, DType dtype) {
  Function* in = bits.in();
  const DTypeInfo& info = InfoOf(dtype);
  if (dtype == DType::boolean) return (bits != 0).value();
  const Element word = info.bytes == 4   ? Element::kU32
                       : info.bytes == 2 ? Element::kU16
                                         : Element::kU8;
  const Value narrow = info.bytes == 4 ? bits.value() : Narrow(bits, word);
  return info.is_float() ? narrow : in->Bitcast(narrow, ElementOf(dtype));
}

// Converts a sampler's value to its stored form.
Value Encoded(const Word32& bits, DType dtype) {
  switch (dtype) {
    case DType::f32:
      return bits.value();
    case DType::f64: {
      Function* in = bits.in();
      return in->Bitcast(in->Convert(in->Bitcast(bits.value(), Element::kF32), Element::kF64),
                         Element::kU64);
    }
    case DType::bf16:
      return Narrow(encoding::Bf16(bits), Element::kU16);
    case DType::f16:
      return Narrow(encoding::Small<DType::f16>(bits), Element::kU16);
    case DType::f8e4m3fn:
      return Narrow(encoding::Small<DType::f8e4m3fn>(bits), Element::kU8);
    case DType::f8e5m2:
      return Narrow(encoding::Small<DType::f8e5m2>(bits), Element::kU8);
    default:
      Check(false, "a fraction for an integer");
  }
  return {};
}

// Converts an expression's number to its stored form.
Value EncodedNumber(const Double& number, DType dtype, Function* in) {
  if (number.is_constant()) {
    return ConstantOf(*in, std::bit_cast<double>(BitsOf(number).constant()), dtype);
  }
  const DTypeInfo& info = InfoOf(dtype);
  if (dtype == DType::f64) return BitsOf(number).value();
  if (info.is_float()) return Encoded(RoundToF32(number), dtype);
  if (dtype == DType::boolean) return (number != 0).value();
  const Value whole = in->Convert(number.ValueIn(in), Element::kI64);
  return in->Convert(whole, ElementOf(dtype));
}

Word64 LinearOf(const Shape& shape, const Indices& at) {
  Word64 linear = 0;
  // The last index is added last: the sum of the others is over fewer elements.
  for (size_t d = 0; d < shape.size(); ++d) linear = linear * shape[d] + at[d];
  return linear;
}

const NormalParameters kStandardNormal = [] {
  const NormalSampler s = MakeNormal(0, 1);
  return NormalParameters{s.mean, s.scale, s.std};
}();

struct Leaf {
  const Tensor& tensor;
  const Indices& at;
  Function* out;
  const ProgramEngine& engine;

  Source SourceOf(RowReader& row) const {
    const Word32 low = row.Next(), high = row.Next();
    return {low, high, LinearOf(tensor.shape, at)};
  }
};

// Returns a number that JAX draws with the call's key: programs have no other placed numbers.
Double PlacedNumber(const Program::PlacedCall& call, const Double& element, const Leaf& leaf) {
  const uint64_t key = JaxStreamOf(call).key;
  const Source source{static_cast<uint32_t>(key), static_cast<uint32_t>(key >> 32),
                      ToWord(element)};
  const Double number = std::visit(
      Overloaded{
          [&](const BitsSampler&) { return ToDouble(Widen(leaf.engine.word(source, 0))); },
          [&](const UniformSampler& s) {
            return ToDouble(leaf.engine.uniform({s.low, s.span, s.last}, source, 0));
          },
          [&](const NormalSampler& s) {
            return ToDouble(leaf.engine.normal({s.mean, s.scale, s.std}, source, 0));
          },
          [&](const TruncatedNormalSampler& s) {
            const TruncatedNormalParameters p{s.mean,
                                              s.std,
                                              {s.tail[0], s.tail[1]},
                                              {s.step[0], s.step[1]},
                                              s.sign_mask,
                                              s.sign_flip,
                                              s.z_low,
                                              s.z_high,
                                              s.erf_low,
                                              s.erf_span,
                                              s.inside_low,
                                              s.inside_high};
            return ToDouble(leaf.engine.truncated_normal(p, source, 0));
          },
      },
      *JaxSamplerOf(call));
  // A place that does not exist gives NaN.
  const Double none = std::numeric_limits<double>::quiet_NaN();
  const Double whole = Select<Double>(Floor(element) == element, number, none);
  return Select<Double>(element < 0, none, Select<Double>(element < 0x1p53, whole, none));
}

Value WriteExpression(const Expression& e, const Leaf& leaf, RowReader& row) {
  const Program& program = *e.program;
  std::vector<Double> slots(program.slots, Double(0));
  for (const Program::Literal& literal : program.literals) slots[literal.slot] = literal.value;
  for (const Program::Index& index : program.indices) {
    slots[index.slot] =
        ToDouble(index.dimension == Program::kLinear ? LinearOf(leaf.tensor.shape, leaf.at)
                                                     : leaf.at[index.dimension]);
  }
  if (!program.draws.empty()) {
    const Source source = leaf.SourceOf(row);
    static const UniformSampler kUniform = MakeUniform(0, 1);
    for (size_t i = 0; i < program.draws.size(); ++i) {
      const auto draw = static_cast<uint32_t>(i);
      Double& slot = slots[program.draws[i].slot];
      switch (program.draws[i].draw) {
        case Draw::kNormal:
          slot = ToDouble(leaf.engine.normal(kStandardNormal, source, draw));
          break;
        case Draw::kUniform:
          slot = ToDouble(
              leaf.engine.uniform({kUniform.low, kUniform.span, kUniform.last}, source, draw));
          break;
        case Draw::kBits:
          slot = ToDouble(Widen(leaf.engine.word(source, draw)));
          break;
      }
    }
  }
  size_t placed = 0;
  for (size_t k = 0; k <= program.code.size(); ++k) {
    for (; placed < program.placed.size() && program.placed[placed].before == k; ++placed) {
      const Program::PlacedCall& call = program.placed[placed];
      slots[call.out] = PlacedNumber(call, slots[call.element], leaf);
    }
    if (k == program.code.size()) break;
    const Program::Instruction& i = program.code[k];
    using F = Double;
    const F x = slots[i.a], y = slots[i.b], z = slots[i.c];
    F& result = slots[i.out];
    switch (i.op) {
#define SHARDINIT_CASE(name, formula) \
  case ElementOp::name:               \
    result = formula;                 \
    break;
      SHARDINIT_ELEMENT_OPERATIONS(SHARDINIT_CASE, SHARDINIT_CASE, SHARDINIT_CASE)
#undef SHARDINIT_CASE
    }
  }
  return EncodedNumber(slots[program.result], leaf.tensor.dtype, leaf.out);
}

Value WriteSparse(const Sparse& s, const Leaf& leaf, RowReader& row) {
  const Source source = leaf.SourceOf(row);
  // A braced list takes the words from left to right.
  const NormalParameters normal{row.NextSingle(), row.NextSingle(), row.NextSingle()};
  const Word32 value = BitsOf(leaf.engine.normal(normal, source, 0));
  if (s.zeros == 0) return Encoded(value, leaf.tensor.dtype);
  const auto rank_of = [&](const Word64& element, const Word64& in_row) {
    const Source of{source.key_low, source.key_high, element};
    return (Widen(leaf.engine.word(of, 1)) << 32) | in_row;
  };
  // All rows of the columns are along an added dimension.
  const int64_t rows = leaf.tensor.shape[0], columns = leaf.tensor.shape[1];
  const int dimension = leaf.out->AddDimension(rows);
  const Word64 each = {leaf.out, leaf.out->Iota(dimension)};
  const Word64 all = rank_of(each * columns + leaf.at[1], each);
  const Word64 last = {leaf.out, leaf.out->Nth(all.value(), dimension, s.zeros - 1)};
  const Flag is_drawn = last < rank_of(source.element, leaf.at[0]);
  return Encoded(Select<Word32>(is_drawn, value, 0), leaf.tensor.dtype);
}

// Returns the sum of element(k)^2 for k below `count`; the elements are over these dimensions.
// Element k goes to sum k mod 8, and the sums are added in pairs.
template <typename F>
Double SumOfSquares(int64_t count, Over over, Function* out, F element) {
  constexpr int64_t kSums = 8;
  const Value nothing = out->Spread(out->Constant(Element::kF64, 0), over);
  std::vector<Value> zeros(kSums, nothing);
  for (Value& zero : zeros) zero.over = over;
  const std::vector<Value> sums = out->Repeat(
      (count + kSums - 1) / kSums, zeros, [&](Value step, const std::vector<Value>& before) {
        std::vector<Value> after;
        for (int64_t m = 0; m < kSums; ++m) {
          const Word64 k = Word64(out, step) * kSums + m;
          const Double x = element(k);
          Double square = x * x;
          if (count % kSums != 0) square = Select<Double>(k < Word64(count), square, 0);
          after.push_back((Double(out, before[m]) + square).ValueIn(out));
        }
        return after;
      });
  const auto p = [&](int m) { return Double(out, sums[m]); };
  return ((p(0) + p(1)) + (p(2) + p(3))) + ((p(4) + p(5)) + (p(6) + p(7)));
}

Value WriteNormalized(const Normalized& n, const Leaf& leaf, RowReader& row) {
  const Source source = leaf.SourceOf(row);
  Function* out = leaf.out;
  Over over = source.key_low.value().over;
  for (size_t d = 0; d < leaf.at.size(); ++d) {
    if (static_cast<int64_t>(d) != n.axis) over |= leaf.at[d].value().over;
  }
  const Double square = SumOfSquares(leaf.tensor.shape[n.axis], over, out, [&](const Word64& k) {
    Indices at = leaf.at;
    at[n.axis] = k;
    const Source of{source.key_low, source.key_high, LinearOf(leaf.tensor.shape, at)};
    return ToDouble(leaf.engine.normal(kStandardNormal, of, 0));
  });
  const Double factor = Select<Double>(square > 0, Double(n.length) / Sqrt(square), 0);
  const Double value = ToDouble(leaf.engine.normal(kStandardNormal, source, 0)) * factor;
  const Double settled = Select<Double>(Abs(value) < 0x1p-126, 0, value);
  return Encoded(RoundToF32(settled), leaf.tensor.dtype);
}

// Returns the number that the bits of a finite float stand for; Encoded() made the bits.
Double Decoded(const Value& bits, DType dtype, Function* out) {
  if (dtype == DType::f64) return FromBits(Word64(out, bits));
  if (dtype == DType::f32) return ToDouble(FromBits(Word32(out, bits)));
  const DTypeInfo& info = InfoOf(dtype);
  const int bias = (1 << (info.exponent_bits - 1)) - 1;
  const Word64 word(out, out->Convert(bits, Element::kU64));
  const Word64 sign = word >> (8 * info.bytes - 1) << 63;
  const Word64 size = word & ((uint64_t{1} << (8 * info.bytes - 1)) - 1);
  const Double normal =
      FromBits((size << (52 - info.mantissa_bits)) + (static_cast<uint64_t>(1023 - bias) << 52));
  const Double subnormal = ToDouble(size) * std::ldexp(1, 1 - bias - info.mantissa_bits);
  const Flag is_subnormal = size < (uint64_t{1} << info.mantissa_bits);
  return FromBits(BitsOf(Select<Double>(is_subnormal, subnormal, normal)) | sign);
}

Value WriteElement(const Leaf& leaf, RowReader words);

Value WriteNorm(const Norm& n, const Leaf& leaf, const RowReader& words) {
  const Tensor& of = *n.tensor;
  Function* out = leaf.out;
  // The dimensions of the other tensor that the norms are over, the last first.
  std::vector<size_t> sides;
  Over over = words.row().value().over;
  int64_t terms = 1;
  for (size_t d = of.shape.size(); d-- > 0;) {
    if (leaf.tensor.shape.empty() || leaf.tensor.shape[d] != of.shape[d]) {
      sides.push_back(d);
      terms *= of.shape[d];
    } else {
      over |= leaf.at[d].value().over;
    }
  }
  const Double square = SumOfSquares(terms, over, out, [&](Word64 k) {
    Indices at = leaf.at;
    at.resize(of.shape.size(), 0);
    for (const size_t d : sides) {
      at[d] = k % of.shape[d];
      k = k / of.shape[d];
    }
    const Leaf element{of, at, out, ProgramEngineOf(*of.stream.engine)};
    return Decoded(WriteElement(element, words), of.dtype, out);
  });
  return EncodedNumber(Sqrt(square), leaf.tensor.dtype, out);
}

// The words of the row have not been taken yet.
Value WriteElement(const Leaf& leaf, RowReader words) {
  return std::visit(
      Overloaded{
          [&](const Constant& c) { return ConstantOf(*leaf.out, c.value, leaf.tensor.dtype); },
          [&](const Uniform&) {
            const Source source = leaf.SourceOf(words);
            const UniformParameters s{words.NextSingle(), words.NextSingle(), words.NextSingle()};
            return Encoded(BitsOf(leaf.engine.uniform(s, source, 0)), leaf.tensor.dtype);
          },
          [&](const Normal&) {
            const Source source = leaf.SourceOf(words);
            const NormalParameters s{words.NextSingle(), words.NextSingle(), words.NextSingle()};
            return Encoded(BitsOf(leaf.engine.normal(s, source, 0)), leaf.tensor.dtype);
          },
          [&](const TruncatedNormal&) {
            const Source source = leaf.SourceOf(words);
            const auto next = [&] { return words.NextSingle(); };
            const TruncatedNormalParameters s{
                next(), next(), {next(), next()}, {next(), next()}, words.Next(), words.Next(),
                next(), next(), next(),           next(),           next(),       next()};
            return Encoded(BitsOf(leaf.engine.truncated_normal(s, source, 0)), leaf.tensor.dtype);
          },
          [&](const Expression& e) { return WriteExpression(e, leaf, words); },
          [&](const Orthogonal&) {
            return Encoded(words.At(leaf.tensor.elements(), LinearOf(leaf.tensor.shape, leaf.at)),
                           leaf.tensor.dtype);
          },
          [&](const FromFile&) {
            const int64_t each = WordsOf(leaf.tensor.dtype), length = leaf.tensor.elements() * each;
            const Word64 first = LinearOf(leaf.tensor.shape, leaf.at) * each;
            const Word32 low = words.At(length, first);
            if (each == 1) return AsStored(low, leaf.tensor.dtype);
            const Word32 high = words.At(length, first + 1);
            const Value both = (Widen(high) << 32 | Widen(low)).value();
            const bool is_signed = leaf.tensor.dtype == DType::i64;
            return is_signed ? leaf.out->Bitcast(both, Element::kI64) : both;
          },
          [&](const Norm& n) { return WriteNorm(n, leaf, words); },
          [&](const Sparse& s) { return WriteSparse(s, leaf, words); },
          [&](const Normalized& n) { return WriteNormalized(n, leaf, words); },
      },
      leaf.tensor.distribution);
}

}  // namespace

std::string KindOf(const Tensor& tensor) {
  std::string kind = fmt::format("{} ", tensor.shape);
  return kind +
         std::visit(Overloaded{
                        // Their parameters are in the table.
                        [](const Uniform&) -> std::string { return "uniform"; },
                        [](const Normal&) -> std::string { return "normal"; },
                        [](const TruncatedNormal&) -> std::string { return "truncated_normal"; },
                        [](const Orthogonal&) -> std::string { return "orthogonal"; },
                        [](const FromFile&) -> std::string { return "file"; },
                        [](const Norm& n) {
                          return fmt::format("norms of {} {}", InfoOf(n.tensor->dtype).name,
                                             KindOf(*n.tensor));
                        },
                        [](const Sparse& s) { return fmt::format("sparse {}", s.zeros); },
                        [](const OneOf<Constant, Expression, Normalized> auto& d) {
                          return InText(Distribution(d));
                        },
                    },
                    tensor.distribution);
}

Table TableOf(const std::vector<const Tensor*>& tensors) {
  Table table;
  for (const Tensor* tensor : tensors) {
    ProgramEngineOf(*tensor->stream.engine);
    AppendRow(*tensor, &table.words);
  }
  table.columns = std::ssize(table.words) / std::ssize(tensors);
  return table;
}

Value ConstantOf(const Function& out, double value, DType dtype) {
  uint64_t bits = 0;
  EncodeNumber(value, dtype, &bits);
  Element element = ElementOf(dtype);
  if (InfoOf(dtype).is_float()) {
    const int bytes = InfoOf(dtype).bytes;
    element = bytes == 8   ? Element::kU64
              : bytes == 4 ? Element::kU32
              : bytes == 2 ? Element::kU16
                           : Element::kU8;
  }
  return out.Constant(element, bits);
}

Value WriteDrawnTensors(const std::vector<const Tensor*>& tensors, const Word64& row,
                        const Indices& at, Function* out) {
  const Tensor& tensor = *tensors.front();
  const Table table = TableOf(tensors);
  std::string argument;
  if (table.columns > 0) {
    argument = out->AddArgument({table.rows(), table.columns}, Element::kU32);
  }
  return WriteElement({tensor, at, out, ProgramEngineOf(*tensor.stream.engine)},
                      RowReader(out, argument, row));
}

}  // namespace shardinit::program
