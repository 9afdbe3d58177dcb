#include "generate/evaluator.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <utility>

#include "base/error.h"
#include "generate/filler.h"
#include "generate/moments.h"
#include "graph/engines/engines.h"
#include "tensor/convert.h"
#include "tensor/encode.h"

namespace shardinit {
namespace {

const Sampler& SamplerOf(Draw draw) {
  static const Sampler kNormal = MakeNormal(0, 1);
  static const Sampler kUniform = MakeUniform(0, 1);
  static const Sampler kBits = BitsSampler{};
  return draw == Draw::kNormal ? kNormal : draw == Draw::kUniform ? kUniform : kBits;
}

}  // namespace

PlacedNumbers::PlacedNumbers(const Program::PlacedCall& call, const Stream& stream)
    : called_(FillEngineOf(EngineOf(call)).numbers(call, stream)) {}

void PlacedNumbers::Get(const double* element, size_t count, Window& window, double* out) const {
  const auto exists = [&](double e) {
    return e >= 0 && e < static_cast<double>(called_.elements) && std::trunc(e) == e;
  };
  const auto has = [&](uint64_t e) {
    return e >= window.first && e - window.first < window.values.size();
  };
  for (size_t i = 0; i < count; ++i) {
    if (!exists(element[i])) {
      out[i] = std::numeric_limits<double>::quiet_NaN();
      continue;
    }
    const auto at = static_cast<uint64_t>(element[i]);
    if (!has(at)) {
      // If all remaining numbers are close together, the window gets all of them; otherwise it gets
      // the consecutive ones.
      uint64_t low = at, high = at;
      for (size_t k = i; k < count; ++k) {
        if (!exists(element[k])) continue;
        low = std::min(low, static_cast<uint64_t>(element[k]));
        high = std::max(high, static_cast<uint64_t>(element[k]));
      }
      if (high - low >= called_.longest_window) {
        low = high = at;
        for (size_t k = i + 1; k < count && element[k] == element[k - 1] + 1; ++k) {
          if (exists(element[k])) ++high;
        }
      }
      window.first = low;
      window.values.resize(static_cast<size_t>(high - low + 1));
      called_.make(low, window.values);
    }
    out[i] = window.values[at - window.first];
  }
}

Evaluator::Evaluator(ProgramPtr program, const Tensor& tensor)
    : program_(std::move(program)),
      path_(tensor.path()),
      shape_(tensor.shape()),
      stream_(tensor.stream()) {
  for (const Program::PlacedCall& call : program_->placed) placed_.emplace_back(call, stream_);
}

Evaluator::State Evaluator::Begin() const {
  State state{std::vector<double>(static_cast<size_t>(program_->slots) * kTile),
              std::vector<PlacedNumbers::Window>(placed_.size()),
              {},
              std::vector<std::vector<double>>(program_->sources.size())};
  for (const Program::Literal& literal : program_->literals) {
    std::fill_n(&state.slots[literal.slot * kTile], kTile, literal.value);
  }
  for (const Program::SourceCall& call : program_->sources) {
    Check(call.data != nullptr, "values of a plan that was read, and not made of a spec");
    state.cells.emplace_back(*call.data);
    if (call.number == SourceNumber::kElement) continue;
    const Moments moments = MomentsOfAll(*call.data);
    std::fill_n(&state.slots[call.out * kTile], kTile,
                call.number == SourceNumber::kMean ? moments->front() : moments->back());
  }
  return state;
}

const double* Evaluator::Evaluate(const Runs& runs, int64_t first, int64_t count,
                                  State& state) const {
  Compute(runs, first, count, state, program_->sources.size());
  return &state.slots[program_->result * kTile];
}

void Evaluator::Compute(const Runs& runs, int64_t first, int64_t count, State& state,
                        size_t until) const {
  std::vector<double>& slots = state.slots;
  FillIndices(runs, first, count, slots.data());
  FillDraws(runs, first, count, slots.data());
  size_t placed = 0, source = 0;
  for (size_t k = 0; k <= program_->code.size(); ++k) {
    if (!Call(k, runs, first, count, state, &placed, &source, until)) return;
    if (k == program_->code.size()) break;
    const Program::Instruction& i = program_->code[k];
    Apply(i.op, &slots[i.a * kTile], &slots[i.b * kTile], &slots[i.c * kTile],
          &slots[i.out * kTile], static_cast<size_t>(count));
  }
}

// Runs the calls before an instruction, in order.
bool Evaluator::Call(size_t before, const Runs& runs, int64_t first, int64_t count, State& state,
                     size_t* placed, size_t* source, size_t until) const {
  while (true) {
    if (*source < program_->sources.size() && program_->sources[*source].before == before &&
        program_->sources[*source].placed_before <= *placed) {
      if (*source == until) return false;
      ReadSource(program_->sources[*source], runs, first, count, state, *source);
      ++*source;
    } else if (*placed < placed_.size() && program_->placed[*placed].before == before) {
      const Program::PlacedCall& call = program_->placed[*placed];
      placed_[*placed].Get(&state.slots[call.element * kTile], static_cast<size_t>(count),
                           state.windows[*placed], &state.slots[call.out * kTile]);
      ++*placed;
    } else {
      return true;
    }
  }
}

namespace {

// Decodes consecutive elements of a source. `from` contains the element at `place`.
void DecodeAll(const SourceTensor& source, int64_t place, const uint8_t* from, int64_t count,
               double* out) {
  const DType dtype = source.dtype();
  for (int64_t i = 0; i < count; ++i) {
    const uint8_t* const at = from + i * InfoOf(dtype).bytes;
    out[i] = Decode(at, dtype);
    if (IsDecodedExactly(at, dtype, out[i])) continue;
    throw Usage(fmt::format("element {} of {} is a whole number beyond 2^53, which f64 rounds",
                            IndexInText(source.shape(), place + i), source.text()),
                "expressions compute in f64: take it with `{source: …}` and its own `dtype`");
  }
}

}  // namespace

void Evaluator::FindPlacesOf(const Program::SourceCall& call, const Runs& runs, int64_t first,
                             int64_t count, const State& state, int64_t* places) const {
  std::array<const double*, kMaxRank> index;
  for (size_t d = 0; d < call.index.size(); ++d) index[d] = &state.slots[call.index[d] * kTile];
  const int64_t good =
      FindPlaces(call.data->shape(), std::span(index).first(call.index.size()), count, places);
  if (good < count) {
    RefuseIndex(call, NeighboursAt(runs, first + good, 1).index, good, state);
  }
}

void Evaluator::ReadSource(const Program::SourceCall& call, const Runs& runs, int64_t first,
                           int64_t count, State& state, size_t source) const {
  if (call.number != SourceNumber::kElement) return;
  double* const out = &state.slots[call.out * kTile];
  const std::vector<double>& gathered = state.gathered[source];
  if (!gathered.empty()) {
    std::copy_n(gathered.begin() + (first - state.gathered_from), count, out);
    return;
  }
  std::array<int64_t, kTile> places;
  FindPlacesOf(call, runs, first, count, state, places.data());
  for (int64_t done = 0; done < count;) {
    int64_t length = 1;
    while (done + length < count && places[done + length] == places[done] + length) ++length;
    const uint8_t* const from = state.cells[source].At(places[done], &length);
    DecodeAll(*call.data, places[done], from, length, out + done);
    done += length;
  }
}

void Evaluator::Gather(const Runs& runs, int64_t first, int64_t count, State& state) const {
  state.gathered_from = first;
  for (std::vector<double>& gathered : state.gathered) gathered.clear();
  std::vector<int64_t> places;
  for (size_t source = 0; source < program_->sources.size(); ++source) {
    const Program::SourceCall& call = program_->sources[source];
    if (call.number != SourceNumber::kElement) continue;
    SourceCells& cells = state.cells[source];
    const int64_t in_cell = call.data->cell_elements();
    const auto find = [&](int64_t from, int64_t tile) {
      Compute(runs, first + from, tile, state, source);
      places.resize(static_cast<size_t>(from + tile));
      FindPlacesOf(call, runs, first + from, tile, state, &places[static_cast<size_t>(from)]);
    };
    // The first elements show whether cells would be read repeatedly.
    find(0, std::min(count, kTile));
    if (CellChanges(places, in_cell) <= cells.capacity()) continue;
    places.reserve(static_cast<size_t>(count));
    for (int64_t from = kTile; from < count; from += kTile)
      find(from, std::min(count - from, kTile));
    std::vector<double>& gathered = state.gathered[source];
    gathered.resize(static_cast<size_t>(count));
    InCells(places, in_cell, [&](int64_t i, int64_t length) {
      const int64_t place = places[static_cast<size_t>(i)];
      const uint8_t* const from = cells.At(place, &length);
      DecodeAll(*call.data, place, from, length, &gathered[static_cast<size_t>(i)]);
      return length;
    });
  }
}

void Evaluator::RefuseIndex(const Program::SourceCall& call, int64_t linear, int64_t at,
                            const State& state) const {
  std::vector<double> index;
  for (const Program::Slot slot : call.index) index.push_back(state.slots[slot * kTile + at]);
  throw Usage(fmt::format("element {} of `{}` takes element [{}] of {}, which has the shape [{}]",
                          IndexInText(shape_, linear), path_, fmt::join(index, ", "),
                          call.data->text(), fmt::join(call.data->shape(), ", ")),
              "indices must be whole numbers in the source for all elements; `where` computes both "
              "its values: limit an index with `min`, as in `min(i0, 99)`");
}

// The index along the last dimension counts up; the others stay the same.
void Evaluator::FillIndices(const Runs& runs, int64_t first, int64_t count, double* slots) const {
  if (program_->indices.empty()) return;
  const int rank = static_cast<int>(shape_.size());
  Shape at(shape_.size());  // indices in the tensor
  for (int64_t done = 0; done < count;) {
    const auto [linear, in_run] = NeighboursAt(runs, first + done, count - done);
    int64_t rest = linear;
    for (int d = rank; d-- > 0; rest /= shape_[d]) at[d] = rest % shape_[d];
    const int64_t left = rank == 0 ? 1 : shape_[rank - 1] - at[rank - 1];
    const int64_t length = std::min(in_run, left);
    for (const Program::Index& index : program_->indices) {
      double* out = slots + index.slot * kTile + done;
      const int d = index.dimension;
      if (d != Program::kLinear && d != rank - 1) {
        std::fill_n(out, length, static_cast<double>(at[d]));
        continue;
      }
      const auto start = static_cast<double>(d == Program::kLinear ? linear : at[d]);
      for (int i = 0; i < static_cast<int>(length); ++i) out[i] = start + i;
    }
    done += length;
  }
}

void Evaluator::FillDraws(const Runs& runs, int64_t first, int64_t count, double* slots) const {
  std::array<float, kTile> drawn;
  for (size_t number = 0; number < program_->draws.size(); ++number) {
    const auto [slot, draw] = program_->draws[number];
    DrawRuns(runs, SamplerOf(draw), DrawOf(stream_, stream_.draw + static_cast<uint32_t>(number)),
             first, count, DType::f32, drawn.data());
    double* out = slots + slot * kTile;
    if (draw == Draw::kBits) {
      for (int64_t i = 0; i < count; ++i) out[i] = std::bit_cast<uint32_t>(drawn[i]);
    } else {
      for (int64_t i = 0; i < count; ++i) out[i] = drawn[i];
    }
  }
}

std::string IndexInText(const Shape& shape, int64_t linear) {
  Shape at(shape.size());
  for (size_t d = shape.size(); d-- > 0; linear /= shape[d]) at[d] = linear % shape[d];
  return fmt::format("[{}]", fmt::join(at, ", "));
}

}  // namespace shardinit
