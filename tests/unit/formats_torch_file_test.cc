// Tests reading `torch.save` files byte by byte: damaged or contradictory archives are refused.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "formats/format.h"
#include "formats/little_endian.h"

namespace shardinit {
namespace {

std::string Natural(uint64_t value, size_t bytes) { return LittleEndian(value, bytes); }
std::string Zeros(size_t bytes) { return std::string(bytes, '\0'); }
std::string PickledText(const std::string& text) { return "X" + Natural(text.size(), 4) + text; }

// The pickled form of a tensor.
struct Pickled {
  std::string name = "a", storage = "0", type = "FloatStorage";
  uint64_t elements = 3, first = 0, extent = 3, stride = 1;

  std::string Entry() const {
    return PickledText(name) + "ctorch._utils\n_rebuild_tensor_v2\n((" + PickledText("storage") +
           "ctorch\n" + type + "\n" + PickledText(storage) + PickledText("cpu") + "J" +
           Natural(elements, 4) + "tQJ" + Natural(first, 4) + "J" + Natural(extent, 4) + "\x85J" +
           Natural(stride, 4) + "\x85\x89}tR";
  }
};

std::string PickleOf(const std::vector<Pickled>& tensors) {
  std::string pickle = "\x80\x02}(";
  for (const Pickled& tensor : tensors) pickle += tensor.Entry();
  return pickle + "u.";
}

// A file in an archive, with its entries in its header and in the directory.
struct ZipMember {
  std::string name, data;
  uint64_t flags = 0, method = 0, shift = 0;
  std::string local_name = name, extra = {}, directory_extra = {};
  uint64_t local_size = data.size(), size = data.size(), packed = data.size();
  std::string behind = {};  // between the data and the next file
};

struct Zip {
  std::vector<ZipMember> members;
  std::string comment = {}, behind = {};
  bool is_large = false;   // uses ZIP64
  int64_t more_files = 0;  // added to the count in the end record
  uint64_t at_shift = 0;   // added to the place of the directory

