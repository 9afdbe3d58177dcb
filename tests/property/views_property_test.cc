// Compares random trees of views with a plain evaluator that moves one element at a time. Every
// stretch of every box must equal the same part of the whole.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <set>

#include "generate/fill.h"
#include "graph/stored/view.h"
#include "support/cases.h"
#include "support/filled.h"
#include "support/random_plan.h"
#include "tensor/coverage.h"
#include "tensor/encode.h"

namespace shardinit {
namespace {

// The origin of each element of a tensor: {drawn tensor or kPadding, index}.
struct Labels {
  Shape shape;
  std::vector<std::pair<int64_t, int64_t>> at;
};

Shape IndexOf(int64_t linear, const Shape& shape) {
  Shape index(shape.size());
  for (size_t d = shape.size(); d-- > 0; linear /= shape[d]) index[d] = linear % shape[d];
  return index;
}

int64_t LinearOf(const Shape& index, const Shape& shape) {
  int64_t linear = 0;
  for (size_t d = 0; d < shape.size(); ++d) linear = linear * shape[d] + index[d];
  return linear;
}

// Returns labels of this shape, with `pick(index)` at each index.
template <typename Pick>
Labels Make(Shape shape, const Pick& pick) {
  Labels out{std::move(shape), {}};
  for (int64_t i = 0; i < ElementCount(out.shape); ++i)
    out.at.push_back(pick(IndexOf(i, out.shape)));
  return out;
}

const std::pair<int64_t, int64_t>& At(const Labels& labels, const Shape& index) {
  return labels.at[static_cast<size_t>(LinearOf(index, labels.shape))];
}

// A random tensor: the view as built by the tool, and its elements one by one.
struct Case {
  Viewed viewed;
  Labels labels;
  std::string text;  // For messages.
};

class Maker {
 public:
  Maker(uint64_t seed, std::vector<Tensor>* drawn, DType dtype)
      : random_(seed), drawn_(drawn), dtype_(dtype) {}

  Case Any(int depth) {
    if (depth == 0 || random_.Chance(6)) return again_ ? First() : Drawn(RandomShape(random_, 200));
    Case in = Any(depth - 1);
    const int64_t rank = std::ssize(in.labels.shape);
    const int64_t axis = rank == 0 ? 0 : random_.In(0, rank - 1);
    const int64_t extent = rank == 0 ? 1 : in.labels.shape[static_cast<size_t>(axis)];
    if (rank == 0) return Stacked(std::move(in));
    switch (random_.In(0, 6)) {
      case 0:
        return Stacked(std::move(in));
      case 1:
        return Concatenated(std::move(in), axis);
      case 2:
        return Interleaved(std::move(in), axis, extent);
      case 3:
        return Transposed(std::move(in));
      case 4:
        return Reshaped(std::move(in));
      case 5: {
        const int64_t to = extent + random_.In(0, 5);
        Shape shape = in.labels.shape;
        shape[static_cast<size_t>(axis)] = to;
        const Labels labels = Make(shape, [&](const Shape& i) {
          return i[static_cast<size_t>(axis)] < extent ? At(in.labels, i)
                                                       : std::pair(Piece::kPadding, int64_t{0});
        });
        return Applied("pad", {std::move(in)}, {axis, to, 2.5}, labels);
      }
      default: {
        const int64_t start = random_.In(0, extent - 1), stop = random_.In(start + 1, extent);
        Shape shape = in.labels.shape;
        shape[static_cast<size_t>(axis)] = stop - start;
        const Labels labels = Make(shape, [&](Shape i) {
          i[static_cast<size_t>(axis)] += start;
          return At(in.labels, i);
        });
        return Applied("slice", {std::move(in)}, {axis, start, stop}, labels);
      }
    }
  }

  // Applies all further operations to the first drawn tensor.
  void DrawAgain() { again_ = true; }

 private:
  Case First() {
    const Tensor& first = drawn_->front();
    Labels labels{first.shape(), {}};
    for (int64_t i = 0; i < first.elements(); ++i) labels.at.emplace_back(0, i);
    return {ViewedTensor(0, first), std::move(labels), std::string(first.path())};
  }

