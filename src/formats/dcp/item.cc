#include <utility>

#include "base/crc32.h"
#include "base/error.h"
#include "base/output_file.h"
#include "formats/dcp/checkpoint.h"
#include "formats/dcp/pickle.h"
#include "formats/foreign_names.h"
#include "formats/little_endian.h"

namespace shardinit::dcp {
namespace {

constexpr int64_t kAlignment = 64;
constexpr int64_t kLarge = 1 << 20;  // Padding to a page is noticeable in smaller items.

// Returns data.pkl: a call that makes the tensor from storage 0, the file data/0. A constant's
// storage has one element, and its strides are all 0.
std::string PickleOf(DType dtype, const Shape& shape, bool is_constant) {
  const ForeignNames& names = ForeignNamesOf(dtype);
  const std::string_view storage = names.storage;
  Shape strides(shape.size());
  int64_t count = 1;
  for (size_t d = shape.size(); d-- > 0 && !is_constant; count *= shape[d]) strides[d] = count;
  PickleWriter out;
  out.Global("torch._utils", storage.empty() ? "_rebuild_tensor_v3" : "_rebuild_tensor_v2");
  out.BeginTuple();
  out.BeginTuple();
  out.Text("storage");
  storage.empty() ? out.Global("torch.storage", "UntypedStorage") : out.Global("torch", storage);
  out.Text("0");
  out.Text("cpu");
  out.Int(storage.empty() ? count * InfoOf(dtype).bytes : count);
  out.EndTuple();
  out.PersistentId();
  out.Int(0);  // the tensor's offset in the storage
  out.Ints(shape);
  out.Ints(strides);
  out.Bool(false);  // requires_grad
  out.Global("collections", "OrderedDict");
  out.Ints({});
  out.Call();  // no hooks
  if (storage.empty()) out.Global("torch", names.torch);
  out.EndTuple();
  out.Call();
  return out.Finish();
}

void Put(std::string* out, uint64_t value, size_t bytes) { *out += LittleEndian(value, bytes); }

struct ZipEntry {
  std::string_view name;
  uint32_t crc;
  int64_t size;
  int64_t offset = 0;  // the offset of its header in the archive
};

// Writes the fields that local and central headers share: PKWARE's APPNOTE.TXT, 4.3.7 and 4.3.12,
// from "version needed to extract" to "extra field length". The date is always the first possible
// day.
constexpr int64_t kCrcInCommon = 10;
void PutCommon(std::string* out, const ZipEntry& entry, size_t extra) {
  constexpr uint64_t kVersion = 20, kStored = 0, kDay = 1 << 5 | 1;
  Put(out, kVersion, 2);
  Put(out, 0, 2);
  Put(out, kStored, 2);
  Put(out, 0, 2);
  Put(out, kDay, 2);
  Put(out, entry.crc, 4);
  Put(out, static_cast<uint64_t>(entry.size), 4);
  Put(out, static_cast<uint64_t>(entry.size), 4);
  Put(out, entry.name.size(), 2);
  Put(out, extra, 2);
}

constexpr size_t kLocalHeader = 30, kExtra = 4;  // bytes without names; minimum of an extra field

// Returns the size of the padding from `end` to a multiple of `alignment`. Padding has room for an
// extra field.
size_t PaddingFor(int64_t end, int64_t alignment) {
  auto padding = static_cast<size_t>((alignment - end % alignment) % alignment);
  if (padding > 0 && padding < kExtra) padding += static_cast<size_t>(alignment);
  return padding;
}

int64_t AlignmentOf(int64_t bytes) { return bytes < kLarge ? kAlignment : kDirectUnit; }

// Writes the header of a file whose bytes begin at a multiple of `alignment`; the archive begins at
// `start`. Returns the offset of the CRC in `*out`.
int64_t PutLocalHeader(std::string* out, ZipEntry* entry, int64_t start, int64_t alignment) {
  entry->offset = std::ssize(*out);
  const int64_t end =
      start + entry->offset + static_cast<int64_t>(kLocalHeader + entry->name.size());
  const size_t padding = PaddingFor(end, alignment);
  *out += "PK\3\4";
  const int64_t crc = std::ssize(*out) + kCrcInCommon;
  PutCommon(out, *entry, padding);
  out->append(entry->name);
  if (padding > 0) {
    out->append("FB");  // PyTorch's own padding field
    Put(out, padding - kExtra, 2);
    out->append(padding - kExtra, 'Z');
  }
  return crc;
}

int64_t PutCentralHeader(std::string* out, const ZipEntry& entry) {
  *out += "PK\1\2";
  Put(out, 0, 2);  // version made by
  const int64_t crc = std::ssize(*out) + kCrcInCommon;
  PutCommon(out, entry, 0);
  out->append(2 + 2 + 2 + 4, '\0');  // comment, disk, attributes
  Put(out, static_cast<uint64_t>(entry.offset), 4);
  out->append(entry.name);
  return crc;
}

// Writes the archive's files that precede the elements. Returns their entries.
std::vector<ZipEntry> PutTexts(std::string pickle, int64_t start, std::string* out) {
  const struct {
    std::string_view name;
    std::string text;
  } texts[] = {{"archive/data.pkl", std::move(pickle)},
               {"archive/byteorder", "little"},
               {"archive/version", "3\n"}};
  std::vector<ZipEntry> entries;
  for (const auto& [name, text] : texts) {
    entries.push_back({name, Crc32(0, text), std::ssize(text)});
    PutLocalHeader(out, &entries.back(), start, 1);
    *out += text;
  }
  return entries;
}

// Writes the central directory, which begins at `offset` in the archive. Returns the offset in
// `*out` of the last entry's CRC.
int64_t PutDirectory(const std::vector<ZipEntry>& entries, int64_t offset, std::string* out) {
  const size_t begin = out->size();
  int64_t crc = 0;
  for (const ZipEntry& entry : entries) crc = PutCentralHeader(out, entry);
  const size_t size = out->size() - begin;
  *out += "PK\5\6";
  Put(out, 0, 2 + 2);  // disks
  Put(out, entries.size(), 2);
  Put(out, entries.size(), 2);
  Put(out, size, 4);
  Put(out, static_cast<uint64_t>(offset), 4);
  Put(out, 0, 2);  // comment
  return crc;
}

}  // namespace

Item MakeItem(DType dtype, const Shape& shape, int64_t start) {
  const int64_t bytes = ElementCount(shape) * InfoOf(dtype).bytes;
  Check(bytes <= INT32_MAX, "a tensor too large for a zip file without extensions");
  Item item;
  std::vector<ZipEntry> entries = PutTexts(PickleOf(dtype, shape, false), start, &item.head);
  entries.push_back({"archive/data/0", 0, bytes});
  item.crc_in_head = PutLocalHeader(&item.head, &entries.back(), start, AlignmentOf(bytes));
  item.padding = std::ssize(item.head) - entries.back().offset -
                 static_cast<int64_t>(kLocalHeader + entries.back().name.size());
  item.crc_in_tail = PutDirectory(entries, std::ssize(item.head) + bytes, &item.tail);
  return item;
}

int64_t ItemSizes::HeadOf(DType dtype, const Shape& shape, int64_t start) {
  const int64_t alignment = AlignmentOf(ElementCount(shape) * InfoOf(dtype).bytes);
  const auto [at, is_new] = unpadded_.try_emplace({dtype, shape}, 0);
  if (is_new) {
    const Item item = MakeItem(dtype, shape, 0);
    at->second = std::ssize(item.head) - item.padding;
    tail_ = std::ssize(item.tail);
  }
  return at->second + static_cast<int64_t>(PaddingFor(start + at->second, alignment));
}

std::string MakeZeros(DType dtype, const Shape& shape) {
  std::string out;
  std::vector<ZipEntry> entries = PutTexts(PickleOf(dtype, shape, true), 0, &out);
  const std::string element(static_cast<size_t>(InfoOf(dtype).bytes), '\0');
  entries.push_back({"archive/data/0", Crc32(0, element), std::ssize(element)});
  PutLocalHeader(&out, &entries.back(), 0, kAlignment);
  out += element;
  PutDirectory(entries, std::ssize(out), &out);
  return out;
}

std::string MakeArchive(std::string pickle) {
  std::string out;
  const std::vector<ZipEntry> entries = PutTexts(std::move(pickle), 0, &out);
  PutDirectory(entries, std::ssize(out), &out);
  return out;
}

}  // namespace shardinit::dcp
