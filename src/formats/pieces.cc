#include "formats/pieces.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <numeric>
#include <span>
#include <unordered_set>
#include <utility>

#include "base/error.h"

namespace shardinit {
namespace {

// Short runs of a piece that are near one another are read together, with their gaps. A gap of kGap
// takes as long to read as another call.
constexpr int64_t kSpan = 1 << 20, kGap = 8 << 10;
// A request to a bucket takes as long as reading megabytes.
constexpr int64_t kBucketSpan = 16 << 20;
constexpr int64_t kKept = 8 << 20;  // bytes of a strided piece that are read together

// The intersection of a piece and a wanted box, as runs of elements that are contiguous in both.
class SharedRuns {
 public:
  SharedRuns(const Box& piece, const Box& wanted) : piece_(piece), wanted_(wanted) {
    const size_t rank = piece.shape.size();
    for (size_t d = 0; d < rank; ++d) {
      const int64_t begin = std::max(piece.offset[d], wanted.offset[d]);
      const int64_t end =
          std::min(piece.offset[d] + piece.shape[d], wanted.offset[d] + wanted.shape[d]);
      shared_.offset.push_back(begin);
      shared_.shape.push_back(std::max<int64_t>(0, end - begin));
    }
    for (outer_ = rank; outer_ > 0;) {
      --outer_;
      const int64_t extent = shared_.shape[outer_];
      length_ *= extent;
      // A dimension merges with the previous one only if it is whole in both.
      if (extent != piece.shape[outer_] || extent != wanted.shape[outer_]) break;
    }
    for (size_t d = 0; d < outer_; ++d) count_ *= shared_.shape[d];
  }

  int64_t length() const { return length_; }
  int64_t count() const { return length_ > 0 ? count_ : 0; }
  // Returns the first run that ends after an element of the wanted box. Runs ascend.
  int64_t FirstBehind(int64_t element) const {
    int64_t run = 0;
    for (int64_t end = count(); run < end;) {
      const int64_t middle = run + (end - run) / 2;
      InWanted(middle) + length_ > element ? end = middle : run = middle + 1;
    }
    return run;
  }
  // These return where a run begins in the piece and in the wanted box.
  int64_t InPiece(int64_t run) const { return Position(run, piece_); }
  int64_t InWanted(int64_t run) const { return Position(run, wanted_); }

 private:
  int64_t Position(int64_t run, const Box& box) const {
    int64_t position = 0, stride = 1;
    for (size_t d = box.shape.size(); d-- > 0;) {
      int64_t index = shared_.offset[d] - box.offset[d];
      if (d < outer_) {
        index += run % shared_.shape[d];
        run /= shared_.shape[d];
      }
      position += index * stride;
      stride *= box.shape[d];
    }
    return position;
  }

  const Box &piece_, &wanted_;
  Box shared_;
  size_t outer_;  // leading dimensions, which number the runs
  int64_t length_ = 1, count_ = 1;
};

// Returns the dimension along which boxes begin at the most offsets. A sweep along it meets few
// boxes at once.
size_t MostDivided(const std::vector<const Box*>& boxes) {
  size_t most = 0, dimension = 0;
  for (size_t d = 0; d < boxes[0]->shape.size(); ++d) {
    std::unordered_set<int64_t> begins;
    for (const Box* box : boxes) begins.insert(box->offset[d]);
    if (begins.size() > most) {
      most = begins.size();
      dimension = d;
    }
  }
  return dimension;
}

// Copies elements from a file's order to a box's: `along` has the shortest steps in the file,
// `across` in the box.
template <typename Word>
void MoveTile(const Piece::Loop& along, const Piece::Loop& across, const uint8_t* from,
              uint8_t* to) {
  constexpr int64_t kSide = 64;  // elements, so that both sides of a square stay in the cache
  for (int64_t a = 0; a < along.extent; a += kSide) {
    const int64_t a_end = std::min(a + kSide, along.extent);
    for (int64_t c = 0; c < across.extent; c += kSide) {
      const int64_t c_end = std::min(c + kSide, across.extent);
      for (int64_t i = a; i < a_end; ++i) {
        for (int64_t j = c; j < c_end; ++j) {
          memcpy(to + i * along.stride + j * across.stride, from + i * along.from + j * across.from,
                 sizeof(Word));
        }
      }
    }
  }
}

// Reads a piece whose bytes are not contiguous in its file.
class StridedRead {
 public:
  StridedRead(const FilePiece& piece, const InputFile& file, uint8_t* out)
      : piece_(piece),
        file_(file),
        out_(out),
        gap_(file.is_remote() ? kBucketSpan : kGap),
        span_(file.is_remote() ? kBucketSpan : kSpan) {}

