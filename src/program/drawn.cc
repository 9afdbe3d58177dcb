#include "program/drawn.h"

#include <limits>

#include "base/error.h"
#include "base/overloaded.h"
#include "expr/elementary-inl.h"
#include "graph/drawn/norm.h"
#include "init/sampled.h"
#include "program/encode.h"
#include "program/engine.h"
#include "program/table.h"

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

// Reads the words of a row, one after another.
class RowReader {
 public:
  RowReader(Function* out, std::string argument, const Word64& row)
      : out_(out), argument_(std::move(argument)), row_(row) {}

  Word32 Next() { return {out_, out_->TableElement(argument_, row_.value(), next_++)}; }
  // Returns a word by its number in the row, in a table whose rows have `length` words.
  Word32 At(int64_t length, const Word64& word) const {
    return {out_, out_->TableWord(argument_, (row_ * length + word).value())};
  }
  const Word64& row() const { return row_; }

 private:
  Function* out_;
  std::string argument_;
  Word64 row_;
  int64_t next_ = 0;
};

Word64 LinearOf(const Shape& shape, const Indices& at) {
  Word64 linear = 0;
  // Adds the last index last, so that the sum of the others has fewer elements.
  for (size_t d = 0; d < shape.size(); ++d) linear = linear * shape[d] + at[d];
  return linear;
}

struct Leaf {
  const Tensor& tensor;
  const Indices& at;
  Function* out;
  const ProgramEngine& engine;

  Source SourceOf(RowReader& row) const {
    const Word32 low = row.Next(), high = row.Next();
    return {low, high, LinearOf(tensor.shape(), at)};
  }
};

// The next word of a sampler, converted to the type of its member.
template <typename Next>
struct NextMember {
  operator Single() const { return FromBits(next()); }
  operator Word32() const { return next(); }
  const Next& next;
};

// Draws with a sampler of type S. next() returns the words of its members, one after another.
template <typename S, typename Next>
Single Sample(const ProgramEngine& engine, const Source& source, uint32_t draw, const Next& next) {
  const NextMember<Next> m{next};
  // Braced lists evaluate their elements from left to right.
  if constexpr (std::same_as<S, UniformSampler>) {
    return engine.sample(UniformSamplerOf<Single, Word32>{m, m, m}, source, draw);
  } else if constexpr (std::same_as<S, NormalSampler>) {
    return engine.sample(NormalSamplerOf<Single, Word32>{m, m, m}, source, draw);
  } else {
    static_assert(std::same_as<S, TruncatedNormalSampler>);
    return engine.sample(
        TruncatedNormalSamplerOf<Single, Word32>{m, m, {m, m}, {m, m}, m, m, m, m, m, m, m, m},
        source, draw);
  }
}

template <typename S>
Double SampleKnown(const ProgramEngine& engine, const Source& source, uint32_t draw,
                   const S& sampler) {
  const auto words = SamplerWords(sampler);
  size_t at = 0;
  return ToDouble(Sample<S>(engine, source, draw, [&] { return Word32(words[at++]); }));
}

// Draws with a sampler whose words are the next ones in the row.
template <typename S>
Word32 SampleNext(const ProgramEngine& engine, const Source& source, RowReader& row) {
  const Word32 bits = BitsOf(Sample<S>(engine, source, 0, [&] { return row.Next(); }));
  if constexpr (std::same_as<S, UniformSampler>) return bits;
  // No sample is -0. It could be -0 if the mean is 0, because XLA replaces x + 0 by x.
  return Select<Word32>(bits == 0x80000000u, 0, bits);
}

Double StandardNormal(const ProgramEngine& engine, const Source& source, uint32_t draw) {
  static const NormalSampler kSampler = MakeNormal(0, 1);
  return SampleKnown(engine, source, draw, kSampler);
}

