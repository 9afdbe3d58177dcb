#include "generate/view.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <map>
#include <set>
#include <utility>

namespace shardinit {
namespace {

constexpr size_t kLeaf = 4;  // The most pieces that are checked one by one.
// The fewest contiguous elements that are worth a separate call.
constexpr int64_t kDirect = 512;
constexpr int64_t kScratch = 16 << 10;  // Bytes; they stay in the first-level cache.
constexpr int64_t kLongestRun = 256;    // Elements; the longer the runs, the fewer fit.
// Runs that are read instead of generated need a call each, so these are longer. They stay in the
// second-level cache.
constexpr int64_t kLongScratch = 256 << 10, kLongestRead = 2048;

// Moves runs of `run` elements to their places: element i of run j to i * run_stride + j * stride.
template <typename Word>
void Scatter(const uint8_t* from, int64_t run, int64_t runs, int64_t run_stride, int64_t stride,
             uint8_t* to) {
  const auto* in = reinterpret_cast<const Word*>(from);
  auto* out = reinterpret_cast<Word*>(to);
  if (stride > run_stride) {
    for (int64_t j = 0; j < runs; ++j) {
      for (int64_t i = 0; i < run; ++i) out[j * stride + i * run_stride] = in[j * run + i];
    }
    return;
  }
  for (int64_t i = 0; i < run; ++i) {
    for (int64_t j = 0; j < runs; ++j) out[i * run_stride + j * stride] = in[j * run + i];
  }
}

std::vector<Piece> PiecesOf(const Tensor& tensor, const Box& box) {
  PieceBudget budget = std::numeric_limits<PieceBudget>::max();
  return BoxOf({tensor.shape(), tensor.view()->pieces}, box, &budget).pieces;
}

// Calls body(base, from) for every iteration of the loops.
template <typename Body>
void ForEach(const Piece::Loop* begin, const Piece::Loop* end, int64_t base, int64_t from,
             const Body& body) {
  if (begin == end) return body(base, from);
  for (int64_t i = 0; i < begin->extent; ++i) {
    ForEach(begin + 1, end, base + i * begin->stride, from + i * begin->from, body);
  }
}

}  // namespace

ViewFiller::ViewFiller(const Tensor& tensor, const Box& box, const FillerFunction& filler_of)
    : element_bytes_(InfoOf(tensor.dtype()).bytes), pieces_(PiecesOf(tensor, box)) {
  const View& view = *tensor.view();
  std::sort(pieces_.begin(), pieces_.end(),
            [](const Piece& a, const Piece& b) { return a.base < b.base; });
  std::map<std::pair<int64_t, uint64_t>, size_t> fillers;
  for (Piece& piece : pieces_) {
    const auto [it, is_new] = fillers.try_emplace(
        {piece.source, std::bit_cast<uint64_t>(piece.padding)}, fillers_.size());
    if (piece.source != Piece::kPadding) {
      if (is_new) fillers_.push_back(filler_of((*view.drawn)[static_cast<size_t>(piece.source)]));
    } else {
      Tensor constant;
      constant.Edit().dtype = tensor.dtype();
      constant.Edit().distribution = Constant{piece.padding};
      if (is_new) fillers_.push_back(FillerOf(constant));
      // All elements are the same, so any index is acceptable. These indices make long runs.
      for (Piece::Loop& loop : piece.loops) loop.from = loop.stride;
    }
    piece.source = static_cast<int64_t>(it->second);
    transposes_ |= !piece.loops.empty() && piece.loops.back().from != 1;
  }
  ChoosePlaces(box.shape);
  tree_.resize(2 * std::bit_ceil(pieces_.size() / kLeaf + 1));
  BuildTree(0, 0, pieces_.size());
}

void ViewFiller::Prepare() const {
  for (const auto& filler : fillers_) filler->Prepare();
}

std::vector<Preparation> PreparationsOfView(const Tensor& tensor, const Box& box) {
  const std::vector<Tensor>& drawn = *tensor.view()->drawn;
  const auto needs_of = [&](int64_t source) -> std::vector<Preparation> {
    if (source == Piece::kPadding) return {};
    const Tensor& whole = drawn[static_cast<size_t>(source)];
    return PreparationsOf(whole, WholeOf(whole.shape()));
  };
  // Most pieces need no preparations, which is quick to check.
  const std::vector<Piece>& all = tensor.view()->pieces;
  if (std::all_of(all.begin(), all.end(),
                  [&](const Piece& p) { return needs_of(p.source).empty(); })) {
    return {};
  }
  std::set<int64_t> sources;
  for (const Piece& piece : PiecesOf(tensor, box)) sources.insert(piece.source);
  std::vector<Preparation> needs;
  for (const int64_t source : sources) {
    for (const Preparation& need : needs_of(source)) needs.push_back(need);
  }
  return needs;
}

void ViewFiller::Fill(int64_t first, int64_t count, void* out) const {
  Digits wanted{std::vector<int64_t>(places_.size()), std::vector<int64_t>(places_.size())};
  std::vector<Piece> parts;
  if (pieces_.size() <= kLeaf) {
    for (const Piece& piece : pieces_) ClipPiece(piece, first, first + count, &parts);
  } else {
    Find(first, first + count, 0, &wanted, &parts);
  }
  for (Piece& part : parts) {
    part.base -= first;
    MakePart(part, static_cast<uint8_t*>(out));
  }
}

// Chooses the place values of the dimensions and, between them, the place values in which pieces
// count. Adjacent pieces then differ in a digit.
void ViewFiller::ChoosePlaces(const Shape& shape) {
  places_ = {1};
  int64_t place = 1;
  for (size_t d = shape.size(); d-- > 0;) {
    place *= shape[d];
    if (place != places_.back()) places_.push_back(place);
  }
  for (const Piece& piece : pieces_) {
    for (const Piece::Loop& loop : piece.loops) {
      const auto next = std::lower_bound(places_.begin(), places_.end(), loop.stride);
      if (next == places_.end() || *next == loop.stride || *next % loop.stride != 0 ||
          loop.stride % next[-1] != 0) {
        continue;
      }
      places_.insert(next, loop.stride);
    }
  }
  std::reverse(places_.begin(), places_.end());
}

ViewFiller::Digits ViewFiller::DigitsOf(const Piece& piece) const {
  Digits digits;
  int64_t above = std::numeric_limits<int64_t>::max();
  for (const int64_t place : places_) {
    const int64_t low = piece.base % above;
    int64_t span = 0;
    for (const Piece::Loop& loop : piece.loops) {
      if (loop.stride % above != 0) span += (loop.extent - 1) * loop.stride;
    }
    const bool carries = low + span >= above;
    digits.low.push_back(carries ? 0 : low / place);
    digits.high.push_back((carries ? above - 1 : low + span) / place);
    above = place;
  }
  return digits;
}

void ViewFiller::BuildTree(size_t node, size_t begin, size_t end) {
  Digits& digits = tree_[node];
  if (end - begin <= kLeaf) {
    for (size_t p = begin; p < end; ++p) {
      const Digits own = DigitsOf(pieces_[p]);
      if (p == begin) digits = own;
      for (size_t k = 0; k < places_.size(); ++k) {
        digits.low[k] = std::min(digits.low[k], own.low[k]);
        digits.high[k] = std::max(digits.high[k], own.high[k]);
      }
    }
    return;
  }
  const size_t middle = begin + (end - begin) / 2, left = 2 * node + 1, right = 2 * node + 2;
  if (right >= tree_.size()) tree_.resize(2 * tree_.size());
  BuildTree(left, begin, middle);
  BuildTree(right, middle, end);
  tree_[node] = tree_[left];
  for (size_t k = 0; k < places_.size(); ++k) {
    tree_[node].low[k] = std::min(tree_[node].low[k], tree_[right].low[k]);
    tree_[node].high[k] = std::max(tree_[node].high[k], tree_[right].high[k]);
  }
}

void ViewFiller::Find(int64_t first, int64_t last, size_t level, Digits* wanted,
                      std::vector<Piece>* parts) const {
  if (first >= last) return;
  if (level == places_.size()) {
    return Search(0, 0, pieces_.size(), *wanted, first, last, parts);
  }
  const int64_t above = level == 0 ? std::numeric_limits<int64_t>::max() : places_[level - 1];
  const int64_t place = places_[level];
  const int64_t begin = first / place * place, end = (last - 1) / place * place + place;
  const auto find_one = [&](int64_t from, int64_t to) {
    wanted->low[level] = wanted->high[level] = from % above / place;
    Find(from, to, level + 1, wanted, parts);
  };
  if (end - begin == place) return find_one(first, last);
  // The first and the last digit may be wanted only in part. The digits between are wanted with
  // everything below them.
  const int64_t whole_begin = first == begin ? begin : begin + place;
  const int64_t whole_end = last == end ? end : end - place;
  find_one(first, whole_begin);
  if (whole_begin < whole_end) {
    wanted->low[level] = whole_begin % above / place;
    wanted->high[level] = (whole_end - 1) % above / place;
    for (size_t k = level + 1; k < places_.size(); ++k) {
      wanted->low[k] = 0;
      wanted->high[k] = places_[k - 1] / places_[k] - 1;
    }
    Search(0, 0, pieces_.size(), *wanted, whole_begin, whole_end, parts);
  }
  find_one(whole_end, last);
}

void ViewFiller::Search(size_t node, size_t begin, size_t end, const Digits& wanted, int64_t first,
                        int64_t last, std::vector<Piece>* parts) const {
  const Digits& digits = tree_[node];
  for (size_t k = 0; k < places_.size(); ++k) {
    if (digits.low[k] > wanted.high[k] || digits.high[k] < wanted.low[k]) return;
  }
  if (end - begin <= kLeaf) {
    for (size_t p = begin; p < end; ++p) ClipPiece(pieces_[p], first, last, parts);
    return;
  }
  const size_t middle = begin + (end - begin) / 2;
  Search(2 * node + 1, begin, middle, wanted, first, last, parts);
  Search(2 * node + 2, middle, end, wanted, first, last, parts);
}

// Generates elements in place if they are contiguous in both tensors.
void ViewFiller::MakePart(const Piece& part, uint8_t* out) const {
  const std::vector<Piece::Loop>& loops = part.loops;
  const Filler& filler = *fillers_[static_cast<size_t>(part.source)];
  if (loops.empty()) {
    return filler.Fill(Runs(part.from, {}, 1), 0, 1, out + part.base * element_bytes_);
  }
  if (loops.back().stride != 1 || loops.back().from != 1) return MakeMoved(part, out);
  const int64_t length = loops.back().extent;
  size_t packed = loops.size() - 1;  // Loops from here on are contiguous.
  int64_t count = length;
  while (packed > 0 && loops[packed - 1].stride == count) count *= loops[--packed].extent;
  if (packed > 0 && count < kDirect) return MakeMoved(part, out);
  std::vector<Runs::Dimension> dimensions;
  for (size_t l = packed; l + 1 < loops.size(); ++l) {
    dimensions.push_back({loops[l].extent, loops[l].from});
  }
  ForEach(loops.data(), loops.data() + packed, part.base, part.from,
          [&](int64_t base, int64_t from) {
            filler.Fill(Runs(from, dimensions, length), 0, count, out + base * element_bytes_);
          });
}

// Two loops form a tile: the loop along the drawn tensor's last dimension, and the loop along the
// stored tensor's last dimension.
void ViewFiller::MakeMoved(const Piece& part, uint8_t* out) const {
  std::vector<Piece::Loop> loops = part.loops;
  const auto take = [&](auto is_wanted) -> Piece::Loop {
    for (size_t l = loops.size(); l-- > 0;) {
      if (!is_wanted(loops[l])) continue;
      const Piece::Loop loop = loops[l];
      loops.erase(loops.begin() + static_cast<std::ptrdiff_t>(l));
      return loop;
    }
    return {1, 1, 1};
  };
  const Piece::Loop along = take([](const Piece::Loop& loop) { return loop.from == 1; });
  const Piece::Loop across = take([](const Piece::Loop&) { return true; });
  const Filler& filler = *fillers_[static_cast<size_t>(part.source)];
  const bool is_long = filler.wants_long_stretches();
  const int64_t longest = std::min(along.extent, is_long ? kLongestRead : kLongestRun);
  const int64_t most =
      std::min(across.extent, (is_long ? kLongScratch : kScratch) / element_bytes_ / longest);
  alignas(64) uint8_t near[kScratch];
  std::vector<uint8_t> far(static_cast<size_t>(is_long ? longest * most * element_bytes_ : 0));
  uint8_t* const scratch = is_long ? far.data() : near;
  ForEach(loops.data(), loops.data() + loops.size(), part.base, part.from,
          [&](int64_t base, int64_t from) {
            for (int64_t i = 0; i < along.extent; i += longest) {
              const int64_t run = std::min(longest, along.extent - i);
              for (int64_t j = 0; j < across.extent; j += most) {
                const int64_t runs = std::min(most, across.extent - j);
                filler.Fill(
                    Runs(from + i * along.from + j * across.from, {{runs, across.from}}, run), 0,
                    runs * run, scratch);
                uint8_t* to = out + (base + i * along.stride + j * across.stride) * element_bytes_;
                switch (element_bytes_) {
                  case 1:
                    Scatter<uint8_t>(scratch, run, runs, along.stride, across.stride, to);
                    break;
                  case 2:
                    Scatter<uint16_t>(scratch, run, runs, along.stride, across.stride, to);
                    break;
                  case 4:
                    Scatter<uint32_t>(scratch, run, runs, along.stride, across.stride, to);
                    break;
                  default:
                    Scatter<uint64_t>(scratch, run, runs, along.stride, across.stride, to);
                    break;
                }
              }
            }
          });
}

}  // namespace shardinit