  // Reads a part of the piece; `part.base` counts from `out`.
  void Read(Piece part) {
    std::vector<Piece::Loop>& loops = part.loops;
    run_ = 1;
    if (!loops.empty() && loops.back().stride == 1 && loops.back().from == 1) {
      run_ = loops.back().extent;
      loops.pop_back();
    }
    // Read the file in its order.
    std::stable_sort(loops.begin(), loops.end(),
                     [](const Piece::Loop& a, const Piece::Loop& b) { return a.from > b.from; });
    ReadLoops(loops, part.from, part.base);
  }

 private:
  using Loops = std::span<const Piece::Loop>;

  // Reads short runs that are near one another together, and other runs alone.
  void ReadLoops(Loops loops, int64_t from, int64_t to) {
    if (loops.empty()) return ReadFile(from, run_, out_ + to);
    if (IsDense(loops) && Span(loops) <= span_) return ReadTogether(loops, from, to);
    const auto [extent, stride, step] = loops[0];
    const Loops within = loops.subspan(1);
    int64_t together = 1;
    if (IsDense(loops) && step > 0) together = std::max<int64_t>(1, (span_ - Span(within)) / step);
    for (int64_t i = 0; i < extent; i += together) {
      if (together == 1) {
        ReadLoops(within, from + i * step, to + i * stride);
        continue;
      }
      std::vector<Piece::Loop> some(loops.begin(), loops.end());
      some[0].extent = std::min(together, extent - i);
      ReadTogether(some, from + i * step, to + i * stride);
    }
  }

  // Returns how many bytes of the file the loops span.
  int64_t Span(Loops loops) const {
    int64_t span = run_;
    for (const Piece::Loop& loop : loops) span += (loop.extent - 1) * loop.from;
    return span;
  }
  // Returns whether all gaps between consecutive runs in the file are small.
  bool IsDense(Loops loops) const {
    for (; !loops.empty(); loops = loops.subspan(1)) {
      if (loops[0].from - Span(loops.subspan(1)) > gap_) return false;
    }
    return true;
  }

  void ReadTogether(Loops loops, int64_t from, int64_t to) {
    read_.resize(static_cast<size_t>(Span(loops)));
    ReadFile(from, std::ssize(read_), read_.data());
    std::vector<Piece::Loop> rest(loops.begin(), loops.end());
    const auto take_least = [&rest](int64_t Piece::Loop::*step) {
      if (rest.empty()) return Piece::Loop{1, 0, 0};
      const auto least = std::min_element(
          rest.begin(), rest.end(),
          [step](const Piece::Loop& a, const Piece::Loop& b) { return a.*step < b.*step; });
      const Piece::Loop loop = *least;
      rest.erase(least);
      return loop;
    };
    across_ = take_least(&Piece::Loop::stride);
    along_ = take_least(&Piece::Loop::from);
    Move(rest, 0, to);
  }

  void Move(Loops rest, int64_t from, int64_t to) const {
    if (!rest.empty()) {
      for (int64_t i = 0; i < rest[0].extent; ++i) {
        Move(rest.subspan(1), from + i * rest[0].from, to + i * rest[0].stride);
      }
      return;
    }
    const uint8_t* const in = read_.data() + from;
    uint8_t* const out = out_ + to;
    if (run_ == 1) return MoveTile<uint8_t>(along_, across_, in, out);
    if (run_ == 2) return MoveTile<uint16_t>(along_, across_, in, out);
    if (run_ == 4) return MoveTile<uint32_t>(along_, across_, in, out);
    if (run_ == 8) return MoveTile<uint64_t>(along_, across_, in, out);
    for (int64_t i = 0; i < along_.extent; ++i) {
      for (int64_t j = 0; j < across_.extent; ++j) {
        memcpy(out + i * along_.stride + j * across_.stride,
               in + i * along_.from + j * across_.from, static_cast<size_t>(run_));
      }
    }
  }

  void ReadFile(int64_t from, int64_t bytes, uint8_t* out) const {
    if (!file_.TryRead(piece_.offset + from, bytes, out)) ThrowChanged(piece_);
  }

