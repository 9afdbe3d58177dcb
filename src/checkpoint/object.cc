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
constexpr int64_t kCrcBytes = 4;

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

// Puts those bytes of a CRC that stand in [begin, end) into `out`, which is that part of the file.
// Returns how many these are.
int64_t PutCrc(const CrcPlace& place, uint32_t crc, int64_t begin, int64_t end, char* out) {
  int64_t put = 0;
  for (int64_t i = 0; i < kCrcBytes; ++i) {
    const int64_t at = place.offset + i;
    if (at < begin || at >= end) continue;
    out[at - begin] = static_cast<char>(crc >> (8 * i) & 0xff);
    ++put;
  }
  return put;
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

Object::Object(Store* store, std::string name, const FileLayout& layout, Metadata metadata,
               const std::vector<uint32_t>* crcs)
    : store_(*store),
      name_(std::move(name)),
      layout_(layout),
      metadata_(std::move(metadata)),
      crcs_(crcs),
      size_(layout.size()),
      part_bytes_(PartBytes(size_)),
      wanted_in_(static_cast<size_t>(parts())),
      has_data_(wanted_in_.size()),
      crcs_by_box_(layout.crcs),
      etags_(wanted_in_.size()) {
  Check(layout.crcs.empty() || crcs != nullptr, "an object without the CRCs in its texts");
  for (const FileBox& box : layout.boxes) {
    const int64_t end = box.offset + BytesOf(box);
    Want(box.offset, end);
    for (int64_t part = box.offset / part_bytes_; part * part_bytes_ < end; ++part) {
      has_data_[static_cast<size_t>(part)] = true;
    }
  }
  if (!layout.crcs.empty()) is_known_.resize(layout.boxes.size());
  for (const CrcPlace& place : layout.crcs) Want(place.offset, place.offset + kCrcBytes);
  std::stable_sort(crcs_by_box_.begin(), crcs_by_box_.end(),
                   [](const CrcPlace& a, const CrcPlace& b) { return a.box < b.box; });
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

void Object::Want(int64_t begin, int64_t end) {
  while (begin < end) {
    const int64_t part = begin / part_bytes_, next = std::min(end, (part + 1) * part_bytes_);
    wanted_in_[static_cast<size_t>(part)] += next - begin;
    begin = next;
  }
}

Pages Object::Blank(int64_t number) const {
  const int64_t begin = number * part_bytes_, bytes = std::min(part_bytes_, size_ - begin);
  Pages blank(bytes);
  PutTexts(layout_, begin, bytes, blank.data());
  return blank;
}

int64_t Object::PutKnownCrcs(int64_t number, char* out) const {
  const int64_t begin = number * part_bytes_, end = std::min(begin + part_bytes_, size_);
  int64_t known = 0;
  auto place = std::partition_point(
      layout_.crcs.begin(), layout_.crcs.end(),
      [&](const CrcPlace& earlier) { return earlier.offset + kCrcBytes <= begin; });
  for (; place != layout_.crcs.end() && place->offset < end; ++place) {
    if (is_known_[place->box]) known += PutCrc(*place, (*crcs_)[place->box], begin, end, out);
  }
  return known;
}

void Object::PutCrcOf(int64_t end) const {
  const auto box = std::partition_point(
      layout_.boxes.begin(), layout_.boxes.end(),
      [&](const FileBox& earlier) { return earlier.offset + BytesOf(earlier) < end; });
  if (box == layout_.boxes.end() || box->offset + BytesOf(*box) != end) return;
  const auto b = static_cast<size_t>(box - layout_.boxes.begin());
  std::map<int64_t, Part> whole;
  {
    const std::lock_guard lock(mutex_);
    is_known_[b] = true;
    auto place = std::lower_bound(crcs_by_box_.begin(), crcs_by_box_.end(), b,
                                  [](const CrcPlace& of, size_t other) { return of.box < other; });
    for (; place != crcs_by_box_.end() && place->box == b; ++place) {
      const int64_t last = (place->offset + kCrcBytes - 1) / part_bytes_;
      for (int64_t number = place->offset / part_bytes_; number <= last; ++number) {
        const auto part = begun_.find(number);
        if (part == begun_.end()) continue;
        const int64_t begin = number * part_bytes_;
        part->second.wanted -=
            PutCrc(*place, (*crcs_)[b], begin, begin + part_bytes_, part->second.pages.data());
        if (part->second.wanted == 0 && has_parts()) whole.insert(begun_.extract(part));
      }
    }
  }
  for (const auto& [number, part] : whole) Send(number, part.pages.text());
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
      Part made{Blank(number), wanted_in_[static_cast<size_t>(number)]};
      const std::lock_guard lock(mutex_);
      const auto [it, is_new] = begun_.try_emplace(number, std::move(made));
      part = &it->second;
      if (is_new) part->wanted -= PutKnownCrcs(number, part->pages.data());
    }
    // Others write other bytes of it meanwhile. It stays where it is until all are there.
    std::memcpy(part->pages.data() + (offset - begin), piece.data(), piece.size());
    {
      const std::lock_guard lock(mutex_);
      part->wanted -= std::ssize(piece);
      // An object of one part waits for Complete().
      if (part->wanted == 0 && has_parts()) whole = begun_.extract(number);
    }
    if (whole) Send(number, whole.mapped().pages.text());
    rest.remove_prefix(piece.size());
    offset += std::ssize(piece);
  }
  if (!layout_.crcs.empty()) PutCrcOf(offset);
  return 0;
}

bool Object::Complete(const std::function<void()>& before_name) {
  if (!has_parts()) {
    if (before_name) before_name();
    const auto part = begun_.begin();
    Check(part == begun_.end() || part->second.wanted == 0, "an object that lacks data");
    const Pages pages = part == begun_.end() ? Blank(0) : std::move(part->second.pages);
    return store_.PutNew(name_, pages.text(), metadata_);
  }
  for (int64_t number = 0; number < parts() && !is_lost_; ++number) {
    if (has_data_[static_cast<size_t>(number)]) continue;
    const Pages blank = Blank(number);
    {
      const std::lock_guard lock(mutex_);
      PutKnownCrcs(number, blank.data());
    }
    Send(number, blank.text());
  }
  if (is_lost_) return false;
  Check(begun_.empty(), "a part that lacks data");
  if (before_name) before_name();
  is_named_ = store_.CompleteUpload(name_, upload_, etags_) == Completion::kMade;
  return is_named_;
}

}  // namespace shardinit