  Case Drawn(const Shape& shape) {
    const auto index = std::ssize(*drawn_);
    Distribution distribution = Normal{0, 1};
    if (random_.Chance(3)) distribution = Uniform{-1, 1};
    if (random_.Chance(3)) {
      distribution = Expression{CompileCanonical("index * 0.25 + normal()", shape)};
    }
    if (random_.Chance(6)) distribution = Constant{static_cast<double>(index)};
    drawn_->push_back(MakeTensor(fmt::format("t{}", index), dtype_, shape, distribution));
    Labels labels{shape, {}};
    for (int64_t i = 0; i < ElementCount(shape); ++i) labels.at.emplace_back(index, i);
    return {ViewedTensor(static_cast<size_t>(index), drawn_->back()), std::move(labels),
            fmt::format("t{}", index)};
  }

  // Makes a view of the given shape in another way.
  Case Like(const Shape& shape) {
    Case made = Drawn(shape);
    if (!random_.Chance(2) || shape.empty()) return made;
    Shape flat = {ElementCount(shape)};
    made = Drawn(flat);
    Labels labels{shape, made.labels.at};
    return Applied("reshape", {std::move(made)}, {shape}, labels);
  }

  Case Applied(std::string_view name, std::vector<Case> of, std::vector<ViewArgument> arguments,
               Labels labels) {
    Case out{{}, std::move(labels), fmt::format("{}(", name)};
    std::vector<Viewed> inputs;
    for (Case& input : of) {
      out.text += input.text + " ";
      inputs.push_back(std::move(input.viewed));
    }
    for (const ViewArgument& argument : arguments) {
      if (const auto* integer = std::get_if<int64_t>(&argument))
        out.text += fmt::format("{} ", *integer);
    }
    out.text += ")";
    ViewProblem problem;
    auto viewed = Apply(*FindViewOperation(name), std::move(inputs), arguments, &budget_, &problem);
    EXPECT_TRUE(viewed) << out.text << problem.message;
    if (viewed) out.viewed = std::move(*viewed);
    return out;
  }

  Case Stacked(Case first) {
    const Shape shape = first.labels.shape;
    const int64_t axis = random_.In(0, std::ssize(shape)), n = random_.In(1, 4);
    std::vector<Case> of;
    of.push_back(std::move(first));
    while (std::ssize(of) < n) of.push_back(Like(shape));
    Shape stacked = shape;
    stacked.insert(stacked.begin() + axis, n);
    const Labels labels = Make(stacked, [&](Shape i) {
      const auto which = static_cast<size_t>(i[static_cast<size_t>(axis)]);
      i.erase(i.begin() + axis);
      return At(of[which].labels, i);
    });
    return Applied("stack", std::move(of), {axis - (random_.Chance(2) ? 0 : std::ssize(stacked))},
                   labels);
  }

  Case Concatenated(Case first, int64_t axis) {
    const auto d = static_cast<size_t>(axis);
    std::vector<Case> of;
    of.push_back(std::move(first));
    Shape whole = of.front().labels.shape;
    for (int64_t n = random_.In(0, 3); n > 0; --n) {
      Shape shape = whole;
      shape[d] = random_.In(1, 5);
      of.push_back(Like(shape));
    }
    whole[d] = 0;
    for (const Case& part : of) whole[d] += part.labels.shape[d];
    const Labels labels = Make(whole, [&](Shape i) {
      size_t which = 0;
      while (i[d] >= of[which].labels.shape[d]) i[d] -= of[which++].labels.shape[d];
      return At(of[which].labels, i);
    });
    return Applied("concat", std::move(of), {axis}, labels);
  }