  const FilePiece& piece_;
  const InputFile& file_;
  uint8_t* const out_;
  const int64_t gap_, span_;
  int64_t run_ = 1;  // bytes that are contiguous in the file and in the box
  Piece::Loop along_ = {}, across_ = {};
  std::vector<uint8_t> read_;  // bytes that were read together
};

void ReadStrided(const FilePiece& piece, const InputFile& file, int64_t offset, int64_t bytes,
                 uint8_t* out) {
  std::vector<Piece> parts;
  ClipPiece({.loops = piece.loops}, offset, offset + bytes, &parts);
  StridedRead read(piece, file, out);
  for (Piece& part : parts) {
    part.base -= offset;
    read.Read(std::move(part));
  }
}

// A larger part of a strided piece, from which small parts are copied. Alone, each would read much
// of the file.
struct KeptPart {
  FilePiece piece = {};
  int64_t begin = 0;
  std::vector<uint8_t> bytes = {};
};

// A thread may alternate between two pieces.
thread_local std::array<KeptPart, 2> kept_parts;

const KeptPart& KeepPart(const FilePiece& piece, const InputFile& file, int64_t begin) {
  for (const KeptPart& part : kept_parts) {
    if (part.begin == begin && part.piece == piece) return part;
  }
  kept_parts[1] = std::exchange(kept_parts[0], {});
  int64_t all = 1;
  for (const Piece::Loop& loop : piece.loops) all += (loop.extent - 1) * loop.stride;
  std::vector<uint8_t> bytes(static_cast<size_t>(std::min(kKept, all - begin)));
  ReadStrided(piece, file, begin, std::ssize(bytes), bytes.data());
  return kept_parts[0] = {piece, begin, std::move(bytes)};
}

}  // namespace

bool Overlap(const Box& a, const Box& b) {
  for (size_t d = 0; d < a.shape.size(); ++d) {
    if (std::max(a.offset[d], b.offset[d]) >=
        std::min(a.offset[d] + a.shape[d], b.offset[d] + b.shape[d])) {
      return false;
    }
  }
  return true;
}

std::optional<std::pair<size_t, size_t>> FindOverlap(const std::vector<const Box*>& boxes) {
  if (boxes.size() < 2) return std::nullopt;
  if (boxes[0]->shape.empty()) return std::pair<size_t, size_t>(0, 1);
  const size_t along = MostDivided(boxes);
  std::vector<size_t> order(boxes.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return boxes[a]->offset[along] < boxes[b]->offset[along];
  });
  std::vector<size_t> met;  // the boxes that reach the position of the sweep
  for (const size_t i : order) {
    const int64_t begin = boxes[i]->offset[along];
    std::erase_if(met, [&](size_t other) {
      return boxes[other]->offset[along] + boxes[other]->shape[along] <= begin;
    });
    for (const size_t other : met) {
      if (Overlap(*boxes[i], *boxes[other])) return std::minmax(i, other);
    }
    met.push_back(i);
  }
  return std::nullopt;
}

int64_t ElementsBefore(const std::vector<int64_t>& indices, const Box& box) {
  int64_t before = 0;
  for (size_t d = 0; d < indices.size(); ++d) {
    // `before` counts over the dimensions up to this one, in a mixed radix: the box's extents.
    const int64_t index = indices[d] - box.offset[d];
    before = before * box.shape[d] + std::clamp<int64_t>(index, 0, box.shape[d]);
    if (index >= 0 && index < box.shape[d]) continue;
    for (++d; d < indices.size(); ++d) before *= box.shape[d];
  }
  return before;
}

void ReadPart(const FilePiece& piece, InputFile* file, int64_t offset, int64_t bytes, void* out) {
  if (piece.frame) return ReadFrame(piece.frame, offset, bytes, out);
  auto* const to = static_cast<uint8_t*>(out);
  if (!piece.fill.empty()) {
    for (int64_t i = 0; i < bytes; ++i) {
      to[i] = static_cast<uint8_t>(piece.fill[static_cast<size_t>(offset + i) % piece.fill.size()]);
    }
    return;
  }
  if (!*file) *file = InputFile(piece.file);
  if (!piece.loops.empty()) {
    if (bytes >= kKept) return ReadStrided(piece, *file, offset, bytes, to);
    for (int64_t done = 0; done < bytes;) {
      const int64_t at = (offset + done) % kKept, now = std::min(bytes - done, kKept - at);
      const KeptPart& part = KeepPart(piece, *file, offset + done - at);
      memcpy(to + done, part.bytes.data() + at, static_cast<size_t>(now));
      done += now;
    }
    return;
  }
  // If the file ends earlier, it has become shorter.
  if (!file->TryRead(piece.offset + offset, bytes, out)) ThrowChanged(piece);
}

