// Uploads a file to a bucket in parts, without using the disk. Each part, made of texts and of
// boxes whose bytes arrive in any order, is sent when it is complete. An upload needs memory for
// the parts that have begun.
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

// Zeroed memory that is returned to the system when freed. A general allocator would keep it for
// the threads that used it.
class Pages {
 public:
  // Throws Error (kWorld) if there is not enough memory.
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

// Returns the part size for an object, which depends only on the object's size. An object of at
// most one part is sent whole.
int64_t PartBytes(int64_t size);

// The object exists after Complete(). If Complete() is not called, the parts are removed.
//
// A part that contains the CRC of a box waits for that box. So a file whose boxes are written in
// order keeps one extra part in memory for each box in progress.
class ObjectWriter : public NewPlaceFile {
 public:
  // `store` and `crcs` must outlive the writer. `crcs` are the CRCs of the boxes: each must be set
  // when the last bytes of its box are written.
  ObjectWriter(Store* store, FileOutline outline, const std::vector<uint32_t>* crcs = nullptr);
  ~ObjectWriter() override;

  // Returns whether the object is sent in parts. If not, Complete() sends it.
  bool has_parts() const { return !upload_.empty(); }

  int64_t Write(const void* data, int64_t bytes, int64_t offset) const override;
  bool Complete(const std::function<void()>& before_name = {}) override;

 private:
  struct Part {
    Pages pages;
    int64_t wanted;  // missing bytes of boxes and their CRCs
  };

  int64_t parts() const;
  // Marks bytes [begin, end) of the file as not known yet.
  void AddPending(int64_t begin, int64_t end);
  // Returns part `number`, from 0 on, without the bytes of boxes.
  Pages Blank(int64_t number) const;
  // Copies the known CRCs into a new part. Returns the number of copied bytes. Requires the lock.
  int64_t PutKnownCrcs(int64_t number, char* out) const;
  // If a box ends at `end`, copies its CRC, and sends the parts that this completes.
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
  std::string upload_;  // Empty: one part, sent as an object.
  mutable std::mutex mutex_;
  mutable std::map<int64_t, Part> begun_;
  mutable std::vector<bool> is_known_;  // by box: whether its CRC is known
  mutable std::vector<std::string> etags_;
  mutable bool is_lost_ = false;  // Somebody ended the upload.
  bool is_named_ = false;
};

}  // namespace shardinit