  Case Interleaved(Case first, int64_t axis, int64_t extent) {
    const auto d = static_cast<size_t>(axis);
    int64_t groups = random_.In(1, extent);
    while (extent % groups != 0) --groups;
    std::vector<Case> of;
    of.push_back(std::move(first));
    Shape whole = of.front().labels.shape;
    for (int64_t n = random_.In(0, 3); n > 0; --n) {
      Shape shape = whole;
      shape[d] = groups * random_.In(1, 3);
      of.push_back(Like(shape));
    }
    whole[d] = 0;
    for (const Case& part : of) whole[d] += part.labels.shape[d];
    const Labels labels = Make(whole, [&](Shape i) {
      const int64_t per_group = whole[d] / groups, group = i[d] / per_group;
      i[d] %= per_group;
      size_t which = 0;
      while (i[d] >= of[which].labels.shape[d] / groups)
        i[d] -= of[which++].labels.shape[d] / groups;
      i[d] += group * (of[which].labels.shape[d] / groups);
      return At(of[which].labels, i);
    });
    return Applied("interleave", std::move(of), {axis, groups}, labels);
  }

  Case Transposed(Case in) {
    const Shape before = in.labels.shape;
    std::vector<int64_t> axes(before.size());
    std::iota(axes.begin(), axes.end(), int64_t{0});
    for (size_t a = axes.size(); a > 1; --a) {
      std::swap(axes[a - 1], axes[static_cast<size_t>(random_.In(0, static_cast<int64_t>(a) - 1))]);
    }
    Shape shape;
    for (const int64_t axis : axes) shape.push_back(before[static_cast<size_t>(axis)]);
    const Labels labels = Make(shape, [&](const Shape& i) {
      Shape from(i.size());
      for (size_t d = 0; d < i.size(); ++d) from[static_cast<size_t>(axes[d])] = i[d];
      return At(in.labels, from);
    });
    return Applied("transpose", {std::move(in)}, {axes}, labels);
  }

  Case Reshaped(Case in) {
    Shape shape;
    int64_t left = ElementCount(in.labels.shape);
    while (left > 1 && shape.size() < 4) {
      int64_t extent = random_.In(2, left);
      while (left % extent != 0) --extent;
      if (extent == 1) extent = left;
      shape.push_back(extent);
      left /= extent;
    }
    if (left > 1 || shape.empty()) shape.push_back(left);
    Labels labels{shape, in.labels.at};
    return Applied("reshape", {std::move(in)}, {shape}, labels);
  }

