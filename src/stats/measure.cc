#include "stats/measure.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <memory>
#include <mutex>

#include "base/interrupt.h"
#include "base/parallel.h"
#include "generate/fill.h"
#include "graph/stored/view.h"
#include "tensor/dtype.h"
#include "tensor/encode.h"
#include "tensor/numbers.h"

namespace shardinit {
namespace {

// Counts the rows of a matrix that are zeros, in blocks that threads read separately. In a trained
// model, such rows were never changed or were lost. A block is consecutive elements, whose rows of
// `length` begin at multiples of it.
class ZeroRows {
 public:
  // If `length` is 0, no rows are counted.
  ZeroRows(DType dtype, int64_t length, int64_t first)
      : dtype_(dtype), length_(length), at_(first) {}

  // Adds the next elements.
  void Add(const uint8_t* elements, int64_t count) {
    while (length_ > 0 && count > 0) {
      const int64_t within = at_ % length_;
      if (within == 0) {
        has_begun_ = true;
        open_ = true;
      }
      const int64_t part = std::min(count, length_ - within);
      open_ = open_ && AreZeros(elements, part);
      if (!has_begun_) head_ = open_;
      if (within + part == length_ && has_begun_ && open_) ++count_;
      elements += part * NumberBytes(dtype_);
      count -= part;
      at_ += part;
    }
  }

  // Adds the elements of the block after this one.
  void Append(const ZeroRows& next) {
    if (length_ == 0) return;
    // The row that is open here continues in the head of `next`.
    const int64_t within = at_ % length_;
    if (within > 0) {
      open_ = open_ && next.head_;
      const bool ends = next.has_begun_ || next.at_ % length_ == 0;
      if (ends && open_) ++count_;
    }
    count_ += next.count_;
    if (next.has_begun_) open_ = next.open_;
    at_ = next.at_;
  }

  int64_t count() const { return count_; }

 private:
  bool AreZeros(const uint8_t* elements, int64_t count) const {
    if (dtype_ == DType::f8e8m0) return false;  // It has no zero.
    const DTypeInfo& info = InfoOf(dtype_);
    const int bytes = NumberBytes(dtype_);
    // -0 is also zero.
    const int sign = info.numbers > 1  ? 1 << (info.exponent_bits + info.mantissa_bits)
                     : info.is_float() ? 0x80
                                       : 0x100;
    for (int64_t i = 0; i < count; ++i, elements += bytes) {
      for (int b = 0; b + 1 < bytes; ++b) {
        if (elements[b] != 0) return false;
      }
      if ((elements[bytes - 1] & (sign - 1)) != 0) return false;
    }
    return true;
  }

  DType dtype_;
  int64_t length_;
  int64_t at_;              // the place of the next element
  int64_t count_ = 0;       // rows of zeros that began and ended here
  bool head_ = true;        // whether the rest of a row that began before is zeros
  bool has_begun_ = false;  // whether a row has begun here
  bool open_ = true;        // whether the part here of the row at `at_` is zeros
};

// The order of sums follows from these, so neither depends on threads or memory.
constexpr int64_t kBlock = 4 << 20;   // bytes that one thread takes at a time
constexpr int64_t kTile = 128 << 10;  // bytes that are generated and counted while in the cache

// Returns whether elements may be NaN or infinite, as those from a file or a source may be.
bool MayBeAnything(const Tensor& tensor) {
  if (tensor.view() == nullptr) {
    return std::holds_alternative<FromFile>(tensor.distribution()) ||
           std::holds_alternative<FromSource>(tensor.distribution()) ||
           std::holds_alternative<Parts>(tensor.distribution());
  }
  return std::any_of(tensor.view()->pieces.begin(), tensor.view()->pieces.end(),
                     [&](const Piece& p) {
                       return p.source != Piece::kPadding &&
                              MayBeAnything((*tensor.view()->drawn)[static_cast<size_t>(p.source)]);
                     });
}

// Returns `value` clamped to the range of the moments, or 0 if no element is finite.
double ClampToRange(const Moments& moments, double value) {
  return moments.count == 0 ? 0 : std::clamp(value, moments.min, moments.max);
}

// Reads numbers of whole elements.
void ReadNumbers(const FilePiece& piece, DType dtype, int64_t first, int64_t count, uint8_t* out) {
  const int64_t size = InfoOf(dtype).bytes, numbers = NumberCount(dtype);
  InputFile file;
  if (numbers == 1) return ReadPart(piece, &file, first * size, count * size, out);
  std::vector<uint8_t> elements(static_cast<size_t>(count / numbers * size));
  ReadPart(piece, &file, first / numbers * size, std::ssize(elements), elements.data());
  SeparateNumbers(dtype, elements.data(), count / numbers, out);
}

// A tensor that threads work on together. Each thread takes blocks, counts them in its own table,
// and adds that table to the others.
class Work {
 public:
  Work(const Tensor& tensor, const Tensor& declaring,
       std::function<std::vector<Stretch>()> stretches)
      : tensor_(tensor), declaring_(declaring), make_stretches_(std::move(stretches)) {}