  std::string Make() const {
    std::string out, directory;
    for (const ZipMember& m : members) {
      const uint64_t header = out.size() + m.shift;
      const std::string common = Natural(m.flags, 2) + Natural(m.method, 2) + Zeros(8);
      out += "PK\3\4" + Natural(20, 2) + common + Natural(m.local_size, 4) +
             Natural(m.local_size, 4) + Natural(m.local_name.size(), 2) +
             Natural(m.extra.size(), 2) + m.local_name + m.extra + m.data + m.behind;
      directory += "PK\1\2" + Natural(20, 2) + Natural(20, 2) + common + Natural(m.packed, 4) +
                   Natural(m.size, 4) + Natural(m.name.size(), 2) +
                   Natural(m.directory_extra.size(), 2) + Zeros(10) + Natural(header, 4) + m.name +
                   m.directory_extra;
    }
    const uint64_t at = out.size() + at_shift, files = members.size() + more_files;
    out += directory;
    if (is_large) {
      const uint64_t end = out.size();
      out += "PK\6\6" + Natural(44, 8) + Natural(45, 4) + Natural(0, 8) + Natural(files, 8) +
             Natural(files, 8) + Natural(directory.size(), 8) + Natural(at, 8);
      out += "PK\6\7" + Natural(0, 4) + Natural(end, 8) + Natural(1, 4);
    }
    const uint64_t count = is_large ? 0xffff : files;
    return out + "PK\5\6" + Natural(0, 4) + Natural(count, 2) + Natural(count, 2) +
           Natural(is_large ? 0xffffffff : directory.size(), 4) +
           Natural(is_large ? 0xffffffff : at, 4) + Natural(comment.size(), 2) + comment + behind;
  }
};

// Returns a tensor of three floats, as PyTorch 2 writes it.
Zip GoodZip() {
  return {{{"archive/data.pkl", PickleOf({Pickled()})},
           {"archive/byteorder", "little"},
           {"archive/data/0", std::string("aaaabbbbcccc")},
           {"archive/version", "3\n"}}};
}

Contents ReadTorch(const std::string& bytes, const std::string& name = "in.pt") {
  const std::string path = (std::filesystem::current_path() / name).string();
  std::ofstream(path, std::ios::binary) << bytes;
  return kTorchReader.read_file(path, {});
}

// Returns why the bytes are refused, or an empty text if they are accepted.
std::string TorchRefusal(const std::string& bytes) try {
  ReadTorch(bytes);
  return "";
} catch (const Error& e) {
  EXPECT_EQ(e.code(), ExitCode::kRefused) << e.what();
  return e.what();
}

// Reads the elements at the places that the reader gives.
std::string TorchData(const std::string& bytes, const std::string& name = "a") {
  std::string data;
  const Contents contents = ReadTorch(bytes);
  for (const FilePiece& piece : contents.tensors.at(name).pieces) {
    data += bytes.substr(static_cast<size_t>(piece.offset),
                         static_cast<size_t>(4 * ElementCount(piece.box.shape)));
  }
  return data;
}

std::string ZipWith(const std::function<void(Zip& zip)>& change) {
  Zip zip = GoodZip();
  change(zip);
  return zip.Make();
}

std::string ZipOf(const std::string& pickle) {
  return ZipWith([&](Zip& zip) { zip.members[0] = {"archive/data.pkl", pickle}; });
}

TEST(TorchFile, AcceptsHarmlessZipVariants) {
  EXPECT_EQ(TorchData(GoodZip().Make()), "aaaabbbbcccc");
  const std::vector<std::pair<const char*, std::function<void(Zip & zip)>>> kHarmless = {
      {"zip64", [](Zip& z) { z.is_large = true; }},
      {"comment", [](Zip& z) { z.comment = "made by hand"; }},
      {"padding before data", [](Zip& z) { z.members[2].extra = std::string(37, 'F'); }},
      {"data descriptor",
       [](Zip& z) {
         ZipMember& data = z.members[2];
         data.flags = 8, data.local_size = 0;
         data.behind = "PK\7\x8" + Natural(0, 4) + Natural(12, 4) + Natural(12, 4);
       }},
      {"sizes of zip64",
       [](Zip& z) {
         ZipMember& data = z.members[2];
         data.size = data.packed = data.local_size = 0xffffffff;
         data.directory_extra = Natural(1, 2) + Natural(16, 2) + Natural(12, 8) + Natural(12, 8);
       }},
      {"another name", [](Zip& z) {
         for (ZipMember& m : z.members) m.name = m.local_name = "x" + m.name;
       }}};
  for (const auto& [what, change] : kHarmless)
    EXPECT_EQ(TorchData(ZipWith(change)), "aaaabbbbcccc") << what;
}

TEST(TorchFile, RejectsInconsistentArchives) {
  const std::string directory = "zip directory", overlap = "overlap the next data";
  const std::vector<std::pair<std::string, std::function<void(Zip & zip)>>> kLies = {
      {"a file's header differ", [](Zip& z) { z.members[2].local_name = "archive/data/1"; }},
      {"a file's header differ", [](Zip& z) { z.members[2].local_size = 8; }},
      {"instead of 12",
       [](Zip& z) { z.members[2].size = z.members[2].packed = z.members[2].local_size = 8; }},
      {overlap,
       [](Zip& z) { z.members[2].size = z.members[2].packed = z.members[2].local_size = 400; }},
      {overlap,
       [](Zip& z) {
         z.members[2].size = z.members[2].packed = z.members[2].local_size = 0xfffffffe;
       }},
      {overlap,
       [](Zip& z) {
         ZipMember& data = z.members[2];
         data.size = data.packed = data.local_size = 0xffffffff;
         data.directory_extra =
             Natural(1, 2) + Natural(16, 2) + Natural(uint64_t(-1), 8) + Natural(uint64_t(-1), 8);
       }},
      // A truncated field of ZIP64.
      {overlap,
       [](Zip& z) {
         z.members[2].size = z.members[2].packed = z.members[2].local_size = 0xffffffff;
         z.members[2].directory_extra = Natural(1, 2) + Natural(16, 2) + "abc";
       }},
      {directory, [](Zip& z) { z.members[2].packed = 8; }},
      {directory, [](Zip& z) { z.members[2].shift = 4; }},
      {"overlap", [](Zip& z) { z.members[2].shift = 100000; }},
      {directory, [](Zip& z) { z.members[1].shift = uint64_t(-10); }},
      // Two files with the same bytes.
      {"overlap",
       [](Zip& z) {
         ZipMember again = z.members[3];
         again.shift = -(again.data.size() + again.name.size() + 30);
         z.members.push_back(again);
         z.members.back().name = "archive/other";
       }},
      {"twice", [](Zip& z) { z.members.push_back(z.members[2]); }},
      {"encrypted", [](Zip& z) { z.members[2].flags = 1; }},
      {"compressed", [](Zip& z) { z.members[2].method = 8; }},
      {"compressed", [](Zip& z) { z.members[0].method = 8; }},
      {"big-endian", [](Zip& z) { z.members[1].data = "bigger"; }},
      {"claims 5 files, but lists 4", [](Zip& z) { z.more_files = 1; }},
      {"claims 3 files, but lists 4",
       [](Zip& z) {
         z.more_files = -1;
         z.is_large = true;
       }},
      {directory, [](Zip& z) { z.at_shift = 1; }},
      {directory, [](Zip& z) { z.at_shift = 1, z.is_large = true; }},
      {directory, [](Zip& z) { z.at_shift = uint64_t{1} << 40, z.is_large = true; }},
      {"bytes after", [](Zip& z) { z.behind = "x"; }},
      {"bytes after",
       [](Zip& z) {
         z.comment = "PK\5\6" + std::string(18, '\0');
         z.comment += "x";
       }},
      {"no data.pkl", [](Zip& z) { z.members.erase(z.members.begin()); }},
      // A pickle elsewhere in the archive does not count.
      {"no data.pkl",
       [](Zip& z) { z.members[0].name = z.members[0].local_name = "archive/x/data.pkl"; }},
      {"no data.pkl",
       [](Zip& z) { z.members[0].name = z.members[0].local_name = "../data.pkl/x"; }},
      {"no storage `0`",
       [](Zip& z) { z.members[2].name = z.members[2].local_name = "other/data/0"; }},
      {"TorchScript",
       [](Zip& z) { z.members[3].name = z.members[3].local_name = "archive/constants.pkl"; }},
      {"not a zip archive",
       [](Zip& z) {
         z.members.clear();
         z.behind = std::string(70000, 'x');
       }},
  };
  int number = 0;
  for (const auto& [why, change] : kLies) {
    std::string bytes = ZipWith(change);
    if (!bytes.starts_with("PK\3\4")) bytes = "PK\3\4" + bytes;
    EXPECT_NE(TorchRefusal(bytes).find(why), std::string::npos)
        << "lie " << number << ": " << why << " is not in: " << TorchRefusal(bytes);
    ++number;
  }
}

TEST(TorchFile, RejectsInconsistentPickles) {
  const std::vector<std::pair<std::string, Pickled>> kLies = {
      {"has 12 bytes instead of 16", {.elements = 4}},
      {"has 12 bytes instead of 24", {.type = "DoubleStorage"}},
      {"fewer elements than its shape", {.extent = 4}},
      {"fewer elements than its shape", {.first = 1}},
      {"fewer elements than its shape", {.stride = 2}},
      {"a whole number from 0", {.first = 0xffffffff}},
      {"a whole number from 0", {.extent = 0xffffffff}},
      {"no storage `../0`", {.storage = "../0"}},
  };
  for (const auto& [why, tensor] : kLies) {
    const std::string bytes = ZipOf(PickleOf({tensor}));
    EXPECT_NE(TorchRefusal(bytes).find(why), std::string::npos)
        << why << " is not in: " << TorchRefusal(bytes);
  }
  const std::vector<std::pair<std::string, std::string>> kPickles = {
      {"twice", PickleOf({Pickled(), Pickled()})},
      {"a line has no end", PickleOf({Pickled()}).substr(0, 60)},
      {"too early", ""},
      {"code would have to run",
       "\x80\x02"
       "cos\nsystem\n" +
           PickledText("true") + "\x85R."},
      {"opcode", "\x80\x02\xff."},
      {"no model", "\x80\x02}."},
  };
  for (const auto& [why, pickle] : kPickles) {
    const std::string bytes = ZipOf(pickle);
    EXPECT_NE(TorchRefusal(bytes).find(why), std::string::npos)
        << why << " is not in: " << TorchRefusal(bytes);
  }
}

// Any truncated or changed file is refused, or all that is read is within the file.
TEST(TorchFile, SurvivesTruncatedAndChangedBytes) {
  const std::string good = GoodZip().Make(), large = ZipWith([](Zip&z) { z.is_large = true; });
  for (const std::string& bytes : {good, large}) {
    for (size_t size = 0; size < bytes.size(); ++size) {
      EXPECT_NE(TorchRefusal(bytes.substr(0, size)), "") << size;
    }
    for (size_t at = 0; at < bytes.size(); ++at) {
      for (const char byte : {'\0', '\1', '\x7f', '\xff'}) {
        std::string changed = bytes;
        changed[at] = byte;
        try {
          const Contents contents = ReadTorch(changed);
          for (const auto& [name, holding] : contents.tensors) {
            for (const FilePiece& piece : holding.pieces) {
              EXPECT_GE(piece.offset, 0) << at;
              EXPECT_LE(piece.offset + 4 * ElementCount(piece.box.shape), std::ssize(bytes)) << at;
            }
          }
        } catch (const Error& e) {
          EXPECT_EQ(e.code(), ExitCode::kRefused) << at << ": " << e.what();
        }
      }
    }
  }
}

}  // namespace
}  // namespace shardinit
