#include "place/object_writer.h"

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

ObjectWriter::ObjectWriter(Store* store, FileOutline outline, const std::vector<uint32_t>* crcs)
    : store_(*store),
      outline_(std::move(outline)),
      name_(outline_.path),
      texts_(outline_.Texts()),
      crcs_(crcs),
      size_(outline_.size),
      part_bytes_(PartBytes(size_)),
      wanted_in_(static_cast<size_t>(parts())),
      has_data_(wanted_in_.size()),
      crcs_by_box_(texts_->crcs),
      etags_(wanted_in_.size()) {
  Check(texts_->crcs.empty() || crcs != nullptr, "an object without the CRCs in its texts");
  for (const FilePart& box : outline_.boxes) {
    const int64_t end = box.offset + box.bytes;
    AddPending(box.offset, end);
    for (int64_t part = box.offset / part_bytes_; part * part_bytes_ < end; ++part) {
      has_data_[static_cast<size_t>(part)] = true;
    }
  }
  if (!texts_->crcs.empty()) is_known_.resize(outline_.boxes.size());
  for (const CrcPlace& place : texts_->crcs) AddPending(place.offset, place.offset + kCrcBytes);
  std::stable_sort(crcs_by_box_.begin(), crcs_by_box_.end(),
                   [](const CrcPlace& a, const CrcPlace& b) { return a.box < b.box; });
  if (parts() > 1) upload_ = store_.BeginUpload(name_, outline_.metadata);
}

ObjectWriter::~ObjectWriter() {
  if (upload_.empty() || is_named_ || is_lost_) return;
  try {
    store_.EndUpload(name_, upload_, 1);  // A store that is gone must not delay the error.
  } catch (...) {
    // The store keeps useless parts until `finalize` or its own rules end the upload.
  }
}

int64_t ObjectWriter::parts() const { return std::max<int64_t>(1, CeilDiv(size_, part_bytes_)); }

void ObjectWriter::AddPending(int64_t begin, int64_t end) {
  while (begin < end) {
    const int64_t part = begin / part_bytes_, next = std::min(end, (part + 1) * part_bytes_);
    wanted_in_[static_cast<size_t>(part)] += next - begin;
    begin = next;
  }
}

Pages ObjectWriter::Blank(int64_t number) const {
  const int64_t begin = number * part_bytes_, bytes = std::min(part_bytes_, size_ - begin);
  Pages blank(bytes);
  CopyTexts(texts_->texts, begin, bytes, blank.data());
  return blank;
}

int64_t ObjectWriter::PutKnownCrcs(int64_t number, char* out) const {
  const int64_t begin = number * part_bytes_, end = std::min(begin + part_bytes_, size_);
  int64_t known = 0;
  auto place = std::partition_point(
      texts_->crcs.begin(), texts_->crcs.end(),
      [&](const CrcPlace& earlier) { return earlier.offset + kCrcBytes <= begin; });
  for (; place != texts_->crcs.end() && place->offset < end; ++place) {
    if (is_known_[place->box]) known += CopyCrc(*place, (*crcs_)[place->box], begin, end, out);
  }
  return known;
}

void ObjectWriter::PutCrcOf(int64_t end) const {
  const auto box = std::partition_point(
      outline_.boxes.begin(), outline_.boxes.end(),
      [&](const FilePart& earlier) { return earlier.offset + earlier.bytes < end; });
  if (box == outline_.boxes.end() || box->offset + box->bytes != end) return;
  const auto b = static_cast<size_t>(box - outline_.boxes.begin());
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
            CopyCrc(*place, (*crcs_)[b], begin, begin + part_bytes_, part->second.pages.data());
        if (part->second.wanted == 0 && has_parts()) whole.insert(begun_.extract(part));
      }
    }
  }
  for (const auto& [number, part] : whole) Send(number, part.pages.text());
}

void ObjectWriter::Send(int64_t number, std::string_view bytes) const {
  const std::optional<std::string> etag =
      store_.PutPart(name_, upload_, static_cast<int>(number) + 1, bytes);
  const std::lock_guard lock(mutex_);
  if (etag) {
    etags_[static_cast<size_t>(number)] = *etag;
  } else {
    is_lost_ = true;
  }
}

int64_t ObjectWriter::Write(const void* data, int64_t bytes, int64_t offset) const {
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
      // Created outside the lock: if two threads do so, the first part is used.
      Part made{Blank(number), wanted_in_[static_cast<size_t>(number)]};
      const std::lock_guard lock(mutex_);
      const auto [it, is_new] = begun_.try_emplace(number, std::move(made));
      part = &it->second;
      if (is_new) part->wanted -= PutKnownCrcs(number, part->pages.data());
    }
    // Other threads write other bytes of the part meanwhile. It does not move until all bytes are
    // there.
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
  if (!texts_->crcs.empty()) PutCrcOf(offset);
  return 0;
}

bool ObjectWriter::Complete(const std::function<void()>& before_name) {
  if (!has_parts()) {
    if (before_name) before_name();
    const auto part = begun_.begin();
    Check(part == begun_.end() || part->second.wanted == 0, "an object that lacks data");
    const Pages pages = part == begun_.end() ? Blank(0) : std::move(part->second.pages);
    return store_.PutNew(name_, pages.text(), outline_.metadata);
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
