// Reads zip archives as PKWARE's APPNOTE.TXT, 4.3.7 to 4.3.16, describes them.
#include "formats/dcp/archive.h"

#include <sys/stat.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "base/text.h"
#include "formats/dcp/saved.h"
#include "formats/little_endian.h"

namespace shardinit::dcp {
namespace {

constexpr int64_t kMostDirectory = 64 << 20;  // bytes
// If a field of 32 or 16 bits has this value, the number is in a ZIP64 field.
constexpr int64_t kMany = 0xffffffff, kManyFiles = 0xffff;
constexpr int64_t kFileHeader = 30, kDirectoryHeader = 46;  // bytes before the name

int64_t Field(std::string_view in, size_t at, size_t bytes) {
  const uint64_t value = FromLittleEndian({in.data() + at, bytes});
  return static_cast<int64_t>(std::min(value, uint64_t{1} << 60));  // small enough for sums
}

// The sizes and the offset of a file, as the directory lists them.
struct Sizes {
  int64_t packed, size, header;
};

// Reads ZIP64's extra field. It has size, packed size and offset, in this order, but only values
// that exceed 32 bits.
void TakeLargeFields(std::string_view extra, Sizes* sizes) {
  while (extra.size() >= 4) {
    const int64_t id = Field(extra, 0, 2);
    std::string_view field = extra.substr(4);
    field = field.substr(0, std::min(field.size(), static_cast<size_t>(Field(extra, 2, 2))));
    extra.remove_prefix(4 + field.size());
    if (id != 1) continue;
    for (int64_t* value : {&sizes->size, &sizes->packed, &sizes->header}) {
      if (*value != kMany || field.size() < 8) continue;
      *value = Field(field, 0, 8);
      field.remove_prefix(8);
    }
  }
}

}  // namespace

Archive::Archive(std::string path, int64_t offset, int64_t length)
    : path_(std::move(path)), offset_(offset), length_(length), file_(path_) {
  if (offset > file_.size() || length > file_.size() - offset) {
    Refuse(path_, "an item is outside it: {} bytes, from byte {} on, of {}", length, offset,
           file_.size());
  }
  ReadDirectory();
}

const Archive::Entry* Archive::Find(std::string_view end) const {
  const auto found = entries_.find(name_ + std::string(end));
  return found == entries_.end() ? nullptr : &found->second;
}

int64_t Archive::DataOf(const Entry& entry) const {
  if (!entry.is_stored) {
    Refuse(path_, "its data are compressed: load it with PyTorch, and save it again");
  }
  const std::string header = Read(entry.header, kFileHeader);
  if (!header.starts_with("PK\3\4")) Refuse(path_, "an item's zip directory is damaged");
  const int64_t name = Field(header, 26, 2);
  // The size may instead be after the data, or in a ZIP64 field.
  const bool has_size = (Field(header, 6, 2) & 8) == 0;
  const int64_t size = Field(header, 22, 4);
  const auto known = entries_.find(Read(entry.header + kFileHeader, name));
  if (known == entries_.end() || &known->second != &entry || Field(header, 8, 2) != 0 ||
      (has_size && size != kMany && size != entry.size)) {
    Refuse(path_, "an item's zip directory and a file's header differ");
  }
  const int64_t at = entry.header + kFileHeader + name + Field(header, 28, 2);
  if (at + entry.size > entry.limit) {
    Refuse(path_, "an item's data overlap the next data in its zip archive");
  }
  return offset_ + at;
}

std::string Archive::Text(const Entry& entry, int64_t most) const {
  if (entry.size > most) Refuse(path_, "an item's pickle is too long");
  return Read(DataOf(entry) - offset_, entry.size);
}

// Reads bytes; `at` counts from the beginning of the archive.
std::string Archive::Read(int64_t at, int64_t bytes) const {
  if (at < 0 || at + bytes > length_) Refuse(path_, "an item is not a zip archive");
  std::string text(static_cast<size_t>(bytes), '\0');
  file_.Read(offset_ + at, bytes, text.data());
  return text;
}

Archive::Directory Archive::FindDirectory() const {
  constexpr int64_t kEnd = 22, kLocator = 20, kEnd64 = 56, kMostComment = 0xffff;
  const int64_t tail = std::min(length_, kEnd + kMostComment);
  const std::string last = Read(length_ - tail, tail);
  const size_t found = last.rfind("PK\5\6");
  if (found == last.npos || found + kEnd > last.size()) {
    Refuse(path_, "an item is not a zip archive");
  }
  // A comment could contain a second end record, which other readers might use instead.
  if (Field(last, found + 20, 2) != std::ssize(last) - static_cast<int64_t>(found) - kEnd) {
    Refuse(path_, "an item has bytes after its zip archive");
  }
  int64_t end_at = length_ - tail + static_cast<int64_t>(found);
  Directory directory = {Field(last, found + 16, 4), Field(last, found + 12, 4),
                         Field(last, found + 10, 2)};
  if (directory.count == kManyFiles) directory.count = -1;
  if (directory.size == kMany || directory.at == kMany) {
    const std::string locator = Read(end_at - kLocator, kLocator);
    end_at = Field(locator, 8, 8);
    const std::string end = Read(end_at, kEnd64);
    if (!locator.starts_with("PK\6\7") || !end.starts_with("PK\6\6")) {
      Refuse(path_, "an item's zip directory is damaged");
    }
    directory = {Field(end, 48, 8), Field(end, 40, 8), Field(end, 32, 8)};
  }
  if (directory.at + directory.size > end_at) Refuse(path_, "an item's zip directory is damaged");
  return directory;
}

void Archive::ReadDirectory() {
  const auto [at, size, count] = FindDirectory();
  if (size > kMostDirectory) Refuse(path_, "an item has a directory that is too long");
  const std::string directory = Read(at, size);
  int64_t files = 0;
  for (std::string_view rest = directory; !rest.empty(); ++files) {
    if (std::ssize(rest) < kDirectoryHeader || !rest.starts_with("PK\1\2")) {
      Refuse(path_, "an item's zip directory is damaged");
    }
    const auto name = static_cast<size_t>(Field(rest, 28, 2));
    const auto extra = static_cast<size_t>(Field(rest, 30, 2));
    const size_t all = kDirectoryHeader + name + extra + static_cast<size_t>(Field(rest, 32, 2));
    if (all > rest.size()) Refuse(path_, "an item's zip directory is damaged");
    if ((Field(rest, 8, 2) & 1) != 0) Refuse(path_, "its files are encrypted");
    Sizes sizes = {Field(rest, 20, 4), Field(rest, 24, 4), Field(rest, 42, 4)};
    TakeLargeFields(rest.substr(kDirectoryHeader + name, extra), &sizes);
    const bool is_stored = Field(rest, 10, 2) == 0;
    if (is_stored && sizes.packed != sizes.size) {
      Refuse(path_, "an item's zip directory is damaged");
    }
    std::string full(rest.substr(kDirectoryHeader, name));
    if (files == 0) name_ = full.substr(0, full.find('/'));
    const auto [entry, is_new] =
        entries_.emplace(std::move(full), Entry{sizes.header, sizes.size, is_stored});
    if (!is_new) Refuse(path_, "its archive has {} twice", Quote(entry->first));
    rest.remove_prefix(all);
  }
  if (count >= 0 && files != count) {
    Refuse(path_, "its archive claims {} files, but lists {}", count, files);
  }
  SetLimits(at);
}

void Archive::SetLimits(int64_t directory) {
  std::vector<Entry*> order;
  for (auto& [name, entry] : entries_) order.push_back(&entry);
  std::sort(order.begin(), order.end(),
            [](const Entry* a, const Entry* b) { return a->header < b->header; });
  for (size_t i = 0; i < order.size(); ++i) {
    order[i]->limit = i + 1 < order.size() ? order[i + 1]->header : directory;
    if (order[i]->header + kFileHeader > order[i]->limit) {
      Refuse(path_, "the files of its archive overlap");
    }
  }
}

}  // namespace shardinit::dcp