Double PlacedNumber(const Program::PlacedCall& call, const Double& element, const Leaf& leaf) {
  const uint64_t key = leaf.engine.stream_of(call).key;
  const Source source{static_cast<uint32_t>(key), static_cast<uint32_t>(key >> 32),
                      ToWord(element)};
  const Double number = std::visit(
      Overloaded{
          [&](const BitsSampler&) { return ToDouble(Widen(leaf.engine.word(source, 0))); },
          [&](const auto& sampler) { return SampleKnown(leaf.engine, source, 0, sampler); },
      },
      leaf.engine.sampler_of(call));
  // A place that does not exist yields NaN.
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
        ToDouble(index.dimension == Program::kLinear ? LinearOf(leaf.tensor.shape(), leaf.at)
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
          slot = StandardNormal(leaf.engine, source, draw);
          break;
        case Draw::kUniform:
          slot = SampleKnown(leaf.engine, source, draw, kUniform);
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
  return EncodedNumber(slots[program.result], leaf.tensor.dtype(), leaf.out);
}

Value WriteSparse(const Sparse& s, const Leaf& leaf, RowReader& row) {
  const Source source = leaf.SourceOf(row);
  const Word32 value = SampleNext<NormalSampler>(leaf.engine, source, row);
  if (s.zeros == 0) return Encoded(value, leaf.tensor.dtype());
  const auto rank_of = [&](const Word64& element, const Word64& in_row) {
    const Source of{source.key_low, source.key_high, element};
    return (Widen(leaf.engine.word(of, 1)) << 32) | in_row;
  };
  // An added dimension covers all rows of the columns.
  const int64_t rows = leaf.tensor.shape()[0], columns = leaf.tensor.shape()[1];
  const int dimension = leaf.out->AddDimension(rows);
  const Word64 each = {leaf.out, leaf.out->Iota(dimension)};
  const Word64 all = rank_of(each * columns + leaf.at[1], each);
  const Word64 last = {leaf.out, leaf.out->SortedElement(all.value(), dimension, s.zeros - 1)};
  const Flag is_drawn = last < rank_of(source.element, leaf.at[0]);
  return Encoded(Select<Word32>(is_drawn, value, 0), leaf.tensor.dtype());
}

// Returns the sum of element(k)^2 for k below `count`, where the elements vary over these
// dimensions. Element k goes to sum k mod 8, and the sums are added in pairs.
template <typename F>
Double SumOfSquares(int64_t count, Over over, Function* out, F element) {
  constexpr int64_t kSums = 8;
  const Value nothing = out->Spread(out->Constant(DType::f64, 0), over);
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
  const Double square = SumOfSquares(leaf.tensor.shape()[n.axis], over, out, [&](const Word64& k) {
    Indices at = leaf.at;
    at[n.axis] = k;
    const Source of{source.key_low, source.key_high, LinearOf(leaf.tensor.shape(), at)};
    return StandardNormal(leaf.engine, of, 0);
  });
  const Double factor = Select<Double>(square > 0, Double(n.length) / Sqrt(square), 0);
  const Double value = StandardNormal(leaf.engine, source, 0) * factor;
  const Double settled = Select<Double>(Abs(value) < 0x1p-126, 0, value);
  return Encoded(RoundToF32(settled), leaf.tensor.dtype());
}

// Reads an element of a file from the table.
Value WriteStored(const Leaf& leaf, const RowReader& words) {
  const int64_t each = WordsOf(leaf.tensor.dtype()), length = leaf.tensor.elements() * each;
  const Word64 first = LinearOf(leaf.tensor.shape(), leaf.at) * each;
  const Word32 low = words.At(length, first);
  if (each == 1) return AsStored(low, leaf.tensor.dtype());
  const Word32 high = words.At(length, first + 1);
  const Value both = (Widen(high) << 32 | Widen(low)).value();
  const bool is_signed = leaf.tensor.dtype() == DType::i64;
  return is_signed ? leaf.out->Bitcast(both, DType::i64) : both;
}

Value WriteElement(const Leaf& leaf, RowReader words);

Value WriteNorm(const Leaf& leaf, const RowReader& words) {
  const Tensor& of = *leaf.tensor.measured();
  const Shape shape = WholeShapeOfNorms(leaf.tensor.shape(), of.shape());
  Function* out = leaf.out;
  // The dimensions of the other tensor that the norms are over, the last one first.
  std::vector<size_t> sides;
  Over over = words.row().value().over;
  int64_t terms = 1;
  for (size_t d = of.shape().size(); d-- > 0;) {
    if (shape[d] != of.shape()[d]) {
      sides.push_back(d);
      terms *= of.shape()[d];
    } else {
      over |= leaf.at[d].value().over;
    }
  }
  const Double square = SumOfSquares(terms, over, out, [&](Word64 k) {
    Indices at = leaf.at;
    at.resize(of.shape().size(), 0);
    for (const size_t d : sides) {
      at[d] = k % of.shape()[d];
      k = k / of.shape()[d];
    }
    const Leaf element{of, at, out, ProgramEngineOf(*of.stream().engine)};
    return Decoded(WriteElement(element, words), of.dtype(), out);
  });
  return EncodedNumber(Sqrt(square), leaf.tensor.dtype(), out);
}

// The words of the row must not have been read yet.
Value WriteElement(const Leaf& leaf, RowReader words) {
  return std::visit(
      Overloaded{
          [&](const Constant& c) { return ConstantOf(*leaf.out, c.value, leaf.tensor.dtype()); },
          [&](const Sampled auto& d) {
            const Source source = leaf.SourceOf(words);
            const Word32 value = SampleNext<decltype(SamplerOf(d))>(leaf.engine, source, words);
            return Encoded(value, leaf.tensor.dtype());
          },
          [&](const Expression& e) { return WriteExpression(e, leaf, words); },
          [&](const Orthogonal&) {
            return Encoded(words.At(leaf.tensor.elements(), LinearOf(leaf.tensor.shape(), leaf.at)),
                           leaf.tensor.dtype());
          },
          [&](const OneOf<FromFile, FromSource> auto&) { return WriteStored(leaf, words); },
          [&](const Norm&) { return WriteNorm(leaf, words); },
          [](const OneOf<RowsLike, Parts> auto&) -> Value {
            throw Bug("a distribution that no program has");
          },
          [&](const Sparse& s) { return WriteSparse(s, leaf, words); },
          [&](const Normalized& n) { return WriteNormalized(n, leaf, words); },
      },
      leaf.tensor.distribution());
}

}  // namespace

Value WriteDrawnTensors(const std::vector<const Tensor*>& tensors, const Word64& row,
                        const Indices& at, Function* out) {
  const Tensor& tensor = *tensors.front();
  const Table table = TableOf(tensors);
  std::string argument;
  if (table.columns > 0) {
    argument = out->AddArgument({table.rows(), table.columns});
  }
  return WriteElement({tensor, at, out, ProgramEngineOf(*tensor.stream().engine)},
                      RowReader(out, argument, row));
}

}  // namespace shardinit::program