void ForgetKeptParts() { kept_parts = {}; }

std::shared_ptr<InputFile> OpenFiles::Open(const std::string& path) {
  const std::lock_guard lock(mutex_);
  if (const auto known = by_path_.find(path); known != by_path_.end()) {
    files_.splice(files_.begin(), files_, known->second);
    return files_.front().second;
  }
  files_.emplace_front(path, std::make_shared<InputFile>(path));
  by_path_.emplace(files_.front().first, files_.begin());
  if (files_.size() > kMost) {
    by_path_.erase(files_.back().first);
    files_.pop_back();
  }
  return files_.front().second;
}

void ThrowChanged(const FilePiece& piece) {
  throw Error(ExitCode::kWorld, fmt::format("`{}` was changed while it was read", piece.file),
              "stop what changes it, and run the same command again");
}

int64_t SharedElements(const Box& a, const Box& b) {
  const SharedRuns runs(a, b);
  return runs.length() * runs.count();
}

int64_t RunLength(const Box& piece, const Box& box) { return SharedRuns(piece, box).length(); }

void ReadPiece(const Box& piece, int element_bytes, const Box& box, int64_t first, int64_t count,
               void* out, const ReadBytes& read) {
  if (piece == box) return read(first * element_bytes, count * element_bytes, out);
  const SharedRuns runs(piece, box);
  const int64_t size = element_bytes;
  const int64_t length = runs.length();
  int64_t run = runs.FirstBehind(first);
  if (run == runs.count() || runs.InWanted(run) >= first + count) return;

  auto* const to_first = static_cast<uint8_t*>(out);
  std::vector<uint8_t> span;
  while (run < runs.count() && runs.InWanted(run) < first + count) {
    const int64_t begin = runs.InPiece(run);
    int64_t last = run;
    while (last + 1 < runs.count() && runs.InWanted(last + 1) < first + count &&
           (runs.InPiece(last + 1) - runs.InPiece(last) - length) * size <= kGap &&
           (runs.InPiece(last + 1) + length - begin) * size <= kSpan) {
      ++last;
    }
    if (last > run) {
      span.resize(static_cast<size_t>((runs.InPiece(last) + length - begin) * size));
      read(begin * size, std::ssize(span), span.data());
    }
    for (; run <= last; ++run) {
      const int64_t at = runs.InWanted(run);
      const int64_t from = std::max(at, first), to = std::min(at + length, first + count);
      uint8_t* target = to_first + (from - first) * size;
      const int64_t source = runs.InPiece(run) + from - at;
      if (span.empty()) {
        read(source * size, (to - from) * size, target);
      } else {
        memcpy(target, span.data() + (source - begin) * size,
               static_cast<size_t>((to - from) * size));
      }
    }
    span.clear();
  }
}

void CopyPiece(const Box& piece, int element_bytes, const uint8_t* from, int64_t from_first,
               const Box& box, int64_t first, int64_t count, uint8_t* out) {
  const SharedRuns runs(piece, box);
  for (int64_t run = runs.FirstBehind(first); run < runs.count(); ++run) {
    const int64_t at = runs.InWanted(run);
    const int64_t begin = std::max(at, first);
    const int64_t end = std::min(at + runs.length(), first + count);
    if (begin >= end) return;
    memcpy(out + (begin - first) * element_bytes,
           from + (runs.InPiece(run) + begin - at - from_first) * element_bytes,
           static_cast<size_t>((end - begin) * element_bytes));
  }
}

void ReadPieces(const std::vector<FilePiece>& pieces, int element_bytes, const Box& box,
                int64_t first, int64_t count, void* out, OpenFiles* files) {
  for (const FilePiece& piece : pieces) {
    std::shared_ptr<InputFile> file;
    ReadPiece(piece.box, element_bytes, box, first, count, out,
              [&](int64_t offset, int64_t bytes, void* to) {
                const bool is_stored = !piece.frame && piece.fill.empty();
                if (!file && files != nullptr && is_stored) file = files->Open(piece.file);
                if (!file) file = std::make_shared<InputFile>();
                ReadPart(piece, file.get(), offset, bytes, to);
              });
  }
}

}  // namespace shardinit
