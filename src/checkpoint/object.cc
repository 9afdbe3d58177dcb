#include "checkpoint/object.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/checked_math.h"
#include "base/error.h"

namespace shardinit {
namespace {

constexpr int64_t kMiB = 1 << 20;
constexpr int64_t kLeastPart = 8 * kMiB, kMostParts = 10'000;

// Copies what of `bytes`, which begin at `offset`, lies within `out`, which begins at `begin`.
void CopyInto(std::string* out, int64_t begin, std::string_view bytes, int64_t offset) {
  const int64_t from = std::max(begin, offset);
  const int64_t to = std::min(begin + std::ssize(*out), offset + std::ssize(bytes));
  if (from >= to) return;
  std::memcpy(out->data() + (from - begin), bytes.data() + (from - offset),
              static_cast<size_t>(to - from));
}

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

// Returns what is in [begin, begin + bytes) beside the boxes.
std::string WithoutData(const FileLayout& layout, int64_t begin, int64_t bytes) {
  std::string blank(static_cast<size_t>(bytes), '\0');
  ForEachText(layout, begin, begin + bytes, [&](std::string_view text, int64_t offset) {
    CopyInto(&blank, begin, text, offset);
  });
  return blank;
}

}  // namespace

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
      visit(WithoutData(layout, at, bytes));
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
    store_.EndUpload(name_, upload_);
  } catch (...) {
    // The store has parts of nothing then, until `finalize` or its own rules end the upload.
  }
}

int64_t Object::parts() const { return std::max<int64_t>(1, CeilDiv(size_, part_bytes_)); }

std::string Object::Blank(int64_t number) const {
  const int64_t begin = number * part_bytes_;
  return WithoutData(layout_, begin, std::min(part_bytes_, size_ - begin));
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
    std::memcpy(part->bytes.data() + (offset - begin), piece.data(), piece.size());
    {
      const std::lock_guard lock(mutex_);
      part->wanted -= std::ssize(piece);
      // An object of one part waits for Complete().
      if (part->wanted == 0 && !upload_.empty()) whole = begun_.extract(number);
    }
    if (whole) Send(number, whole.mapped().bytes);
    rest.remove_prefix(piece.size());
    offset += std::ssize(piece);
  }
  return 0;
}

bool Object::Complete(const std::function<void()>& before_name) {
  if (upload_.empty()) {
    if (before_name) before_name();
    const auto part = begun_.begin();
    return store_.PutNew(name_, part == begun_.end() ? Blank(0) : part->second.bytes, metadata_);
  }
  for (int64_t number = 0; number < parts() && !is_lost_; ++number) {
    if (data_in_[static_cast<size_t>(number)] == 0) Send(number, Blank(number));
  }
  if (is_lost_) return false;
  Check(begun_.empty(), "a part that lacks data");
  if (before_name) before_name();
  is_named_ = store_.CompleteUpload(name_, upload_, etags_);
  return is_named_;
}

}  // namespace shardinit
