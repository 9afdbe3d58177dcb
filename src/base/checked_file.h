// Checks the SHA-256 of a whole file before anybody can read a byte of it.
#pragma once

#include <sys/stat.h>

#include <cstdint>
#include <mutex>
#include <string>

#include "base/file.h"

namespace shardinit {

// Thread-safe. The first read hashes the whole file. Each Reader opens the file again, so there may
// be any number of CheckedFiles.
class CheckedFile {
 public:
  // `place` is where the user wrote the digest, for messages. If `of_bools`, every byte must be 0
  // or 1.
  CheckedFile(std::string path, int64_t size, std::string sha256, std::string place,
              bool of_bools = false);

  const std::string& path() const { return path_; }
  int64_t size() const { return size_; }

  // Throws Error: kUsage if the file has another digest, or bytes that are not bools; kWorld if it
  // is missing or reading fails.
  void Check() const;

  class Reader {
   public:
    // Throws as Check() does, and kWorld if the file has changed since the check.
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
  mutable struct stat checked_info_ = {};  // of the file, when it was checked
};

}  // namespace shardinit
