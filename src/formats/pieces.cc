#include "formats/pieces.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <unordered_set>

#include "base/error.h"

namespace shardinit {
namespace {

// Short runs of a piece that lie near one another are read together, with what lies between them. A
// gap of kGap takes as long to read as another call.
constexpr int64_t kSpan = 1 << 20, kGap = 8 << 10;

// The part that a piece and a wanted box share, as runs of elements that are consecutive in both.
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
      // Only a dimension that is whole in both merges with the one before.
      if (extent != piece.shape[outer_] || extent != wanted.shape[outer_]) break;
    }
    for (size_t d = 0; d < outer_; ++d) count_ *= shared_.shape[d];
  }

  int64_t length() const { return length_; }
  int64_t count() const { return length_ > 0 ? count_ : 0; }
  // Returns the first run that reaches behind an element of the wanted box; the runs' places
  // ascend.
  int64_t FirstBehind(int64_t element) const {
    int64_t run = 0;
    for (int64_t end = count(); run < end;) {
      const int64_t middle = run + (end - run) / 2;
      InWanted(middle) + length_ > element ? end = middle : run = middle + 1;
    }
    return run;
  }
  // These return where run r begins in the piece and in the wanted box.
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
  size_t outer_;  // the number of dimensions that number the runs
  int64_t length_ = 1, count_ = 1;
};

// Returns the dimension along which boxes begin in the most places: a sweep along it meets few
// boxes together.
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
  std::vector<size_t> met;  // the boxes that reach to where the sweep is
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
    // `before` counts over the dimensions up to this one. It is a number whose bases are the box's
    // extents.
    const int64_t index = indices[d] - box.offset[d];
    before = before * box.shape[d] + std::clamp<int64_t>(index, 0, box.shape[d]);
    if (index >= 0 && index < box.shape[d]) continue;
    for (++d; d < indices.size(); ++d) before *= box.shape[d];
  }
  return before;
}

void ReadPart(const FilePiece& piece, InputFile* file, int64_t offset, int64_t bytes, void* out) {
  if (!*file) *file = InputFile(piece.file);
  // A file that ends before has become shorter.
  if (!file->ReadIfThere(piece.offset + offset, bytes, out)) ThrowChanged(piece);
}

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
              "leave it as it is, and run the same command again");
}

int64_t SharedElements(const Box& a, const Box& b) {
  const SharedRuns runs(a, b);
  return runs.length() * runs.count();
}

int64_t RunLength(const Box& piece, const Box& box) { return SharedRuns(piece, box).length(); }

void ReadPiece(const Box& piece, int element_bytes, const Box& box, int64_t first, int64_t count,
               void* out, const ReadBytes& read) {
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
                int64_t first, int64_t count, void* out) {
  for (const FilePiece& piece : pieces) {
    InputFile file;
    ReadPiece(piece.box, element_bytes, box, first, count, out,
              [&](int64_t offset, int64_t bytes, void* to) {
                ReadPart(piece, &file, offset, bytes, to);
              });
  }
}

}  // namespace shardinit
