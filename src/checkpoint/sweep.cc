#include "checkpoint/sweep.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "base/checked_math.h"
#include "base/crc32.h"
#include "base/error.h"
#include "base/output_file.h"

namespace shardinit {
namespace {

Box HullOf(const Box& a, const Box& b) {
  Box hull = a;
  for (size_t d = 0; d < a.shape.size(); ++d) {
    hull.offset[d] = std::min(a.offset[d], b.offset[d]);
    hull.shape[d] = std::max(a.offset[d] + a.shape[d], b.offset[d] + b.shape[d]) - hull.offset[d];
  }
  return hull;
}

// Returns the elements that both boxes have; there must be at least one.
Box SharedBox(const Box& a, const Box& b) {
  Box shared = a;
  for (size_t d = 0; d < a.shape.size(); ++d) {
    shared.offset[d] = std::max(a.offset[d], b.offset[d]);
    shared.shape[d] =
        std::min(a.offset[d] + a.shape[d], b.offset[d] + b.shape[d]) - shared.offset[d];
  }
  return shared;
}

// Updates two hashes at once, because this takes as long as updating one.
class HashQueue {
 public:
  void Add(Sha256* hash, const uint8_t* data, int64_t bytes) {
    if (bytes > 0) parts_.push_back({hash, data, static_cast<size_t>(bytes)});
  }
  friend void HashBoth(HashQueue& a, HashQueue& b) {
    size_t i = 0, j = 0;
    while (i < a.parts_.size() && j < b.parts_.size()) {
      Part &one = a.parts_[i], &other = b.parts_[j];
      const size_t bytes = std::min(one.bytes, other.bytes);
      Sha256::UpdateBoth(*one.hash, one.data, bytes, *other.hash, other.data, bytes);
      i += one.Skip(bytes);
      j += other.Skip(bytes);
    }
    for (; i < a.parts_.size(); ++i) a.parts_[i].hash->Update(a.parts_[i].data, a.parts_[i].bytes);
    for (; j < b.parts_.size(); ++j) b.parts_[j].hash->Update(b.parts_[j].data, b.parts_[j].bytes);
  }

 private:
  struct Part {
    bool Skip(size_t size) {  // Returns whether nothing is left.
      data += size;
      bytes -= size;
      return bytes == 0;
    }