  // Does the work of one of `slices` threads. Returns true to the thread that finishes last.
  bool Run(int64_t slices, const std::function<void(int64_t)>& done) {
    Begin();
    Tally tally(type_);
    std::vector<uint8_t> tile(kTile);
    const int64_t size = NumberBytes(type_);
    for (size_t b; (b = static_cast<size_t>(next_++)) < blocks_.size();) {
      ThrowIfInterrupted();
      Block& block = blocks_[b];
      for (int64_t first = block.first; first < block.end;) {
        const int64_t count = std::min(kTile / size, block.end - first);
        block.stretch->read(first, count, tile.data());
        block.moments.Append(tally.Add(tile.data(), count));
        block.zero_rows.Add(tile.data(), count);
        first += count;
        done(count * InfoOf(tensor_.dtype()).bytes / NumberCount(tensor_.dtype()));
      }
    }
    const std::lock_guard lock(mutex_);
    if (tally_) {
      tally_->Merge(tally);
    } else {
      tally_ = std::move(tally);
    }
    return ++ended_ == slices;
  }

  Measurement Finish() {
    Measurement result;
    result.tensor = &tensor_;
    result.declaring = &declaring_;
    const std::vector<Bin> bins = tally_->Bins();
    if (tally_->is_exact()) {
      result.moments = MomentsOf(bins);
    } else {
      for (const Block& block : blocks_) result.moments.Append(block.moments);
    }
    const Moments& moments = result.moments;
    result.nans = tally_->nans();
    result.infinities = tally_->count() - moments.count - result.nans;
    result.zero_rows = CountZeroRows();
    for (const double part : kQuantiles) {
      const double quantile = ClampToRange(moments, Quantile(bins, part));
      // A bin of wide integers ends between two integers.
      const bool whole = !InfoOf(type_).has_fractions();
      result.quantiles.push_back(whole ? std::round(quantile) : quantile);
    }
    result.histogram.resize(kBars);
    for (const Bin& bin : bins) {
      const double middle = ClampToRange(moments, bin.lowest / 2 + bin.highest / 2);
      const double place = (middle - moments.min) / (moments.max - moments.min) * kBars;
      const int bar = moments.max > moments.min ? std::min(kBars - 1, static_cast<int>(place)) : 0;
      result.histogram[static_cast<size_t>(bar)] += bin.count;
    }
    Test(bins, &result);
    return result;
  }

 private:
  struct Block {
    const Stretch* stretch;
    int64_t first, end;
    Moments moments;
    ZeroRows zero_rows;
  };

  // Compares the elements with the declaration.
  void Test(const std::vector<Bin>& bins, Measurement* result) const {
    if (declaring_.view() == nullptr) {
      result->declared = DeclaredMomentsOf(declaring_.distribution());
      result->fit = FitOf(bins, declaring_.distribution());
    }
    result->is_wrong = (result->not_finite() > 0 && !MayBeAnything(declaring_)) ||
                       (result->fit && result->fit->probability < kLeastProbability);
    if (result->declared && result->declared->std == 0) {
      const double value = StoredConstant(result->declared->mean);
      result->is_wrong |= result->moments.min != value || result->moments.max != value;
    }
  }

  std::optional<int64_t> CountZeroRows() const {
    if (std::ranges::any_of(stretches_, &Stretch::splits_rows)) return {};
    int64_t count = 0;
    const Stretch* stretch = nullptr;
    ZeroRows rows(type_, 0, 0);
    for (const Block& block : blocks_) {
      if (block.stretch != stretch) {
        count += rows.count();
        rows = ZeroRows(type_, block.stretch->row, 0);
        stretch = block.stretch;
      }
      rows.Append(block.zero_rows);
    }
    return count + rows.count();
  }

