// Defines the interface that reads and writes checkpoints and exports, in a folder on disk or in a
// bucket.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/folder.h"
#include "base/output_file.h"
#include "place/file_outline.h"

namespace shardinit {

// A file that is open for reading. Reads are not affected if the file is renamed or replaced.
// Thread-safe.
class PlaceFile {
 public:
  explicit PlaceFile(int64_t size) : size_(size) {}
  virtual ~PlaceFile() = default;

  int64_t size() const { return size_; }
  // Returns the value of this name in FileOutline::metadata, or an empty string.
  virtual std::string Metadata(const std::string& /*name*/) const { return {}; }
  // Calls `visit` with `bytes` bytes from `offset` on, in pieces and in order. A remote place
  // fetches up to `at_once` pieces in parallel and keeps them in memory. Throws Error (kWorld) if
  // the file is too short or has changed.
  virtual void Read(int64_t offset, int64_t bytes, int at_once,
                    const std::function<void(std::string_view piece)>& visit) const = 0;

 private:
  const int64_t size_;
};

// A file that is being written. It is invisible until it is completed. If it never is, nothing is
// left.
class NewPlaceFile : public Sink {
 public:
  // Gives the file its name, once all boxes are written. When everything but the name exists, first
  // calls `before_name`, which may throw. Returns false if another writer may have created the file
  // or ended this one. The caller must then check the existing file.
  virtual bool Complete(const std::function<void()>& before_name = {}) = 0;
};

// Writes a text in pieces.
using TextWriter = std::function<void(const std::function<void(std::string_view piece)>& append)>;

// Differences between kinds of places that callers must know.
struct PlaceTraits {
  // Each call is a request to a server. Callers make calls in parallel, and read files sequentially
  // in large pieces.
  bool is_remote;
  // List() returns every existing file. Some stores list new files with a delay.
  bool lists_all;
  // shardinit may replace and remove files, which it never does in a bucket.
  bool removes;
};

struct PlaceEntry {
  std::string_view name;  // relative to the place, such as `ranks/rank-00000.h5`
  NameKind kind;
  int64_t size = -1;  // bytes of a file; -1 if the listing has no sizes
};

// Selects how List() continues: with the next name, inside this folder, or not at all.
enum class Next { kName, kInside, kEnd };

// Names are relative to the place. Links are never followed. Thread-safe. Throws Error (kWorld) if
// the disk or the store fails.
class Place {
 public:
  // Returns the place at a path or URL. The folder need not exist.
  static std::unique_ptr<Place> At(const std::string& path);
  // Returns the traits of that place, without accessing it.
  static const PlaceTraits& TraitsAt(const std::string& path);

  Place(std::string path, PlaceTraits traits) : path_(std::move(path)), traits_(traits) {}
  virtual ~Place() = default;

  const std::string& path() const { return path_; }
  const PlaceTraits& traits() const { return traits_; }
  std::string PathOf(std::string_view name) const;  // for messages

  // Throws Error (kUsage) if the place is not a folder, or not of the kind `wanted`, such as
  // `a checkpoint`. A bucket cannot know and never throws.
  virtual void RequireFolder(std::string_view wanted) const = 0;
  // Opens a file. Returns an empty string, or the problem, such as `is missing`.
  virtual std::string_view Open(const std::string& name,
                                std::unique_ptr<PlaceFile>* file) const = 0;
  // Reads a file of at most `limit` bytes. Returns the same as Open(). For a larger file, a folder
  // returns kIsTooLarge, and a bucket throws Error (kWorld).
  virtual std::string_view Read(const std::string& name, size_t limit, std::string* text) const = 0;
  virtual bool Exists(const std::string& name) const = 0;
  virtual int64_t SizeOf(const std::string& name) const = 0;  // -1: no such file
  // Calls `visit` with each name in `folder`, or in the place if `folder` is empty, in any order. A
  // missing folder is empty.
  virtual void List(const std::string& folder,
                    const std::function<Next(const PlaceEntry& entry)>& visit) const = 0;

  // Begins a file and creates its missing folders. `crcs` are the CRCs of its boxes: each must be
  // set when the last bytes of its box are written. The place and `crcs` must outlive the file. If
  // traits().removes, replaces a file of the same name.
  virtual std::unique_ptr<NewPlaceFile> Begin(
      FileOutline outline, const std::vector<uint32_t>* crcs = nullptr) const = 0;
  // Creates a file. Returns false, with nothing done, if the name exists.
  virtual bool PutNew(const std::string& name, std::string_view text) const = 0;
  // Calls `before_name`, then creates or replaces a file. A place that does not replace files
  // throws Error (kConflict) if the file exists with another text. Before Sync() of its folder, a
  // power loss may lose the name.
  virtual void Put(const std::string& name, const TextWriter& text,
                   const std::function<void()>& before_name = {}) const = 0;
  // Removes a file, if it exists. Requires traits().removes.
  virtual void Remove(const std::string& name) const = 0;
  // Syncs the names in a folder to disk.
  virtual void Sync(const std::string& folder) const = 0;

 private:
  const std::string path_;
  const PlaceTraits traits_;
};

// Splits `jobs` among `files` files that are read in parallel, each by `in_file` threads or
// requests.
struct Readers {
  int files, in_file;
};
Readers SplitReaders(const Place& place, int64_t files, int jobs);

}  // namespace shardinit