    Sha256* hash;
    const uint8_t* data;
    size_t bytes;
  };
  std::vector<Part> parts_;
};

}  // namespace

Sweep::Sweep(const std::vector<Source>& sources, std::vector<BoxTask> tasks)
    : element_(InfoOf(tasks.front().tensor->dtype()).bytes), hull_(tasks.front().box) {
  for (BoxTask& task : tasks) {
    auto made = std::find_if(makes_.begin(), makes_.end(),
                             [&](const OutputBox& other) { return other.box == task.box; });
    if (made == makes_.end()) {
      made = makes_.emplace(makes_.end());
      made->box = task.box;
      hull_ = HullOf(hull_, task.box);
    }
    made->tasks.push_back(std::move(task));
  }
  const Box wanted = hull_;
  for (const Source& source : sources) {
    if (!source.digest && source.watched) {
      compared_.push_back(source);
      continue;
    }
    Read& read = reads_.emplace_back();
    read.box = source.digest ? source.piece->box : SharedBox(source.piece->box, wanted);
    read.source = source;
    hull_ = HullOf(hull_, read.box);
  }
  ForEachStream([&](Stream& stream) { stream.end = EndPlace(stream.box); });
}

template <typename Visit>
void Sweep::ForEachStream(const Visit& visit) {
  for (Stream& stream : reads_) visit(stream);
  for (Stream& stream : makes_) visit(stream);
}

int64_t Sweep::bytes() const {
  int64_t elements = 0;
  for (const OutputBox& made : makes_) {
    elements += ElementCount(made.box.shape) * std::ssize(made.tasks);
  }
  return elements * element_;
}

bool Sweep::IsDone() const { return place_ == ElementCount(hull_.shape); }

int64_t Sweep::EndPlace(const Box& box) const {
  int64_t last = 0;
  for (size_t d = 0; d < box.shape.size(); ++d) {
    last = last * hull_.shape[d] + box.offset[d] + box.shape[d] - 1 - hull_.offset[d];
  }
  return last + 1;
}

std::vector<int64_t> Sweep::IndicesOf(int64_t place) const {
  std::vector<int64_t> indices(hull_.shape);
  for (size_t d = indices.size(); d-- > 0;) {
    // The first dimension's index may equal its extent, after all elements.
    const int64_t index = d > 0 ? place % hull_.shape[d] : place;
    place /= hull_.shape[d];
    indices[d] = hull_.offset[d] + index;
  }
  return indices;
}

void Sweep::Advance(int64_t bytes, bool reads) {
  const auto is_within = [&](int64_t place) {
    const std::vector<int64_t> indices = IndicesOf(place);
    int64_t elements = 0;
    for (const OutputBox& made : makes_) elements += ElementsBefore(indices, made.box) - made.done;
    for (size_t i = 0; reads && i < reads_.size(); ++i) {
      elements += ElementsBefore(indices, reads_[i].box) - reads_[i].done;
    }
    return elements * element_ <= bytes;
  };
  int64_t next = place_ + 1, behind = ElementCount(hull_.shape) + 1;
  while (behind - next > 1) {
    const int64_t middle = next + (behind - next) / 2;
    (is_within(middle) ? next : behind) = middle;
  }
  // A step ends where a box ends, because fewer boxes may follow; otherwise at a round number,
  // which gives whole pages of most boxes.
  int64_t end = next;
  ForEachStream([&](const Stream& stream) {
    if (stream.end > place_) end = std::min(end, stream.end);
  });
  if (end == next && next < ElementCount(hull_.shape)) {
    const int64_t round = next / kDirectUnit * kDirectUnit;
    if (round > place_) end = round;
  }
  const std::vector<int64_t> indices = IndicesOf(end);
  ForEachStream([&](Stream& stream) { stream.next = ElementsBefore(indices, stream.box); });
  next_place_ = end;
}

bool Sweep::IsOneInOne() const {
  const auto is_met = [](const Stream& stream) { return stream.elements() > 0; };
  const auto read = std::find_if(reads_.begin(), reads_.end(), is_met);
  const auto made = std::find_if(makes_.begin(), makes_.end(), is_met);
  return compared_.empty() && read != reads_.end() && made != makes_.end() &&
         read->elements() == made->elements() &&
         std::none_of(std::next(read), reads_.end(), is_met) &&
         std::none_of(std::next(made), makes_.end(), is_met);
}

void Sweep::ReadSources() {
  for (Read& read : reads_) {
    if (read.elements() == 0) continue;
    InputFile file;
    const int64_t offset = read.done * element_, bytes = read.elements() * element_;
    if (read.source.watched) {
      read.source.watched->Read(&file, offset, bytes, read.data);
      continue;
    }
    ReadPiece(read.source.piece->box, element_, read.box, read.done, read.elements(), read.data,
              [&](int64_t at, int64_t size, void* to) {
                ReadPart(*read.source.piece, &file, at, size, to);
              });
  }
}

void Sweep::FillOutput(OutputBox& made) {
  for (const Read& read : reads_) {
    if (read.elements() == 0 || read.data == made.data || !Overlap(read.box, made.box)) continue;
    CopyPiece(read.box, element_, read.data, read.done, made.box, made.done, made.elements(),
              made.data);
  }
  for (const Source& source : compared_) {
    InputFile file;
    ReadPiece(source.piece->box, element_, made.box, made.done, made.elements(), made.data,
              [&](int64_t offset, int64_t bytes, void* to) {
                source.watched->Read(&file, offset, bytes, to);
              });
  }
}

int64_t Sweep::Make(uint8_t* memory, int64_t bytes, std::vector<BoxWrite>* writes) {
  Advance(bytes - kDirectUnit, false);
  const bool in_place = IsOneInOne();
  // Each box is aligned in memory as on the pages of its file, unless there are too many boxes.
  const int64_t pages = std::ssize(makes_) * kDirectUnit;
  const int64_t page = in_place || pages <= bytes / 2 ? kDirectUnit : 1;
  if (!in_place) Advance(page == 1 ? bytes : bytes - pages, true);

  uint8_t* free = memory;
  for (OutputBox& made : makes_) {
    if (made.elements() == 0) continue;
    const int64_t offset = made.tasks.front().output.offset + made.done * element_;
    free += ((offset - (free - memory)) % page + page) % page;
    made.data = free;
    free += made.elements() * element_;
  }
  for (Read& read : reads_) {
    if (read.elements() == 0) continue;
    read.data = in_place ? free - read.elements() * element_ : free;
    if (!in_place) free += read.elements() * element_;
  }
  Check(free - memory <= bytes, "boxes of a pass that are larger than its memory");
  ReadSources();

  HashQueue read_hashes, made_hashes;
  for (Read& read : reads_) {
    if (read.source.digest) read_hashes.Add(&read.hash, read.data, read.elements() * element_);
  }
  int64_t made_bytes = 0;
  for (OutputBox& made : makes_) {
    if (made.elements() == 0) continue;
    FillOutput(made);
    const int64_t size = made.elements() * element_;
    made_hashes.Add(&made.hash, made.data, size);
    for (const BoxTask& task : made.tasks) {
      made_bytes += size;
      const BoxOutput& out = task.output;
      if (out.file == nullptr) continue;
      writes->push_back({out.file, made.data, size, out.offset + made.done * element_});
    }
    const auto wants_crc = [](const BoxTask& task) { return task.crc != nullptr; };
    if (std::any_of(made.tasks.begin(), made.tasks.end(), wants_crc)) {
      made.crc =
          Crc32(made.crc, {reinterpret_cast<const char*>(made.data), static_cast<size_t>(size)});
    }
  }
  HashBoth(read_hashes, made_hashes);
  SetResults();
  return made_bytes;
}

void Sweep::SetResults() {
  const int64_t before = std::exchange(place_, next_place_);
  ForEachStream([](Stream& stream) { stream.done = stream.next; });
  // Sets results as soon as a box is complete, because a part of a file may wait for its CRC.
  for (OutputBox& made : makes_) {
    if (made.end <= before || made.end > place_) continue;
    const Digest digest = made.hash.Finish();
    for (const BoxTask& task : made.tasks) {
      *task.digest = digest;
      if (task.crc != nullptr) *task.crc = made.crc;
    }
  }
  if (!IsDone()) return;
  for (Read& read : reads_) {
    if (read.source.digest) *read.source.digest = read.hash.Finish();
  }
}

}  // namespace shardinit