  // The first thread calls this, so that waiting tensors hold no memory.
  void Begin() {
    const std::lock_guard lock(mutex_);
    if (!make_stretches_) return;
    stretches_ = make_stretches_();
    make_stretches_ = nullptr;
    const int64_t elements = kBlock / NumberBytes(type_);
    for (const Stretch& stretch : stretches_) {
      for (int64_t first = 0; first < stretch.elements; first += elements) {
        blocks_.push_back({&stretch,
                           first,
                           std::min(stretch.elements, first + elements),
                           {},
                           ZeroRows(type_, stretch.row, first)});
      }
    }
  }

  double StoredConstant(double value) const {
    Tensor one;
    one.Edit().dtype = tensor_.dtype();
    one.Edit().distribution = Constant{value};
    uint8_t stored[8];
    BoxFiller(one, Box()).Fill(0, 1, stored);
    return Decode(stored, one.dtype());
  }

  const Tensor& tensor_;
  const DType type_ = NumberType(tensor_.dtype());  // of the stretches
  const Tensor& declaring_;
  std::function<std::vector<Stretch>()> make_stretches_;
  std::mutex mutex_;
  std::vector<Stretch> stretches_;
  std::vector<Block> blocks_;
  std::atomic<int64_t> next_{0};
  std::optional<Tally> tally_;
  int64_t ended_ = 0;
};

}  // namespace

StretchesOf Generated(const std::vector<const Tensor*>& tensors) {
  return [&tensors](size_t index) -> std::vector<Stretch> {
    const Tensor& tensor = *tensors[index];
    const auto filler = std::make_shared<BoxFiller>(tensor, WholeOf(tensor.shape()));
    return {{tensor.elements(), [filler](int64_t first, int64_t count, void* out) {
               filler->Fill(first, count, out);
             }}};
  };
}

StretchesOf Stored(const TensorFolder& folder, const std::vector<const Tensor*>& tensors) {
  return [&folder, &tensors](size_t index) {
    const Tensor& tensor = *tensors[index];
    const int64_t numbers = NumberCount(tensor.dtype());
    std::vector<Stretch> stretches;
    for (const FilePiece& piece : folder.PiecesOf(tensor)) {
      const Shape& shape = piece.box.shape;
      const bool has_rows = shape.size() > 1;
      const bool splits_rows = has_rows && shape.back() != tensor.shape().back();
      const auto read = [&piece, dtype = tensor.dtype()](int64_t first, int64_t count, void* out) {
        ReadNumbers(piece, dtype, first, count, static_cast<uint8_t*>(out));
      };
      stretches.push_back({numbers * ElementCount(shape), read,
                           has_rows && !splits_rows ? numbers * shape.back() : 0, splits_rows});
    }
    return stretches;
  };
}

std::vector<Measurement> Measure(const std::vector<const Tensor*>& tensors,
                                 const std::vector<const Tensor*>& declaring,
                                 const StretchesOf& stretches, int jobs,
                                 const std::function<void(int64_t bytes)>& progress) {
  std::vector<Measurement> results(tensors.size());
  struct Slice {
    size_t tensor;
    int64_t slices;
  };
  std::vector<Slice> slices;
  std::vector<std::unique_ptr<Work>> works(tensors.size());
  for (size_t i = 0; i < tensors.size(); ++i) {
    const int64_t count = std::clamp<int64_t>(tensors[i]->bytes() / kBlock, 1, jobs);
    works[i] = std::make_unique<Work>(*tensors[i], *declaring[i],
                                      [&stretches, i] { return stretches(i); });
    for (int64_t s = 0; s < count; ++s) slices.push_back({i, count});
  }
  std::atomic<int64_t> bytes{0};
  ParallelFor(std::ssize(slices), jobs, [&](int64_t s) {
    const Slice& slice = slices[static_cast<size_t>(s)];
    std::unique_ptr<Work>& work = works[slice.tensor];
    if (!work->Run(slice.slices, [&](int64_t n) { progress(bytes += n); })) return;
    results[slice.tensor] = work->Finish();
    work.reset();
  });
  return results;
}

}  // namespace shardinit
