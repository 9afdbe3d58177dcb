#include "formats/frame.h"

#include <fmt/format.h>
#include <zstd.h>
#include <zstd_errors.h>

#include <algorithm>
#include <cstring>
#include <iterator>
#include <list>
#include <mutex>
#include <new>
#include <vector>

#include "base/error.h"
#include "base/text.h"
#include "formats/input.h"

namespace shardinit {
namespace {

constexpr int64_t kInputBytes = 128 << 10;
// TensorStore's levels need 2 MiB; a frame that needs more memory than this is refused.
constexpr int kMaxWindowLog = 27;

[[noreturn]] void RefuseExtent(const Extent& extent, std::string_view what) {
  throw Error(ExitCode::kRefused,
              fmt::format("cannot decode {} bytes at byte {} of `{}`: {}", extent.bytes,
                          extent.offset, Escape(extent.file), what));
}

// Reads an extent from its beginning to its end.
class ExtentReader {
 public:
  explicit ExtentReader(const Extent& extent) : extent_(extent) {
    if (!extent_.memory) file_ = InputFile(extent_.file);
  }
  int64_t left() const { return extent_.bytes - done_; }
  void Read(int64_t bytes, void* out) {
    if (extent_.memory) {
      memcpy(out, extent_.memory->data() + extent_.offset + done_, static_cast<size_t>(bytes));
    } else if (!file_.TryRead(extent_.offset + done_, bytes, out)) {
      RefuseExtent(extent_,
                   fmt::format("the file ends before byte {}", extent_.offset + done_ + bytes));
    }
    done_ += bytes;
  }

 private:
  const Extent extent_;
  InputFile file_;
  int64_t done_ = 0;
};

// Decodes a zstd frame from its beginning to its end.
class Decoder {
 public:
  explicit Decoder(const Extent& extent)
      : extent_(extent), reader_(extent), stream_(ZSTD_createDStream(), ZSTD_freeDStream) {
    if (!stream_) throw std::bad_alloc();
    ZSTD_DCtx_setParameter(stream_.get(), ZSTD_d_windowLogMax, kMaxWindowLog);
  }
  int64_t position() const { return position_; }
  // Reads at most `bytes` more bytes, and returns how many there were.
  int64_t Read(int64_t bytes, void* out) {
    ZSTD_outBuffer to = {out, static_cast<size_t>(bytes), 0};
    while (to.pos < to.size && !is_done_) Step(&to);
    position_ += static_cast<int64_t>(to.pos);
    return static_cast<int64_t>(to.pos);
  }
  // Throws Error (kRefused) unless the frame and its extent end here.
  void RequireEnd() {
    char more;
    if (Read(1, &more) != 0) {
      RefuseExtent(extent_, fmt::format("it contains more than {} bytes", position_ - 1));
    }
    const size_t unread = static_cast<size_t>(reader_.left()) + input_.size - input_.pos;
    if (unread > 0) RefuseExtent(extent_, fmt::format("{} bytes follow the frame", unread));
  }

 private:
  void Step(ZSTD_outBuffer* to) {
    if (input_.pos == input_.size && reader_.left() > 0) {
      buffer_.resize(static_cast<size_t>(std::min(kInputBytes, reader_.left())));
      reader_.Read(std::ssize(buffer_), buffer_.data());
      input_ = {buffer_.data(), buffer_.size(), 0};
    }
    const size_t before_in = input_.pos, before_out = to->pos;
    const size_t result = ZSTD_decompressStream(stream_.get(), to, &input_);
    if (ZSTD_isError(result)) {
      if (ZSTD_getErrorCode(result) == ZSTD_error_memory_allocation) throw std::bad_alloc();
      RefuseExtent(extent_, fmt::format("zstd reports: {}", ZSTD_getErrorName(result)));
    }
    is_done_ = result == 0;
    if (!is_done_ && input_.pos == before_in && to->pos == before_out && reader_.left() == 0) {
      RefuseExtent(extent_, "the frame is truncated");
    }
  }

