// Runs the same tests on all places: a folder, a bucket on a server, and one in memory.
#include "place/place.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/file.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/manifest.h"
#include "checkpoint/verify.h"
#include "checkpoint/write.h"
#include "place/digests.h"
#include "place/file_outline.h"
#include "place/folder_place.h"
#include "place/shared_files.h"
#include "support/environment.h"
#include "support/hdf5_once.h"
#include "support/http_server.h"
#include "support/memory_place.h"
#include "support/random_plan.h"

namespace shardinit {
namespace {

using Tree = std::map<std::string, std::string>;

class EveryPlace : public InEnvironment, public testing::WithParamInterface<const char*> {
 protected:
  // Returns a place of the tested kind, with exactly these files.
  std::unique_ptr<Place> Make(const Tree& files) {
    if (is("memory")) return std::make_unique<MemoryPlace>(files);
    if (is("bucket")) {
      kept.objects.clear();
      for (const auto& [name, bytes] : files) kept.Put("a/" + name, bytes);
      for (const char* other : {"b", "aa/x", "a.x", "A/x"}) kept.Put(other, "of somebody else");
      PointTo(server);
      return Place::At("s3://bucket/a");
    }
    std::filesystem::remove_all("a");
    for (const auto& [name, bytes] : files) {
      std::filesystem::create_directories(std::filesystem::path("a/" + name).parent_path());
      std::ofstream("a/" + name, std::ios::binary) << bytes;
    }
    return Place::At("a");
  }
  bool is(std::string_view kind) const { return kind == GetParam(); }