  Random random_;
  std::vector<Tensor>* drawn_;
  const DType dtype_;
  PieceBudget budget_ = kMaxPieces;
  bool again_ = false;
};

constexpr uint64_t kSeeds = Cases(3000);

TEST(Views, ViewsCountRepeatedElementsOnce) {
  int whole = 0, more_than_whole = 0;
  for (uint64_t seed = 0; seed < kSeeds; ++seed) {
    std::vector<Tensor> drawn;
    Maker maker(seed, &drawn, DType::f32);
    maker.Any(0);
    std::vector<Case> cases;
    const int64_t all = drawn[0].elements();
    maker.DrawAgain();
    for (uint64_t n = 0; n <= seed % 12; ++n) {
      Case made = maker.Any(1 + static_cast<int>(n + seed) % 4);
      const bool is_whole = std::count_if(made.labels.at.begin(), made.labels.at.end(),
                                          [](const auto& at) { return at.first == 0; }) >= all;
      if (!is_whole || n == 1) cases.push_back(std::move(made));
    }
    ASSERT_FALSE(HasFailure()) << seed;
    std::vector<const Piece*> pieces;
    std::set<int64_t> held;
    int64_t elements = 0;
    std::string text;
    for (const Case& of : cases) {
      text += of.text + "; ";
      for (const Piece& piece : of.viewed.arrangement.pieces) {
        if (piece.source == 0) pieces.push_back(&piece);
      }
      for (const auto& [source, index] : of.labels.at) {
        if (source != 0) continue;
        held.insert(index);
        ++elements;
      }
    }
    ASSERT_EQ(CountHeld(pieces), std::ssize(held)) << "seed " << seed << ": " << text;
    whole += std::ssize(held) == all;
    more_than_whole += std::ssize(held) < all && elements >= all;
  }
  EXPECT_GT(whole, Cases(500));  // With fewer cases, this test would show little.
  EXPECT_GT(more_than_whole, Cases(50));
}

TEST(Views, ViewsMatchTheirOperations) {
  for (uint64_t seed = 0; seed < kSeeds; ++seed) {
    const DType dtype = std::vector{DType::f32, DType::bf16, DType::f64}[seed % 3];
    const auto drawn = std::make_shared<std::vector<Tensor>>();
    const Case made = Maker(seed, drawn.get(), dtype).Any(static_cast<int>(seed % 5));
    SCOPED_TRACE(fmt::format("seed {}: {}", seed, made.text));
    ASSERT_FALSE(HasFailure());
    ASSERT_EQ(made.viewed.arrangement.shape, made.labels.shape);

    // Pieces cover every element once, in nested loops.
    int64_t elements = 0;
    for (const Piece& piece : made.viewed.arrangement.pieces) {
      elements += piece.elements();
      int64_t reach = 0;
      for (size_t l = piece.loops.size(); l-- > 0;) {
        ASSERT_GT(piece.loops[l].extent, 1);
        ASSERT_GT(piece.loops[l].stride, reach);
        reach += (piece.loops[l].extent - 1) * piece.loops[l].stride;
      }
    }
    ASSERT_EQ(elements, ElementCount(made.labels.shape));

    Tensor tensor = MakeTensor("v", dtype, made.labels.shape, Constant{0});
    tensor.set_view(std::make_shared<View>(View{drawn, {}, made.viewed.arrangement.pieces}));
    const auto size = static_cast<size_t>(InfoOf(dtype).bytes);
    std::vector<std::vector<uint8_t>> sources;
    for (const Tensor& source : *drawn) sources.push_back(Filled(source, WholeOf(source.shape())));
    uint8_t padding[8];
    Encode(2.5f, dtype, padding);

    const std::vector<uint8_t> whole = Filled(tensor, WholeOf(tensor.shape()));
    for (size_t i = 0; i < made.labels.at.size(); ++i) {
      const auto [source, index] = made.labels.at[i];
      const uint8_t* expected =
          source == Piece::kPadding
              ? padding
              : &sources[static_cast<size_t>(source)][static_cast<size_t>(index) * size];
      ASSERT_EQ(std::memcmp(&whole[i * size], expected, size), 0) << "element " << i;
    }

    // Makes whole boxes and stretches of boxes.
    Random random(seed);
    for (int b = 0; b < 3; ++b) {
      Box box = WholeOf(tensor.shape());
      for (size_t d = 0; d < box.shape.size(); ++d) {
        if (random.Chance(3)) continue;
        box.offset[d] = random.In(0, tensor.shape()[d] - 1);
        box.shape[d] = random.In(1, tensor.shape()[d] - box.offset[d]);
      }
      const int64_t count = ElementCount(box.shape);
      std::vector<uint8_t> expected;
      for (int64_t i = 0; i < count; ++i) {
        Shape index = IndexOf(i, box.shape);
        for (size_t d = 0; d < index.size(); ++d) index[d] += box.offset[d];
        const auto at =
            whole.begin() + static_cast<std::ptrdiff_t>(
                                static_cast<size_t>(LinearOf(index, tensor.shape())) * size);
        expected.insert(expected.end(), at, at + static_cast<std::ptrdiff_t>(size));
      }
      const BoxFiller filler(tensor, box);
      for (int s = 0; s < 4; ++s) {
        const int64_t first = s == 0 ? 0 : random.In(0, count - 1);
        const int64_t length = s == 0 ? count : random.In(1, count - first);
        std::vector<uint8_t> made_bytes(static_cast<size_t>(length) * size);
        filler.Fill(first, length, made_bytes.data());
        ASSERT_EQ(std::memcmp(made_bytes.data(), &expected[static_cast<size_t>(first) * size],
                              made_bytes.size()),
                  0)
            << "box of [" << fmt::format("{}", fmt::join(box.shape, ", ")) << "], elements "
            << first << " + " << length;
      }
    }
  }
}

}  // namespace
}  // namespace shardinit
