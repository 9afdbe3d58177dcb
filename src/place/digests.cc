#include "place/digests.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/parallel.h"

namespace shardinit {
namespace {

// Hashes sorted, disjoint parts and the rest in one sequential read.
FileDigests ReadOnce(const PlaceFile& file, const std::vector<FilePart>& parts,
                     const std::vector<size_t>& order, int at_once,
                     const std::function<void(int64_t bytes)>& progress) {
  FileDigests digests{std::vector<Digest>(parts.size()), {}};
  Sha256 rest, part;
  int64_t at = 0;
  size_t next = 0;  // index in `order`
  const auto end_of = [&] { return parts[order[next]].offset + parts[order[next]].bytes; };
  // Finishes the parts that end at `at`.
  const auto settle = [&] {
    for (; next < order.size() && at == end_of(); ++next) {
      digests.parts[order[next]] = std::exchange(part, Sha256()).Finish();
    }
  };
  settle();
  file.Read(0, file.size(), at_once, [&](std::string_view piece) {
    while (!piece.empty()) {
      const bool is_in_part = next < order.size() && at >= parts[order[next]].offset;
      const int64_t end = next == order.size() ? file.size()
                          : is_in_part         ? end_of()
                                               : parts[order[next]].offset;
      const auto bytes = static_cast<size_t>(std::min(end - at, std::ssize(piece)));
      (is_in_part ? part : rest).Update(piece.substr(0, bytes));
      at += static_cast<int64_t>(bytes);
      piece.remove_prefix(bytes);
      if (is_in_part && progress) progress(static_cast<int64_t>(bytes));
      settle();
    }
  });
  digests.rest = rest.Finish();
  return digests;
}

}  // namespace

FileDigests HashFile(const Place& place, const PlaceFile& file, const std::vector<FilePart>& parts,
                     int in_file, const std::function<void(int64_t bytes)>& progress) {
  std::vector<size_t> order(parts.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::sort(order, [&](size_t a, size_t b) {
    return std::pair(parts[a].offset, parts[a].bytes) < std::pair(parts[b].offset, parts[b].bytes);
  });
  bool overlap = false;
  for (size_t i = 1; i < order.size(); ++i) {
    const FilePart& before = parts[order[i - 1]];
    overlap = overlap || parts[order[i]].offset < before.offset + before.bytes;
  }
  if (place.traits().is_remote && !overlap) return ReadOnce(file, parts, order, in_file, progress);
  FileDigests digests{std::vector<Digest>(parts.size()), {}};
  Sha256 rest;
  int64_t at = 0;
  const auto hash_until = [&](int64_t end) {
    file.Read(at, std::max<int64_t>(0, end - at), 1,
              [&](std::string_view piece) { rest.Update(piece); });
  };
  for (const size_t i : order) {
    hash_until(parts[i].offset);
    at = parts[i].offset + parts[i].bytes;
  }
  hash_until(file.size());
  digests.rest = rest.Finish();
  ParallelFor(std::ssize(parts), in_file, [&](int64_t i) {
    const FilePart& part = parts[static_cast<size_t>(i)];
    Sha256 hash;
    file.Read(part.offset, part.bytes, 1, [&](std::string_view piece) {
      hash.Update(piece);
      if (progress) progress(std::ssize(piece));
    });
    digests.parts[static_cast<size_t>(i)] = hash.Finish();
  });
  return digests;
}

}  // namespace shardinit