  MemoryStore kept;
  HttpServer server{[this](const Asked& asked) { return kept(asked); }};
};

INSTANTIATE_TEST_SUITE_P(All, EveryPlace, testing::Values("folder", "bucket", "memory"),
                         [](const auto& of) { return of.param; });

std::string ReadAll(const PlaceFile& file, int64_t offset, int64_t bytes, int at_once) {
  std::string read;
  file.Read(offset, bytes, at_once, [&](std::string_view piece) { read += piece; });
  return read;
}

TEST_P(EveryPlace, ReadsFilesAndSizes) {
  const Tree files = {{"x", "some bytes"}, {"d/y", ""}, {"d/e/f/z", "deep"}};
  const auto place = Make(files);
  for (const auto& [name, bytes] : files) {
    std::string text;
    EXPECT_EQ(place->Read(name, 1000, &text), "") << name;
    EXPECT_EQ(text, bytes);
    EXPECT_TRUE(place->Exists(name));
    EXPECT_EQ(place->SizeOf(name), std::ssize(bytes));
    std::unique_ptr<PlaceFile> file;
    ASSERT_EQ(place->Open(name, &file), "") << name;
    EXPECT_EQ(file->size(), std::ssize(bytes));
    for (int64_t from = 0; from <= file->size(); ++from) {
      for (int64_t count = 0; count <= file->size() - from; ++count) {
        EXPECT_EQ(ReadAll(*file, from, count, 2),
                  bytes.substr(static_cast<size_t>(from), static_cast<size_t>(count)));
      }
    }
    EXPECT_THROW(ReadAll(*file, 0, file->size() + 1, 1), Error);
  }
  for (const char* name : {"y", "d/x", "none/x", "x/y", "d/e/none"}) {
    std::string text = "as before";
    std::unique_ptr<PlaceFile> file;
    EXPECT_EQ(place->Read(name, 1000, &text), kIsMissing) << name;
    EXPECT_EQ(place->Open(name, &file), kIsMissing) << name;
    EXPECT_EQ(place->SizeOf(name), -1) << name;
    EXPECT_FALSE(place->Exists(name)) << name;
    EXPECT_EQ(text, "as before");
  }
  EXPECT_EQ(place->SizeOf("d"), -1);
  EXPECT_EQ(place->PathOf("d/x"), place->path() + "/d/x");
}

TEST_P(EveryPlace, EmptyPlaceHasNoFiles) {
  const auto place = Make({});
  std::string text;
  EXPECT_EQ(place->Read("x", 1000, &text), kIsMissing);
  EXPECT_FALSE(place->Exists("x"));
  for (const char* folder : {"", "d", "d/e"}) {
    place->List(folder, [&](const PlaceEntry&) {
      ADD_FAILURE();
      return Next::kInside;
    });
  }
}

// Lists names, entering the folders that `enters` accepts. Folders end in a slash.
std::multiset<std::string> NamesListed(const Place& place, const std::string& folder,
                                       const std::function<bool(std::string_view)>& enters) {
  std::multiset<std::string> names;
  place.List(folder, [&](const PlaceEntry& entry) {
    const bool is_folder = entry.kind == NameKind::kFolder;
    names.insert(std::string(entry.name) + (is_folder ? "/" : ""));
    if (entry.size >= 0) {
      EXPECT_EQ(entry.size, place.SizeOf(std::string(entry.name)));
    }
    EXPECT_TRUE(is_folder || entry.kind == NameKind::kFile);
    return is_folder && enters(entry.name) ? Next::kInside : Next::kName;
  });
  return names;
}

// Random trees have names that share prefixes and sort on both sides of `/`.
TEST_P(EveryPlace, ListsNamesInTheSameOrder) {
  std::mt19937 random(7);
  const auto pick = [&](int64_t count) {
    return std::uniform_int_distribution<int64_t>(0, count - 1)(random);
  };
  constexpr std::string_view kParts[] = {"a", "a-", "a.b", "a0", "b", "ab", "A"};
  for (int turn = 0; turn < 40; ++turn) {
    Tree files;
    std::set<std::string> folders;
    for (int64_t count = pick(12); count > 0; --count) {
      std::string name;
      std::vector<std::string> above;
      for (int64_t depth = pick(3); depth >= 0; --depth) {
        name += kParts[pick(std::ssize(kParts))];
        if (depth > 0) above.push_back(name), name += '/';
      }
      // A file and a folder cannot have the same name.
      const bool is_taken =
          folders.contains(name) || files.contains(name) ||
          std::ranges::any_of(above, [&](const auto& folder) { return files.contains(folder); });
      if (is_taken) continue;
      files[name] = std::string(static_cast<size_t>(pick(5)), 'x');
      folders.insert(above.begin(), above.end());
    }
    const auto place = Make(files);
    const int64_t left_out = pick(3);
    const auto enters = [&](std::string_view folder) {
      return left_out == 0 || std::ssize(folder) % 3 != left_out;
    };
    for (const std::string& begin : {std::string(), std::string("a/"), std::string("a/a/")}) {
      std::multiset<std::string> expected;
      const auto is_reached = [&](std::string_view name) {
        if (!name.starts_with(begin)) return false;
        for (size_t at = begin.size(); (at = name.find('/', at)) != name.npos; ++at) {
          if (!enters(name.substr(0, at))) return false;
        }
        return true;
      };
      for (const auto& [name, bytes] : files) {
        if (is_reached(name)) expected.insert(name);
      }
      for (const std::string& folder : folders) {
        if (is_reached(folder)) expected.insert(folder + "/");
      }
      const std::string folder = begin.substr(0, begin.empty() ? 0 : begin.size() - 1);
      EXPECT_EQ(NamesListed(*place, folder, enters), expected) << turn << " " << begin;
    }
    size_t seen = 0;
    place->List("", [&](const PlaceEntry&) { return ++seen == 2 ? Next::kEnd : Next::kInside; });
    EXPECT_LE(seen, 2u);
  }
}

TEST_P(EveryPlace, HashesPartsOfFiles) {
  std::mt19937 random(8);
  std::string bytes(300'000, '\0');
  for (char& byte : bytes) byte = static_cast<char>(random());
  const auto place = Make({{"d/f", bytes}});
  std::unique_ptr<PlaceFile> file;
  ASSERT_EQ(place->Open("d/f", &file), "");
  for (int turn = 0; turn < 30; ++turn) {
    std::set<int64_t> cuts;
    while (std::ssize(cuts) < 2 * (turn % 7)) {
      cuts.insert(static_cast<int64_t>(random() % (bytes.size() + 1)));
    }
    std::vector<FilePart> parts;
    for (auto at = cuts.begin(); at != cuts.end(); std::advance(at, 2)) {
      parts.push_back({*at, *std::next(at) - *at});
      if (random() % 4 == 0) parts.push_back({*std::next(at), 0});
    }
    if (turn % 5 == 4) parts.push_back({100, 200'000});  // It may overlap others.
    std::string rest;
    int64_t from = 0, in_parts = 0;
    std::vector<FilePart> in_order = parts;
    std::ranges::sort(in_order, {},
                      [](const FilePart& part) { return std::pair(part.offset, part.bytes); });
    for (const FilePart& part : in_order) {
      if (part.offset > from) rest += bytes.substr(from, part.offset - from);
      from = part.offset + part.bytes;
    }
    if (from < std::ssize(bytes)) rest += bytes.substr(from);
    std::ranges::shuffle(parts, random);
    std::mutex mutex;
    int64_t told = 0;
    const FileDigests digests = HashFile(*place, *file, parts, 1 + turn % 4, [&](int64_t count) {
      const std::lock_guard lock(mutex);
      told += count;
    });
    for (size_t i = 0; i < parts.size(); ++i) {
      EXPECT_EQ(digests.parts[i], Sha256Of(bytes.substr(parts[i].offset, parts[i].bytes)));
      in_parts += parts[i].bytes;
    }
    EXPECT_EQ(digests.rest, Sha256Of(rest));
    EXPECT_EQ(told, in_parts);
  }
}

// A file of random texts and boxes; its texts contain the boxes' CRCs if `has_crcs`.
struct RandomFile {
  RandomFile(std::mt19937& random, bool has_crcs) {
    outline = {.path = "d/e/new", .boxes = {}, .has_crcs = has_crcs};
    FileTexts known;
    const auto add_text = [&](size_t size) {
      known.texts.push_back({std::ssize(bytes), std::string(size, static_cast<char>(random()))});
      bytes += known.texts.back().bytes;
    };
    add_text(1 + random() % 40);
    for (size_t box = 0; box < random() % 6; ++box) {
      outline.boxes.push_back({std::ssize(bytes), static_cast<int64_t>(1 + random() % 70'000)});
      for (int64_t i = 0; i < outline.boxes.back().bytes; ++i) {
        bytes += static_cast<char>(random());
      }
      crcs.push_back(static_cast<uint32_t>(random()));
      add_text(5 + random() % 9);
      if (has_crcs) {
        const int64_t at = known.texts.back().offset + 1;
        known.crcs.push_back({at, box});
        CopyCrc(known.crcs.back(), crcs.back(), 0, std::ssize(bytes), bytes.data());
      }
      bytes.append(random() % 30, '\0');
    }
    outline.size = std::ssize(bytes);
    outline.texts = [known] { return std::make_shared<FileTexts>(known); };
  }

  // Writes the boxes in pieces and in any order.
  void WriteTo(const NewPlaceFile& file, std::mt19937& random) const {
    std::vector<FilePart> order = outline.boxes;
    std::ranges::shuffle(order, random);
    for (const FilePart& box : order) {
      for (int64_t at = 0; at < box.bytes;) {
        const int64_t piece =
            std::min<int64_t>(box.bytes - at, 1 + static_cast<int64_t>(random() % 50'000));
        file.Write(bytes.data() + box.offset + at, piece, box.offset + at);
        at += piece;
      }
    }
  }

  FileOutline outline;
  std::vector<uint32_t> crcs;
  std::string bytes;
};

TEST_P(EveryPlace, FilesGetTheirNameWhenComplete) {
  std::mt19937 random(10);
  for (int turn = 0; turn < 40; ++turn) {
    const RandomFile wanted(random, turn % 2 == 0);
    const Tree files = {{"d/x", "x"}};
    const auto place = Make(files);
    const auto is_absent = [&] { return place->SizeOf(wanted.outline.path) == -1; };
    {
      const auto given_up = place->Begin(wanted.outline, &wanted.crcs);
      wanted.WriteTo(*given_up, random);
      EXPECT_TRUE(is_absent());
    }
    const auto throwing = place->Begin(wanted.outline, &wanted.crcs);
    wanted.WriteTo(*throwing, random);
    EXPECT_THROW(throwing->Complete([] { throw Conflict("no"); }), Error);
    EXPECT_TRUE(is_absent());
    const auto file = place->Begin(wanted.outline, &wanted.crcs);
    wanted.WriteTo(*file, random);
    bool was_absent = false;
    EXPECT_TRUE(file->Complete([&] { was_absent = is_absent(); }));
    EXPECT_TRUE(was_absent);
    std::string text;
    EXPECT_EQ(place->Read(wanted.outline.path, 1 << 20, &text), "");
    EXPECT_TRUE(text == wanted.bytes) << turn;
    // A second writer replaces the file, or finds the name taken.
    const auto again = place->Begin(wanted.outline, &wanted.crcs);
    wanted.WriteTo(*again, random);
    EXPECT_EQ(again->Complete(), place->traits().removes);
  }
}

TEST_P(EveryPlace, HashesTheGapsOfAFile) {
  std::mt19937 random(11);
  for (int turn = 0; turn < 20; ++turn) {
    const RandomFile file(random, false);
    const auto place = Make({{"f", file.bytes}});
    std::unique_ptr<PlaceFile> there;
    ASSERT_EQ(place->Open("f", &there), "");
    EXPECT_EQ(HashGaps(file.outline), HashFile(*place, *there, file.outline.boxes, 2).rest);
  }
}

TEST_P(EveryPlace, ReplacesTextsOnlyIfAllowed) {
  const auto place = Make({{"d/x", "x"}});
  const auto read = [&](const std::string& name) {
    std::string text;
    EXPECT_EQ(place->Read(name, 1000, &text), "") << name;
    return text;
  };
  EXPECT_TRUE(place->PutNew("d/new", "first"));
  EXPECT_FALSE(place->PutNew("d/new", "first"));
  EXPECT_FALSE(place->PutNew("d/new", "second"));
  EXPECT_EQ(read("d/new"), "first");
  const auto put = [&](const std::string& text) {
    bool was_asked = false;
    place->Put(
        "e/text",
        [&](const auto& append) {
          append(text.substr(0, 2));
          append(text.substr(2));
        },
        [&] { was_asked = true; });
    place->Sync("e");
    EXPECT_TRUE(was_asked);
  };
  put("some text");
  EXPECT_EQ(read("e/text"), "some text");
  put("some text");
  if (place->traits().removes) {
    put("another text");
    EXPECT_EQ(read("e/text"), "another text");
    place->Remove("e/text");
    place->Remove("e/text");
    EXPECT_FALSE(place->Exists("e/text"));
  } else {
    EXPECT_THROW(put("another text"), Error);
    EXPECT_EQ(read("e/text"), "some text");
  }
}

// Several writers of one name: an equal file is accepted; a different one is a conflict, unless it
// replaces the first.
TEST_P(EveryPlace, ConcurrentWritersShareEqualFiles) {
  std::mt19937 random(12);
  RandomFile wanted(random, false);
  wanted.outline.boxes.clear();
  wanted.outline.texts = [&] {
    return std::make_shared<FileTexts>(FileTexts{{{0, wanted.bytes}}});
  };
  const auto put = [&](const Place& place) {
    PutOnce(place, wanted.outline, Sha256Of(wanted.bytes), {});
  };
  const auto with = [&](const std::string& bytes) {
    return Make({{"d/x", "x"}, {wanted.outline.path, bytes}});
  };
  const auto fresh = Make({{"d/x", "x"}});
  put(*fresh);
  put(*fresh);
  put(*with(wanted.bytes));  // It has no metadata.
  std::string other = wanted.bytes;
  other[other.size() / 2] = static_cast<char>(other[other.size() / 2] ^ 1);
  const auto replaced = with(other);
  if (!replaced->traits().removes) {
    EXPECT_THROW(put(*replaced), Error);
    EXPECT_THROW(put(*with(wanted.bytes + "x")), Error);
  } else {
    put(*replaced);
  }
  wanted.outline.metadata = {{"owner", "me"}};
  EXPECT_FALSE(IsMade(*Make({{"d/x", "x"}}), wanted.outline, "plan"));
  const auto made = Make({{"d/x", "x"}});
  EXPECT_TRUE(made->Begin(wanted.outline)->Complete());
  RequireSameBytes(*made, wanted.outline, {{}, Sha256Of(wanted.bytes)});
  EXPECT_THROW(RequireSameBytes(*made, wanted.outline, {{}, Sha256Of(other)}), Error);
  if (!is("bucket")) return;  // Other places have no metadata.
  EXPECT_TRUE(IsMade(*made, wanted.outline, "plan"));
  wanted.outline.metadata = {{"owner", "somebody else"}};
  EXPECT_THROW(IsMade(*made, wanted.outline, "plan"), Error);
  EXPECT_THROW(IsMade(*with(wanted.bytes), wanted.outline, "plan"), Error);
}

// A place where another writer ends each upload.
class EndedUploads : public MemoryPlace {
 public:
  EndedUploads() : MemoryPlace({}) {}
  std::unique_ptr<NewPlaceFile> Begin(FileOutline, const std::vector<uint32_t>*) const override {
    ++begun;
    return std::make_unique<Ended>();
  }
  mutable int begun = 0;

 private:
  class Ended : public NewPlaceFile {
    int64_t Write(const void*, int64_t, int64_t) const override { return 0; }
    bool Complete(const std::function<void()>&) override { return false; }
  };
};

TEST(SharedFiles, ReportsUploadsThatOthersEnd) {
  const EndedUploads place;
  try {
    PutOnce(place, {.path = "d/f", .size = 0, .boxes = {}}, Sha256Of(""), {});
    ADD_FAILURE();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kWorld);
    EXPECT_STREQ(error.what(), "another process keeps aborting uploads to `memory/d/f`");
    EXPECT_EQ(error.hint(), "stop that process, and run the same command again");
  }
  EXPECT_EQ(place.begun, 5);
}

Plan PlanOfThree() {
  InitGraph graph{
      .name = "m", .engine = "philox4x32", .seed = 1, .mesh = {{"x"}, {3}}, .tensors = {}};
  graph.tensors = {MakeTensor("a.w", DType::bf16, {6, 7}, Normal{0, 0.02}, {{0}}),
                   MakeTensor("b", DType::f32, {5}, Constant{1})};
  return MakePlan(std::move(graph));
}

// Makes a checkpoint of three ranks and returns its files.
Tree CheckpointOf(const Plan& plan) {
  SetUpHdf5Once();
  std::filesystem::remove_all("made");
  GenerateRequest request;
  request.folder = "made";
  request.ranks = {0, 1, 2};
  request.workers = {.jobs = 1, .writers = 1, .memory = 1 << 20};
  WorkCounters counters;
  EXPECT_TRUE(Generate(plan, request, &counters).complete);
  Tree files;
  for (const auto& entry : std::filesystem::recursive_directory_iterator("made")) {
    if (!entry.is_regular_file()) continue;
    files[entry.path().lexically_relative("made").string()] = ReadFile(entry.path().string());
  }
  return files;
}

std::vector<std::string> AllFindings(const VerifyResult& result) {
  std::vector<std::string> found;
  for (const Finding& finding : result.findings) {
    found.push_back(fmt::format("{}: {} {}", finding.file, finding.tensor, finding.message));
  }
  for (const Finding& name : result.foreign) found.push_back("foreign: " + name.file);
  return found;
}

// Verification gives the same findings in every place: for the original, and with any file changed,
// truncated, removed or added.
TEST_P(EveryPlace, VerificationIsTheSameInEveryPlace) {
  const Plan plan = PlanOfThree();
  const Tree files = CheckpointOf(plan);
  ASSERT_EQ(files.size(), 9u);  // plan, index, manifest, and two of each rank
  const auto verify = [&](const Tree& changed) {
    return Verify(*Make(changed), 2, [](int64_t, int64_t) {});
  };
  const VerifyResult whole = verify(files);
  EXPECT_EQ(AllFindings(whole), std::vector<std::string>());
  EXPECT_EQ(whole.files, 3);
  EXPECT_EQ(whole.boxes, 4);
  EXPECT_EQ(whole.statement, files.at("manifest.json"));
  std::mt19937 random(9);
  for (int turn = 0; turn < 120; ++turn) {
    Tree changed = files;
    auto at = changed.begin();
    std::advance(at, static_cast<int64_t>(random() % changed.size()));
    std::string& bytes = at->second;
    const size_t place = random() % bytes.size();
    switch (random() % 5) {
      case 0:
        bytes[place] = static_cast<char>(bytes[place] ^ (1 + random() % 255));
        break;
      case 1:
        bytes.resize(place);
        break;
      case 2:
        bytes.insert(place, "x");
        break;
      case 3:
        changed.erase(at);
        break;
      default:
        changed["ranks/rank-00007.h5"] = bytes;
    }
    const auto found_in = [&](const Place& there) -> std::vector<std::string> {
      try {
        return AllFindings(Verify(there, 2, [](int64_t, int64_t) {}));
      } catch (const Error& error) {
        return {fmt::format("error {}", static_cast<int>(error.code()))};
      }
    };
    const std::vector<std::string> found = found_in(*Make(changed));
    EXPECT_NE(found, std::vector<std::string>()) << turn;
    // Some texts contain the name of the place.
    EXPECT_EQ(found.size(), found_in(MemoryPlace(changed)).size()) << turn;
  }
}

TEST_P(EveryPlace, FindsMissingRanks) {
  const Plan plan = PlanOfThree();
  const Tree files = CheckpointOf(plan);
  const Digest plan_sha256 = Sha256Of(WritePlan(plan));
  for (unsigned gone = 0; gone < 64; ++gone) {
    Tree left = files;
    std::vector<int64_t> missing;
    for (int64_t rank = 0; rank < 3; ++rank) {
      if (gone >> rank & 1) left.erase(RankFile(rank));
      if (gone >> (rank + 3) & 1) left.erase(ReceiptFile(rank));
      if ((gone >> rank & 1) || (gone >> (rank + 3) & 1)) missing.push_back(rank);
    }
    const auto place = Make(left);
    EXPECT_EQ(MissingRanks(*place, plan, plan_sha256, {0, 1, 2}), missing);
    EXPECT_EQ(MissingRanks(*place, plan, Sha256Of("another"), {0, 1, 2}),
              (std::vector<int64_t>{0, 1, 2}));
    // In a folder, LacksRank() does not look at the files of ranks.
    const bool lacks = place->traits().is_remote ? gone != 0 : gone >> 3 != 0;
    for (int64_t near = 0; near < 3; ++near) EXPECT_EQ(LacksRank(*place, 3, near), lacks) << gone;
    EXPECT_TRUE(IsFinalized(*place, files.contains(kIndexName)));
    EXPECT_FALSE(IsFinalized(*place, !files.contains(kIndexName)));
  }
}

// Links in a folder are not followed.
TEST_P(EveryPlace, LinksAreNotFollowed) {
  if (!is("folder")) return;
  const auto place = Make({{"d/x", "x"}, {"other/y", "y"}});
  std::filesystem::create_symlink("x", "a/d/link");
  std::filesystem::create_directory_symlink("../other", "a/d/sub");
  std::string text;
  std::unique_ptr<PlaceFile> file;
  EXPECT_EQ(place->Read("d/link", 10, &text), "is a link to elsewhere");
  EXPECT_EQ(place->Open("d/link", &file), "is a link to elsewhere");
  EXPECT_EQ(place->SizeOf("d/link"), -1);
  EXPECT_THROW(place->Read("d/sub/y", 10, &text), Error);
  EXPECT_THROW(place->Open("d/sub/y", &file), Error);
}

}  // namespace
}  // namespace shardinit
