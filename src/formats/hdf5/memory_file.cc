#include "formats/hdf5/memory_file.h"

#include <hdf5.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <string_view>
#include <utility>

#include "formats/hdf5/driver.h"

namespace shardinit::hdf5 {

struct MemoryDriver : Driver<MemoryFile> {
  static H5FD_t* Open(const char*, unsigned flags, hid_t access, haddr_t) {
    MemoryFile* const file = TargetOf(access);
    if ((flags & H5F_ACC_TRUNC) != 0) *file = {};
    return &(new Driver{{}, file, 0})->base;
  }
  static herr_t Close(H5FD_t* driver) {
    delete Of(driver);
    return 0;
  }
  // These flags equal the flags of HDF5's file driver, because they decide where everything is
  // placed.
  static herr_t Query(const H5FD_t*, unsigned long* flags) {
    *flags = H5FD_FEAT_AGGREGATE_METADATA | H5FD_FEAT_ACCUMULATE_METADATA | H5FD_FEAT_DATA_SIEVE |
             H5FD_FEAT_AGGREGATE_SMALLDATA;
    return 0;
  }
  static haddr_t GetEndOfFile(const H5FD_t* driver, H5FD_mem_t) {
    return static_cast<haddr_t>(Of(driver)->file->size_);
  }
  static herr_t Read(H5FD_t* driver, H5FD_mem_t, hid_t, haddr_t offset, size_t bytes, void* out) {
    Of(driver)->file->Read(static_cast<int64_t>(offset), static_cast<int64_t>(bytes),
                           static_cast<char*>(out));
    return 0;
  }
  static herr_t Write(H5FD_t* driver, H5FD_mem_t, hid_t, haddr_t offset, size_t bytes,
                      const void* in) try {
    Of(driver)->file->Write(static_cast<int64_t>(offset), static_cast<int64_t>(bytes),
                            static_cast<const char*>(in));
    return 0;
  } catch (const std::bad_alloc&) {
    return -1;
  }
  static herr_t Truncate(H5FD_t* driver, hid_t, hbool_t) {
    Of(driver)->file->size_ = static_cast<int64_t>(Of(driver)->end_of_allocation);
    return 0;
  }

  static hid_t Id() {
    static const hid_t id = [] {
      H5FD_class_t driver = ClassOf<MemoryDriver>("shardinit_memory", 1);
      driver.fc_degree = H5F_CLOSE_SEMI;
      driver.truncate = Truncate;
      return H5FDregister(&driver);
    }();
    return id;
  }
};

PropertyList MemoryFile::AccessFor(const FileProperties& properties) {
  // HDF5 1.10 crashes if it cannot allocate its caches, a few MB. Fail here instead.
  constexpr size_t kForHdf5 = 16 << 20;
  const std::unique_ptr<char, void (*)(void*)> probe(static_cast<char*>(std::malloc(kForHdf5)),
                                                     std::free);
  if (!probe) throw std::bad_alloc();
  PropertyList access(H5Pcopy(properties.access), "copy file properties");
  MemoryFile* const self = this;
  Require(H5Pset_driver(access, MemoryDriver::Id(), &self), "set the driver");
  return access;
}

File MemoryFile::Create(const FileProperties& properties) {
  return {H5Fcreate("memory", H5F_ACC_TRUNC, properties.create, AccessFor(properties)),
          "create an HDF5 file"};
}

File MemoryFile::Open(const FileProperties& properties) {
  return {H5Fopen("memory", H5F_ACC_RDWR, AccessFor(properties)), "open an HDF5 file"};
}

void MemoryFile::Read(int64_t offset, int64_t bytes, char* out) const {
  std::memset(out, 0, static_cast<size_t>(bytes));
  for (auto page = pages_.lower_bound(offset / kPage * kPage);
       page != pages_.end() && page->first < offset + bytes; ++page) {
    const int64_t begin = std::max(offset, page->first);
    const int64_t end = std::min(offset + bytes, page->first + kPage);
    page->second.copy(out + (begin - offset), static_cast<size_t>(end - begin),
                      static_cast<size_t>(begin - page->first));
  }
}

void MemoryFile::Write(int64_t offset, int64_t bytes, const char* in) {
  for (int64_t at = offset; at < offset + bytes;) {
    const int64_t start = at / kPage * kPage, end = std::min(offset + bytes, start + kPage);
    std::string& page = pages_[start];
    if (page.empty()) page.resize(kPage);
    std::copy(in + (at - offset), in + (end - offset), page.data() + (at - start));
    at = end;
  }
  size_ = std::max(size_, offset + bytes);
}

void MemoryFile::TakeTexts(int64_t begin, int64_t end, std::vector<FileText>* texts) {
  while (begin < end && !pages_.empty() && pages_.begin()->first < end) {
    auto& [start, page] = *pages_.begin();
    const int64_t from = std::max(begin, start), to = std::min(end, start + kPage);
    if (from < to) {
      const auto bytes = std::string_view(page).substr(static_cast<size_t>(from - start),
                                                       static_cast<size_t>(to - from));
      if (const size_t first = bytes.find_first_not_of('\0'); first != bytes.npos) {
        const size_t last = bytes.find_last_not_of('\0');
        const size_t skipped = static_cast<size_t>(from - start) + first;
        texts->push_back({start + static_cast<int64_t>(skipped), {}});
        // Most pages are taken whole, without a copy.
        if (to == start + kPage && first == 0 && from == start) {
          page.resize(last + 1);
          texts->back().bytes = std::move(page);
        } else {
          texts->back().bytes = bytes.substr(first, last + 1 - first);
        }
      }
    }
    if (start + kPage > end) break;
    pages_.erase(pages_.begin());
  }
}

FileLayout MemoryFile::Take(std::string path, std::vector<FileBox> boxes) {
  FileLayout layout{std::move(path), {}, std::move(boxes), {}, size_};
  std::vector<std::pair<int64_t, int64_t>> places;
  for (const FileBox& box : layout.boxes) places.emplace_back(box.offset, BytesOf(box));
  std::sort(places.begin(), places.end());
  int64_t begin = 0;
  for (const auto& [offset, bytes] : places) {
    TakeTexts(begin, offset, &layout.texts);
    begin = offset + bytes;
  }
  TakeTexts(begin, size_, &layout.texts);
  return layout;
}

}  // namespace shardinit::hdf5