  const Extent extent_;
  ExtentReader reader_;
  const std::unique_ptr<ZSTD_DStream, size_t (*)(ZSTD_DStream*)> stream_;
  std::vector<char> buffer_;
  ZSTD_inBuffer input_ = {nullptr, 0, 0};
  int64_t position_ = 0;
  bool is_done_ = false;
};

// Keeps decoders that have not reached the ends of their frames, for reads that continue there.
// Keeps few, because each takes several MB.
class IdleDecoders {
 public:
  // Returns the nearest decoder before `offset`, or null.
  std::unique_ptr<Decoder> Take(const Frame* frame, int64_t offset) {
    const std::lock_guard lock(mutex_);
    auto nearest = idle_.end();
    for (auto it = idle_.begin(); it != idle_.end(); ++it) {
      if (it->frame.get() != frame || it->decoder->position() > offset) continue;
      if (nearest == idle_.end() || it->decoder->position() > nearest->decoder->position()) {
        nearest = it;
      }
    }
    if (nearest == idle_.end()) return nullptr;
    std::unique_ptr<Decoder> decoder = std::move(nearest->decoder);
    idle_.erase(nearest);
    return decoder;
  }
  void Keep(const std::shared_ptr<const Frame>& frame, std::unique_ptr<Decoder> decoder) {
    std::list<Idle> dropped;  // destroyed after the lock is released
    const std::lock_guard lock(mutex_);
    idle_.push_front({frame, std::move(decoder)});
    if (idle_.size() > kMost) dropped.splice(dropped.begin(), idle_, std::prev(idle_.end()));
  }
  void Clear() {
    const std::lock_guard lock(mutex_);
    idle_.clear();
  }

 private:
  static constexpr size_t kMost = 16;
  struct Idle {
    std::shared_ptr<const Frame> frame;
    std::unique_ptr<Decoder> decoder;
  };
  std::mutex mutex_;
  std::list<Idle> idle_;  // most recently used first
};

IdleDecoders& Idle() {
  static IdleDecoders idle;
  return idle;
}

void Skip(Decoder* decoder, int64_t bytes) {
  std::vector<char> skipped(static_cast<size_t>(std::min(kInputBytes, bytes)));
  while (bytes > 0) {
    const int64_t got = decoder->Read(std::min(bytes, std::ssize(skipped)), skipped.data());
    if (got == 0) return;
    bytes -= got;
  }
}

}  // namespace

void CloseFrames() { Idle().Clear(); }

void ReadFrame(const std::shared_ptr<const Frame>& frame, int64_t offset, int64_t bytes,
               void* out) {
  if (!frame->is_zstd) {
    memcpy(out, frame->stored.memory->data() + frame->stored.offset + offset,
           static_cast<size_t>(bytes));
    return;
  }
  std::unique_ptr<Decoder> decoder = Idle().Take(frame.get(), offset);
  if (!decoder) decoder = std::make_unique<Decoder>(frame->stored);
  Skip(decoder.get(), offset - decoder->position());
  if (decoder->position() < offset || decoder->Read(bytes, out) < bytes) {
    RefuseExtent(frame->stored, fmt::format("it contains {} bytes instead of {}",
                                            decoder->position(), frame->bytes));
  }
  if (decoder->position() == frame->bytes) {
    decoder->RequireEnd();
  } else {
    Idle().Keep(frame, std::move(decoder));
  }
}

std::string ReadExtent(const Extent& extent, bool is_zstd, int64_t limit) {
  std::string out;
  const auto refuse_more = [&] {
    RefuseExtent(extent, fmt::format("it contains more than the allowed {} bytes", limit));
  };
  if (!is_zstd) {
    if (extent.bytes > limit) refuse_more();
    out.resize(static_cast<size_t>(extent.bytes));
    ExtentReader(extent).Read(extent.bytes, out.data());
    return out;
  }
  Decoder decoder(extent);
  for (;;) {
    const size_t done = out.size();
    out.resize(done + kInputBytes);
    const int64_t got = decoder.Read(kInputBytes, out.data() + done);
    out.resize(done + static_cast<size_t>(got));
    if (got < kInputBytes) break;
    if (std::ssize(out) > limit) refuse_more();
  }
  decoder.RequireEnd();
  return out;
}

}  // namespace shardinit
