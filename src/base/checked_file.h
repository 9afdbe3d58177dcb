// A file whose SHA-256 is known before it is read: nobody gets a byte of it until that is checked.
#pragma once

#include <sys/stat.h>

#include <cstdint>
#include <mutex>
#include <string>

#include "base/file.h"

namespace shardinit {

// It is safe to use from several threads. The whole file is hashed once, when any of it is first
// read. It is opened anew for each Reader, so there may be any number of such files.
class CheckedFile {
 public:
  // `place` is where the user gave the digest, for messages. With `of_bools` every byte must be 0
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
    // Throws as Check() does, and kWorld if the file is no longer the one that was checked.
    explicit Reader(const CheckedFile& file);
    // Reads bytes offset … offset + size - 1. Throws Error (kWorld).
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
  mutable struct stat checked_info_ = {};  // the file's, when it was checked
};

}  // namespace shardinit
