// A file that is being uploaded to a bucket. The texts, and the boxes, whose bytes come in any
// order, form its parts; each part is sent as soon as it is whole. So an upload needs the memory of
// the parts that have begun, and no disk.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "bucket/store.h"
#include "place/file_outline.h"
#include "place/place.h"

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

// The object exists once it is completed. Without Complete() the parts that were sent are removed.
//
// A part that contains the CRC of a box waits for that box. So a file whose boxes are written in
// order keeps one more part for each box at work.
class ObjectWriter : public NewPlaceFile {
 public:
  // `store` must outlive it, and so must `crcs`: the CRCs of boxes, each of which is there when the
  // last bytes of its box are written.
  ObjectWriter(Store* store, FileOutline outline, const std::vector<uint32_t>* crcs = nullptr);
  ~ObjectWriter() override;

  // Returns whether it is sent in parts. If not, it is sent by Complete().
  bool has_parts() const { return !upload_.empty(); }

  int64_t Write(const void* data, int64_t bytes, int64_t offset) const override;
  bool Complete(const std::function<void()>& before_name = {}) override;

 private:
  struct Part {
    Pages pages;
    int64_t wanted;  // bytes of boxes, and of their CRCs, that are not there yet
  };

  int64_t parts() const;
  // Notes that these bytes of the file come later than what is known of it.
  void Want(int64_t begin, int64_t end);
  // Returns part `number`, from 0 on, without the bytes of boxes.
  Pages Blank(int64_t number) const;
  // Needs the lock. Puts the CRCs that are known into a part that begins. Returns their bytes.
  int64_t PutKnownCrcs(int64_t number, char* out) const;
  // Puts the CRC of the box that ends here, if one does, and sends parts that are whole then.
  void PutCrcOf(int64_t end) const;
  void Send(int64_t number, std::string_view bytes) const;

  Store& store_;
  const FileOutline outline_;
  const std::string& name_;
  const std::shared_ptr<const FileTexts> texts_;
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
