// Reads a tensor that lies in pieces in files as if it were one array.
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
  // Loops over the box's bytes, whose `from` counts bytes of the file from `offset`. Empty: the
  // bytes follow one another in the file.
  std::vector<Piece::Loop> loops = {};
  // The bytes of every element, which are not in the file. Empty: the file has the elements.
  std::string fill = {};
  // Has the box's bytes, which then are not in the file as they are. Null: the file has them.
  std::shared_ptr<const Frame> frame = nullptr;

  bool operator==(const FilePiece&) const = default;
};

// Overlap() says whether two boxes of a tensor share an element, SharedElements() how many they
// share.
bool Overlap(const Box& a, const Box& b);
int64_t SharedElements(const Box& a, const Box& b);
// Returns the first two found among boxes of one tensor that share an element.
std::optional<std::pair<size_t, size_t>> FindOverlap(const std::vector<const Box*>& boxes);

// Counts the elements of a box before the place with these indices in its tensor. The first index
// may equal its extent, behind all elements.
int64_t ElementsBefore(const std::vector<int64_t>& indices, const Box& box);

// Reads bytes of a piece, from `offset` in it on, in the row-major order of its box. `file` is its
// file; if it is none, it is opened. Throws Error (kWorld).
void ReadPart(const FilePiece& piece, InputFile* file, int64_t offset, int64_t bytes, void* out);
// Opens files that are read in many parts once, and not for each part. It keeps those that were
// asked for last, and is safe to use from several threads.
class OpenFiles {
 public:
  // Throws Error as InputFile does.
  std::shared_ptr<InputFile> Open(const std::string& path);

 private:
  static constexpr size_t kMost = 64;
  std::mutex mutex_;
  std::list<std::pair<std::string, std::shared_ptr<InputFile>>> files_;  // the last one first
  std::unordered_map<std::string_view, decltype(files_)::iterator> by_path_;
};

// Throws Error (kWorld), which says that the piece's file has changed.
[[noreturn]] void ThrowChanged(const FilePiece& piece);

// Returns the most elements that follow one another both in the piece and in the box.
int64_t RunLength(const Box& piece, const Box& box);

// Does what ReadPieces() does, from a single piece whose bytes `read` gives.
using ReadBytes = std::function<void(int64_t offset, int64_t bytes, void* out)>;
void ReadPiece(const Box& piece, int element_bytes, const Box& box, int64_t first, int64_t count,
               void* out, const ReadBytes& read);

// Does what ReadPiece() does, from memory, which has the piece's elements from `from_first` on.
void CopyPiece(const Box& piece, int element_bytes, const uint8_t* from, int64_t from_first,
               const Box& box, int64_t first, int64_t count, uint8_t* out);

// Reads elements first … first + count - 1 of a box, in the box's row-major order, from the pieces
// that have them. It is safe to use from several threads.
void ReadPieces(const std::vector<FilePiece>& pieces, int element_bytes, const Box& box,
                int64_t first, int64_t count, void* out);

}  // namespace shardinit
