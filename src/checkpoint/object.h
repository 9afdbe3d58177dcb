// A file on its way into a bucket. What is known of it without the data, and the data, which come
// in any order, make its parts; each is sent as soon as it is whole. So it needs the memory of the
// parts that are begun, and no disk.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "base/output_file.h"
#include "base/sha256.h"
#include "bucket/store.h"
#include "formats/format.h"

namespace shardinit {

// Zeroed memory of its own, which goes back to the system at once: that of a general allocator
// would stay with the threads that used it.
class Pages {
 public:
  // Throws Error (kWorld) if there is not that much memory.
  explicit Pages(int64_t bytes);
  Pages(Pages&& other) noexcept;
  Pages& operator=(Pages&&) = delete;
  ~Pages();

  char* data() const { return data_; }
  std::string_view text() const { return {data_, static_cast<size_t>(bytes_)}; }

 private:
  char* data_ = nullptr;
  int64_t bytes_;
};

// Returns the size of the parts of an object: it follows from the object's size alone. An object
// that is no larger is sent whole.
int64_t PartBytes(int64_t size);

// Calls `visit` with the bytes of a file that belong to no box, in order.
void ForEachGap(const FileLayout& layout, const std::function<void(std::string_view bytes)>& visit);

// The file has its name once it is completed. Before that nothing of it is to be seen; without
// Complete() the parts that were sent are given back.
//
// A part in which the CRC of a box stands waits for that box. So a file whose boxes are made in
// order keeps one more part for each box at work.
class Object : public Sink {
 public:
  // All but the strings must outlive it. `crcs` are those of the boxes, which ascend then, if the
  // layout has places for them: each is there when the last bytes of its box are written.
  Object(Store* store, std::string name, const FileLayout& layout, Metadata metadata,
         const std::vector<uint32_t>* crcs = nullptr);
  ~Object() override;

  // Tells whether it is sent in parts; else it is sent when it gets its name.
  bool has_parts() const { return !upload_.empty(); }

  // Puts data of boxes, each byte once.
  int64_t Write(const void* data, int64_t bytes, int64_t offset) const override;

  // Gives the object its name, when all boxes are written; `before_name` may throw when all but the
  // name is there. Returns false if this call did not make it for sure: look what has the name.
  bool Complete(const std::function<void()>& before_name = {});

 private:
  struct Part {
    Pages pages;
    int64_t wanted;  // bytes of boxes, and of their CRCs, that are not there yet
  };

  int64_t parts() const;
  // Notes that these bytes of the file come later than what is known of it.
  void Want(int64_t begin, int64_t end);
  // Returns what part `number`, from 0 on, is without data.
  Pages Blank(int64_t number) const;
  // Needs the lock. Puts the CRCs that are known into a part that begins. Returns their bytes.
  int64_t PutKnownCrcs(int64_t number, char* out) const;
  // Puts the CRC of the box that ends here, if one does, and sends parts that are whole then.
  void PutCrcOf(int64_t end) const;
  void Send(int64_t number, std::string_view bytes) const;

  Store& store_;
  const std::string name_;
  const FileLayout& layout_;
  const Metadata metadata_;
  const std::vector<uint32_t>* const crcs_;
  const int64_t size_, part_bytes_;
  std::vector<int64_t> wanted_in_;  // by part: bytes of boxes and of their CRCs
  std::vector<bool> has_data_;      // by part
  std::vector<CrcPlace> crcs_by_box_;
  std::string upload_;  // Empty: there is one part, which is an object of its own.
  mutable std::mutex mutex_;
  mutable std::map<int64_t, Part> begun_;
  mutable std::vector<bool> is_known_;  // by box: its CRC is
  mutable std::vector<std::string> etags_;
  mutable bool is_lost_ = false;  // Somebody ended the upload.
  bool is_named_ = false;
};

}  // namespace shardinit
