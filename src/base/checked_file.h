// A file whose SHA-256 is known before it is read: nobody gets a byte of it until that is checked.
#pragma once

#include <sys/stat.h>

#include <cstdint>
#include <mutex>
#include <string>

#include "base/file.h"
#include "base/sha256.h"

namespace shardinit {

// Safe to use from several threads. It is hashed when some of it is first read, once, whatever is
// read then; and it is opened for each Reader, so that there may be any number of such files.
class CheckedFile {
 public:
  // `place` is where the digest was asked for, for people. Of a file of bools, every byte is 0
  // or 1.
  CheckedFile(std::string path, int64_t size, std::string sha256, std::string place,
              bool of_bools = false);

  const std::string& path() const { return path_; }
  int64_t size() const { return size_; }

  // Throws Error: kUsage if the file has another digest, or bytes that are no bools, or is gone;
  // kWorld if it cannot be read.
  void Check() const;

  class Reader {
   public:
    // Throws as Check() does; kWorld if the file is no longer the one that was checked.
    explicit Reader(const CheckedFile& file);
    // Bytes offset … offset + size - 1. Throws Error (kWorld).
    void Read(int64_t offset, int64_t size, void* out) const;

   private:
    const CheckedFile& file_;
    Fd fd_;
  };

 private:
  Fd Open(struct stat* info) const;

  const std::string path_;
  const int64_t size_;
  const std::string sha256_, place_;
  const bool of_bools_;
  mutable std::mutex mutex_;
  mutable bool checked_ = false;
  mutable struct stat checked_info_ = {};  // Of the file when it was checked.
};

}  // namespace shardinit
