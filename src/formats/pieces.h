// Reads a tensor that is stored in pieces as if it were one array.
#pragma once

#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "formats/frame.h"
#include "formats/input.h"
#include "tensor/arrangement.h"
#include "tensor/box.h"

namespace shardinit {

struct FilePiece {
  Box box;
  std::string file;
  int64_t offset;  // the offset of the box's first element in the file
  // Loops over the box's bytes; `from` counts bytes of the file from `offset`. Empty if the bytes
  // are contiguous in the file.
  std::vector<Piece::Loop> loops = {};
  // The bytes of every element, if they are not in the file; else empty.
  std::string fill = {};
  // Contains the box's bytes, if the file does not store them as they are; else null.
  std::shared_ptr<const Frame> frame = nullptr;

  bool operator==(const FilePiece&) const = default;
};

// These return whether two boxes of a tensor share an element, and how many they share.
bool Overlap(const Box& a, const Box& b);
int64_t SharedElements(const Box& a, const Box& b);
// Returns the first two boxes of a tensor that were found to share an element.
std::optional<std::pair<size_t, size_t>> FindOverlap(const std::vector<const Box*>& boxes);

// Returns how many elements of a box precede these indices in the tensor. The first index may equal
// its extent, after all elements.
int64_t ElementsBefore(const std::vector<int64_t>& indices, const Box& box);

// Reads bytes of a piece, from `offset` on, in the row-major order of its box. `file` is the
// piece's file; it is opened if empty. Throws Error: kWorld, or as ReadFrame() does.
void ReadPart(const FilePiece& piece, InputFile* file, int64_t offset, int64_t bytes, void* out);
// Forgets the bytes that ReadPart() keeps for the next read of this thread.
void ForgetKeptParts();
// Keeps recently used files open, so that many reads of a file open it once. Thread-safe.
class OpenFiles {
 public:
  // Throws Error as InputFile does.
  std::shared_ptr<InputFile> Open(const std::string& path);

 private:
  static constexpr size_t kMost = 64;
  std::mutex mutex_;
  std::list<std::pair<std::string, std::shared_ptr<InputFile>>> files_;  // most recently used first
  std::unordered_map<std::string_view, decltype(files_)::iterator> by_path_;
};

// Throws Error (kWorld): the piece's file has changed.
[[noreturn]] void ThrowChanged(const FilePiece& piece);

// Returns the length of the runs that are contiguous both in the piece and in the box.
int64_t RunLength(const Box& piece, const Box& box);

// Does what ReadPieces() does, for one piece whose bytes `read` provides.
using ReadBytes = std::function<void(int64_t offset, int64_t bytes, void* out)>;
void ReadPiece(const Box& piece, int element_bytes, const Box& box, int64_t first, int64_t count,
               void* out, const ReadBytes& read);

// Does what ReadPiece() does, from memory: `from` has the piece's elements from `from_first` on.
void CopyPiece(const Box& piece, int element_bytes, const uint8_t* from, int64_t from_first,
               const Box& box, int64_t first, int64_t count, uint8_t* out);

// Reads elements first … first + count - 1 of a box, in the box's row-major order, from the pieces
// that contain them. Opens files through `files` if it is not null. Thread-safe.
void ReadPieces(const std::vector<FilePiece>& pieces, int element_bytes, const Box& box,
                int64_t first, int64_t count, void* out, OpenFiles* files = nullptr);

}  // namespace shardinit
