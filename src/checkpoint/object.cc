#include "checkpoint/object.h"

#include <fmt/format.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/checked_math.h"
#include "base/error.h"

namespace shardinit {
namespace {

constexpr int64_t kMiB = 1 << 20;
constexpr int64_t kLeastPart = 8 * kMiB, kMostParts = 10'000;

// Calls `visit` with the head and the texts that reach into [begin, end).
void ForEachText(const FileLayout& layout, int64_t begin, int64_t end,
                 const std::function<void(std::string_view text, int64_t offset)>& visit) {
  if (begin < std::ssize(layout.head)) visit(layout.head, 0);
  auto text = std::partition_point(
      layout.texts.begin(), layout.texts.end(),
      [&](const FileText& t) { return t.offset + std::ssize(t.bytes) <= begin; });
  for (; text != layout.texts.end() && text->offset < end; ++text) {
    visit(text->bytes, text->offset);
  }
}

// Puts what is in [begin, begin + bytes) beside boxes and zeros into `out`.
void PutTexts(const FileLayout& layout, int64_t begin, int64_t bytes, char* out) {
  ForEachText(layout, begin, begin + bytes, [&](std::string_view text, int64_t offset) {
    const int64_t from = std::max(begin, offset);
    const int64_t to = std::min(begin + bytes, offset + std::ssize(text));
    if (from >= to) return;
    std::memcpy(out + (from - begin), text.data() + (from - offset),
                static_cast<size_t>(to - from));
  });
}

}  // namespace

Pages::Pages(int64_t bytes) : bytes_(bytes) {
  if (bytes == 0) return;
  void* const pages = mmap(nullptr, static_cast<size_t>(bytes), PROT_READ | PROT_WRITE,
                           MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (pages == MAP_FAILED) {
    throw Error(ExitCode::kWorld,
                fmt::format("cannot get {} bytes of memory for a part of an object", bytes),
                "use fewer threads (`--jobs`) or less memory (`--memory`)");
  }
  data_ = static_cast<char*>(pages);
}

Pages::Pages(Pages&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}

Pages::~Pages() {
  if (data_ != nullptr) munmap(data_, static_cast<size_t>(bytes_));
}

int64_t PartBytes(int64_t size) {
  return std::max(kLeastPart, CeilDiv(CeilDiv(size, kMostParts), kMiB) * kMiB);
}

void ForEachGap(const FileLayout& layout,
                const std::function<void(std::string_view bytes)>& visit) {
  std::vector<std::pair<int64_t, int64_t>> boxes;  // begin, end
  for (const FileBox& box : layout.boxes) {
    boxes.emplace_back(box.offset, box.offset + BytesOf(box));
  }
  std::sort(boxes.begin(), boxes.end());
  boxes.emplace_back(layout.size(), layout.size());
  int64_t at = 0;
  for (const auto& [begin, end] : boxes) {
    while (at < begin) {
      const int64_t bytes = std::min(begin - at, kMiB);
      std::string gap(static_cast<size_t>(bytes), '\0');
      PutTexts(layout, at, bytes, gap.data());
      visit(gap);
      at += bytes;
    }
    at = std::max(at, end);
  }
}

Object::Object(Store* store, std::string name, const FileLayout& layout, Metadata metadata)
    : store_(*store),
      name_(std::move(name)),
      layout_(layout),
      metadata_(std::move(metadata)),
      size_(layout.size()),
      part_bytes_(PartBytes(size_)),
      data_in_(static_cast<size_t>(parts())),
      etags_(data_in_.size()) {
  Check(layout.crcs.empty(), "an object with CRCs in its texts");
  for (const FileBox& box : layout.boxes) {
    int64_t at = box.offset;
    const int64_t end = at + BytesOf(box);
    while (at < end) {
      const int64_t part = at / part_bytes_, next = std::min(end, (part + 1) * part_bytes_);
      data_in_[static_cast<size_t>(part)] += next - at;
      at = next;
    }
  }
  if (parts() > 1) upload_ = store_.BeginUpload(name_, metadata_);
}

Object::~Object() {
  if (upload_.empty() || is_named_ || is_lost_) return;
  try {
    store_.EndUpload(name_, upload_, 1);  // A store that is gone must not hold up the error.
  } catch (...) {
    // The store has parts of nothing then, until `finalize` or its own rules end the upload.
  }
}

int64_t Object::parts() const { return std::max<int64_t>(1, CeilDiv(size_, part_bytes_)); }

Pages Object::Blank(int64_t number) const {
  const int64_t begin = number * part_bytes_, bytes = std::min(part_bytes_, size_ - begin);
  Pages blank(bytes);
  PutTexts(layout_, begin, bytes, blank.data());
  return blank;
}

void Object::Send(int64_t number, std::string_view bytes) const {
  const std::optional<std::string> etag =
      store_.PutPart(name_, upload_, static_cast<int>(number) + 1, bytes);
  const std::lock_guard lock(mutex_);
  if (etag) {
    etags_[static_cast<size_t>(number)] = *etag;
  } else {
    is_lost_ = true;
  }
}

int64_t Object::Write(const void* data, int64_t bytes, int64_t offset) const {
  std::string_view rest(static_cast<const char*>(data), static_cast<size_t>(bytes));
  while (!rest.empty()) {
    const int64_t number = offset / part_bytes_, begin = number * part_bytes_;
    const std::string_view piece =
        rest.substr(0, static_cast<size_t>(begin + part_bytes_ - offset));
    std::map<int64_t, Part>::node_type whole;
    Part* part = nullptr;
    {
      const std::lock_guard lock(mutex_);
      if (is_lost_) return 0;
      const auto it = begun_.find(number);
      if (it != begun_.end()) part = &it->second;
    }
    if (part == nullptr) {
      // It is made outside of the lock, so two may make it, and the first one is taken.
      Part made{Blank(number), data_in_[static_cast<size_t>(number)]};
      const std::lock_guard lock(mutex_);
      part = &begun_.try_emplace(number, std::move(made)).first->second;
    }
    // Others write other bytes of it meanwhile. It stays where it is until all are there.
    std::memcpy(part->pages.data() + (offset - begin), piece.data(), piece.size());
    {
      const std::lock_guard lock(mutex_);
      part->wanted -= std::ssize(piece);
      // An object of one part waits for Complete().
      if (part->wanted == 0 && !upload_.empty()) whole = begun_.extract(number);
    }
    if (whole) Send(number, whole.mapped().pages.text());
    rest.remove_prefix(piece.size());
    offset += std::ssize(piece);
  }
  return 0;
}

bool Object::Complete(const std::function<void()>& before_name) {
  if (upload_.empty()) {
    if (before_name) before_name();
    const auto part = begun_.begin();
    const Pages pages = part == begun_.end() ? Blank(0) : std::move(part->second.pages);
    return store_.PutNew(name_, pages.text(), metadata_);
  }
  for (int64_t number = 0; number < parts() && !is_lost_; ++number) {
    if (data_in_[static_cast<size_t>(number)] == 0) Send(number, Blank(number).text());
  }
  if (is_lost_) return false;
  Check(begun_.empty(), "a part that lacks data");
  if (before_name) before_name();
  is_named_ = store_.CompleteUpload(name_, upload_, etags_) == Completion::kMade;
  return is_named_;
}

}  // namespace shardinit
