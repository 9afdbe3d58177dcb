#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "base/child.h"
#include "base/comparison.h"
#include "base/error.h"
#include "base/new_file.h"
#include "base/result_file.h"
#include "support/spec_text.h"

namespace shardinit {
namespace {

using Contents = std::map<std::string, std::string>;

namespace fs = std::filesystem;

std::vector<std::string> NamesIn(const std::string& folder) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) names.push_back(entry.path().filename());
  std::sort(names.begin(), names.end());
  return names;
}

// Returns the message of the Error that `call` throws.
template <typename F>
std::string Failure(ExitCode code, F call) {
  try {
    call();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code);
    return error.what();
  }
  return "no error";
}

using Names = std::vector<std::string>;

TEST(ReadFile, ReadsAllBytes) {
  std::string text(200'000, 'x');
  text[70'000] = '\0';
  const WorkingFolder folder(Contents{{"a", text}, {"empty", ""}});
  EXPECT_EQ(ReadFile("a"), text);
  EXPECT_EQ(ReadFile("empty"), "");
}

TEST(ReadFile, ReadFileReportsTheReason) {
  const WorkingFolder folder(Contents{{"a", "12345"}, {"sub/b", ""}});
  ASSERT_EQ(mkfifo("pipe", 0600), 0);
  EXPECT_EQ(Failure(ExitCode::kUsage, [] { ReadFile("none"); }), "there is no file `none`");
  EXPECT_EQ(Failure(ExitCode::kUsage, [] { ReadFile("a/b"); }), "there is no file `a/b`");
  EXPECT_EQ(Failure(ExitCode::kUsage, [] { ReadFile("sub"); }), "`sub` is a folder, not a file");
  // This FIFO has no writer, and opening it must not wait for one.
  EXPECT_EQ(Failure(ExitCode::kUsage, [] { ReadFile("pipe"); }), "`pipe` is a device, not a file");
  EXPECT_EQ(Failure(ExitCode::kUsage, [] { ReadFile("/dev/zero"); }),
            "`/dev/zero` is a device, not a file");
  EXPECT_EQ(ReadFile("a", 5), "12345");
  EXPECT_EQ(Failure(ExitCode::kUsage, [] { ReadFile("a", 4); }),
            "`a` is larger than 4 bytes, the most this kind of file may have");
}

TEST(ReadFileIfExists, ReadFileIfExistsRejectsUnreadableFiles) {
  const WorkingFolder folder(Contents{{"a", "1"}, {"sub/b", ""}});
  std::string text = "unchanged";
  EXPECT_FALSE(ReadFileIfExists("none", 10, &text));
  EXPECT_EQ(text, "unchanged");
  EXPECT_TRUE(ReadFileIfExists("a", 10, &text));
  EXPECT_EQ(text, "1");
  EXPECT_THROW(ReadFileIfExists("sub", 10, &text), Error);
  // A dangling link exists but cannot be read.
  fs::create_symlink("nowhere", "link");
  EXPECT_THROW(ReadFileIfExists("link", 10, &text), Error);
}

TEST(AreUnchanged, AreUnchangedComparesEachMember) {
  struct stat one = {};
  one.st_mtim = {5, 7};
  EXPECT_TRUE(AreUnchanged(one, one));
  const auto differs = [&](const auto& change) {
    struct stat other = one;
    change(other);
    return !AreUnchanged(one, other);
  };
  EXPECT_TRUE(differs([](struct stat& s) { ++s.st_dev; }));
  EXPECT_TRUE(differs([](struct stat& s) { ++s.st_ino; }));
  EXPECT_TRUE(differs([](struct stat& s) { ++s.st_size; }));
  EXPECT_TRUE(differs([](struct stat& s) { ++s.st_mtim.tv_sec; }));
  EXPECT_TRUE(differs([](struct stat& s) { ++s.st_mtim.tv_nsec; }));
  EXPECT_TRUE(differs([](struct stat& s) { ++s.st_ctim.tv_sec; }));
  EXPECT_TRUE(differs([](struct stat& s) { ++s.st_ctim.tv_nsec; }));
}

TEST(WriteAllAndReadAll, ReadsAndWritesAtOffsets) {
  const WorkingFolder folder(Contents{{"a", "0123456789"}});
  const Fd fd(open("a", O_RDWR));
  EXPECT_TRUE(WriteAll(fd.get(), "xyz", 3, 4));
  EXPECT_TRUE(WriteAll(fd.get(), "!", 1, 12));  // This leaves a hole.
  EXPECT_EQ(ReadFile("a"), std::string("0123xyz789\0\0!", 13));
  char buffer[4] = {};
  EXPECT_TRUE(ReadAll(fd.get(), buffer, 4, 3));
  EXPECT_EQ(std::string(buffer, 4), "3xyz");
  errno = EIO;
  EXPECT_FALSE(ReadAll(fd.get(), buffer, 4, 10));  // This is one byte too many.
  EXPECT_EQ(errno, 0);
  EXPECT_FALSE(ReadAll(-1, buffer, 4, 0));
  EXPECT_EQ(errno, EBADF);
  EXPECT_FALSE(WriteAll(-1, buffer, 4, 0));
  EXPECT_TRUE(WriteAll(-1, buffer, 0, 0));
}

TEST(WriteAll, ReportsAFullDisk) {
  const Fd full(open("/dev/full", O_WRONLY));
  if (!full) GTEST_SKIP() << "no /dev/full here";
  EXPECT_FALSE(WriteAll(full.get(), "x", 1, 0));
  EXPECT_EQ(errno, ENOSPC);
}

TEST(MakeFolder, MakeFolderCreatesItsParents) {
  const WorkingFolder folder(Contents{{"file", ""}});
  MakeFolder("new");
  MakeFolder("new");
  MakeFolder("a/b/c");
  MakeFolder("a/d/");
  EXPECT_TRUE(fs::is_directory("new"));
  EXPECT_TRUE(fs::is_directory("a/b/c"));
  EXPECT_TRUE(fs::is_directory("a/d"));
}

TEST(MakeFolder, MakeFolderReportsTheReason) {
  const WorkingFolder folder(Contents{{"file", ""}});
  fs::create_symlink("nowhere", "link");
  EXPECT_EQ(Failure(ExitCode::kConflict, [] { MakeFolder("file"); }),
            "`file` exists and is not a folder");
  EXPECT_EQ(Failure(ExitCode::kConflict, [] { MakeFolder("file/a"); }),
            "cannot create the folder `file/a`: Not a directory");
  EXPECT_EQ(Failure(ExitCode::kWorld, [] { MakeFolder("link/a"); }),
            "cannot create the folder `link`: File exists");
  EXPECT_EQ(Failure(ExitCode::kWorld, [] { MakeFolder(""); }),
            "cannot create the folder ``: No such file or directory");
}

TEST(FileSize, FileSizeIsOnlyForRegularFiles) {
  const WorkingFolder folder(Contents{{"a", "123"}, {"sub/b", ""}});
  fs::create_symlink("a", "link");
  EXPECT_EQ(FileSize("a"), 3);
  EXPECT_EQ(FileSize("sub/b"), 0);
  EXPECT_EQ(FileSize("sub"), -1);
  EXPECT_EQ(FileSize("link"), -1);
  EXPECT_EQ(FileSize("none"), -1);
  EXPECT_TRUE(Exists("link"));
  EXPECT_TRUE(Exists("sub"));
  EXPECT_FALSE(Exists("none"));
}

// A file that may not be accessed is an error; it is not treated as missing.
TEST(Exists, ExistsThrowsIfAccessIsDenied) {
  const WorkingFolder folder(Contents{{"sub/a", ""}});
  fs::permissions("sub", fs::perms::none);
  const uid_t me = geteuid();
  ASSERT_EQ(seteuid(me == 0 ? 65534 : me), 0);  // Root may access everything.
  const std::string failure = Failure(ExitCode::kUsage, [] { Exists("sub/a"); });
  ASSERT_EQ(seteuid(me), 0);
  fs::permissions("sub", fs::perms::owner_all);
  EXPECT_EQ(failure, "cannot read `sub/a`: Permission denied");
}

TEST(RequireFolder, RequireFolderReportsOtherFileTypes) {
  const WorkingFolder folder(Contents{{"a", ""}, {"sub/b", ""}});
  fs::create_symlink("sub", "link");
  RequireFolder("sub");
  RequireFolder("link");
  EXPECT_EQ(Failure(ExitCode::kUsage, [] { RequireFolder("a"); }), "`a` is a file, not a folder");
  EXPECT_EQ(Failure(ExitCode::kUsage, [] { RequireFolder("none"); }), "there is no folder `none`");
  EXPECT_EQ(Failure(ExitCode::kUsage, [] { RequireFolder("a/b"); }), "there is no folder `a/b`");
}

TEST(Fd, FdClosesOnce) {
  Fd fd(open("/dev/null", O_RDONLY));
  ASSERT_TRUE(fd);
  const int number = fd.get();
  Fd other = std::move(fd);
  EXPECT_FALSE(fd);
  EXPECT_EQ(other.get(), number);
  EXPECT_TRUE(other.Close());
  EXPECT_TRUE(other.Close());
  EXPECT_EQ(fcntl(number, F_GETFD), -1);
}

TEST(NewFile, NewFileAppearsCompleteOnCommit) {
  const WorkingFolder scratch(Contents{{"a", "before"}});
  const Folder folder = Folder::Open(".");
  {
    NewFile file(folder, "a");
    EXPECT_EQ(file.path(), "./a");
    file.Append("one ");
    EXPECT_EQ(ReadFile("a"), "before");
    file.Append("");
    file.Append("two");
    EXPECT_EQ(ReadFile("a"), "before");
    file.Commit();
  }
  EXPECT_EQ(ReadFile("a"), "one two");
  EXPECT_EQ(NamesIn("."), Names{"a"});
}

TEST(NewFile, NewFileLeavesNothingWithoutCommit) {
  const WorkingFolder scratch(Contents{{"a", "before"}});
  const Folder folder = Folder::Open(".");
  { NewFile(folder, "a").Append("after"); }
  { NewFile(folder, "b").Append("after"); }
  EXPECT_ANY_THROW(NewFile(folder, "c").Commit([] { throw Error(ExitCode::kConflict, "no"); }));
  EXPECT_EQ(ReadFile("a"), "before");
  EXPECT_EQ(NamesIn("."), Names{"a"});
}

// A new file follows its folder, whose name may change or vanish meanwhile.
TEST(NewFile, NewFileFollowsItsRenamedFolder) {
  const WorkingFolder scratch(Contents{{"here/x", ""}});
  const Folder folder = Folder::Open("here");
  EXPECT_TRUE(folder.IsInPlace());
  NewFile file(folder, "a");
  fs::rename("here", "there");
  fs::create_directory("here");
  EXPECT_FALSE(folder.IsInPlace());
  file.Commit();
  EXPECT_EQ(NamesIn("there"), (Names{"a", "x"}));
  EXPECT_EQ(NamesIn("here"), Names{});
}

TEST(NewFile, NewFileAcceptsAnEqualFile) {
  const WorkingFolder scratch(Contents{{"a", "same"}, {"b", "another"}});
  const Folder folder = Folder::Open(".");
  for (const std::string name : {"a", "b", "c"}) {
    NewFile file(folder, name);
    file.Append("same");
    for (const std::string& other : NamesIn(".")) {
      if (other.starts_with("." + name)) fs::remove(other);
    }
    EXPECT_EQ(
        Failure(ExitCode::kWorld, [&] { file.Commit(); }),
        name == "a" ? "no error" : "cannot create `./" + name + "`: No such file or directory");
  }
  EXPECT_EQ(ReadFile("a"), "same");
}

TEST(NewFile, CommitNewTakesOnlyAFreeName) {
  const WorkingFolder scratch(Contents{{"a", "before"}});
  const Folder folder = Folder::Open(".");
  NewFile a(folder, "a"), b(folder, "b");
  EXPECT_FALSE(a.CommitNew());
  EXPECT_TRUE(b.CommitNew());
  EXPECT_EQ(ReadFile("a"), "before");
  EXPECT_EQ(ReadFile("b"), "");
}

// Files of this kind begin with `ours `.
ResultFile Result(const std::string& path, bool force = false) {
  return ResultFile({"-o", "result", {"ours "}}, path, force);
}

TEST(ResultFile, ResultFileReplacesItsOwnKindAndFollowsLinks) {
  const WorkingFolder scratch(
      Contents{{"target", "ours 1"}, {"mine", "mine ours "}, {"empty", ""}});
  fs::create_symlink("target", "link");
  fs::create_symlink("new", "dangling");
  ASSERT_EQ(chmod("target", 0600), 0);
  Result("link").Write("ours 2");
  Result("dangling").Write("ours 3");
  Result("empty").Write("ours 4");
  EXPECT_TRUE(fs::is_symlink("link") && fs::is_symlink("dangling"));
  EXPECT_EQ(ReadFile("target") + ReadFile("new") + ReadFile("empty"), "ours 2ours 3ours 4");
  EXPECT_EQ(fs::status("target").permissions(), fs::perms(0600));
  EXPECT_EQ(Failure(ExitCode::kConflict, [] { Result("mine"); }),
            "`mine` exists and is not a result that this command wrote");
  Result("mine", true).Write("ours 5");
  EXPECT_EQ(ReadFile("mine"), "ours 5");
  EXPECT_EQ(NamesIn("."), (Names{"dangling", "empty", "link", "mine", "new", "target"}));
}

TEST(ResultFile, ResultFileChecksAgainBeforeItWrites) {
  const WorkingFolder scratch(Contents{});
  const ResultFile replaced = Result("b");
  std::ofstream("b") << "meanwhile";
  EXPECT_EQ(Failure(ExitCode::kConflict, [&] { replaced.Write("ours "); }),
            "`b` exists and is not a result that this command wrote");
  EXPECT_EQ(ReadFile("b"), "meanwhile");
}

TEST(ResultFile, ResultFileReportsTheReason) {
  const WorkingFolder scratch(Contents{{"sub/b", ""}});
  fs::create_symlink("loop", "loop");
  EXPECT_EQ(Failure(ExitCode::kUsage, [] { Result("none/a"); }),
            "there is no folder `none` for `none/a`");
  EXPECT_EQ(Failure(ExitCode::kUsage, [] { Result("sub"); }),
            "`sub` is a folder, and `-o` needs a file");
  EXPECT_EQ(Failure(ExitCode::kUsage, [] { Result("-"); }),
            "`-o` needs the name of a file, not `-`");
  EXPECT_EQ(Failure(ExitCode::kUsage, [] { Result("loop"); }),
            "`loop` is a link that leads to itself");
  EXPECT_EQ(Failure(ExitCode::kUsage, [] { Result("s3://b/x"); }),
            "`s3://b/x` is not a path of a file system, and such a URL can only name a folder of "
            "tensors: a checkpoint, an export, or another tool's folder");
  EXPECT_EQ(NamesIn("."), (Names{"loop", "sub"}));
}

bool Any(std::string_view) { return true; }

// Returns `.NAME.tmp-MACHINE-RANDOM`, for this machine.
std::string TemporaryOf(const Folder& folder, const std::string& name) {
  const NewFile file(folder, name);
  for (const std::string& other : NamesIn(".")) {
    if (other.starts_with("." + name + ".tmp-")) return other;
  }
  return "none";
}

TEST(RemoveLeftOvers, RemoveLeftOversKeepsFilesOfRunningOwners) {
  const WorkingFolder scratch(Contents{});
  const Folder folder = Folder::Open(".");
  const std::string a = TemporaryOf(folder, "a"), b = TemporaryOf(folder, "b");
  for (const std::string& name : {a, b}) std::ofstream(name) << "killed";
  const NewFile file(folder, "a");
  const auto is_a = [](std::string_view name) { return name == "a"; };
  EXPECT_EQ(NamesIn(".").size(), 3u);
  RemoveLeftOvers(folder, is_a, Others::kOld);
  EXPECT_EQ(NamesIn(".").size(), 2u);
  EXPECT_TRUE(fs::exists(b));
  RemoveLeftOvers(folder, Any, Others::kAll);
  ASSERT_EQ(NamesIn(".").size(), 1u);
  EXPECT_TRUE(NamesIn(".")[0].starts_with(".a.tmp-"));
  RemoveLeftOvers(Folder::Open("none"), Any, Others::kAll);  // There is nothing to remove.
}

TEST(RemoveLeftOvers, RemoveLeftOversKeepsFilesOfOtherMachinesForHours) {
  const std::string young = ".a.tmp-0123456789abcdef-0000000000000001",
                    old = ".a.tmp-0123456789abcdef-0000000000000002";
  const WorkingFolder scratch(Contents{{young, ""}, {old, ""}});
  const timeval day_ago[2] = {{time(nullptr) - 86400, 0}, {time(nullptr) - 86400, 0}};
  ASSERT_EQ(utimes(old.c_str(), day_ago), 0);
  const Folder folder = Folder::Open(".");
  RemoveLeftOvers(folder, Any, Others::kOld);
  EXPECT_EQ(NamesIn("."), Names{young});
  const Fd locked(open(young.c_str(), O_RDWR));  // This lock may be visible to other machines.
  ASSERT_EQ(flock(locked.get(), LOCK_EX), 0);
  RemoveLeftOvers(folder, Any, Others::kAll);
  EXPECT_EQ(NamesIn("."), Names{young});
  ASSERT_EQ(flock(locked.get(), LOCK_UN), 0);
  RemoveLeftOvers(folder, Any, Others::kAll);
  EXPECT_EQ(NamesIn("."), Names{});
}

TEST(RemoveLeftOvers, RemoveLeftOversKeepsTheUsersFiles) {
  const WorkingFolder scratch(Contents{{".hidden", ""},
                                       {"a.tmp-0123456789abcdef-0123456789abcdef", ""},
                                       {".a.tmp-2024", ""},
                                       {".a.tmp-0123456789abcdef", ""},
                                       {".a.tmp-0123456789abcdef-0123456789ABCDEF", ""},
                                       {".a.tmp-0123456789abcdef-0123456789abcdef0", ""},
                                       {".a.tmp-0123456789abcdef-0123456789abcdef.txt", ""},
                                       {".tmp-0123456789abcdef-0123456789abcdef", ""},
                                       {".b.tmp-0123456789abcdef-0123456789abcdef", ""},
                                       {".a.tmp-0123456789abcdef-00000000000000aa/photo", ""}});
  ASSERT_EQ(mkfifo(".a.tmp-0123456789abcdef-00000000000000bb", 0600), 0);
  fs::create_symlink(".hidden", ".a.tmp-0123456789abcdef-00000000000000cc");
  const Names before = NamesIn(".");
  const Folder folder = Folder::Open(".");
  RemoveLeftOvers(
      folder, [](std::string_view name) { return name == "a"; }, Others::kAll);
  EXPECT_EQ(NamesIn("."), before);
}

TEST(Folder, FolderNeverFollowsLinks) {
  const WorkingFolder scratch(Contents{{"sub/a", "123"}, {"elsewhere/b", ""}});
  fs::create_symlink("a", "sub/link");
  fs::create_symlink("elsewhere", "folder");
  std::string text = "unchanged";
  const Folder folder = Folder::Open("sub"), here = Folder::Open(".");
  EXPECT_FALSE(folder.Read("link", 10, &text));
  EXPECT_FALSE(folder.Read("none", 10, &text));
  EXPECT_FALSE(folder.Read("a", 2, &text));
  EXPECT_FALSE(here.Read("sub", 10, &text));
  EXPECT_EQ(text, "unchanged");
  EXPECT_TRUE(folder.Read("a", 3, &text));
  EXPECT_EQ(text, "123");
  EXPECT_EQ(folder.FileSize("link"), -1);
  EXPECT_TRUE(folder.Exists("link"));
  EXPECT_EQ(Failure(ExitCode::kConflict, [&] { here.OpenSub("folder"); }),
            "`./folder` is a link to elsewhere, or not a folder");
  EXPECT_FALSE(Folder::Open("none"));
  EXPECT_FALSE(Folder::Open("none").Exists("a"));
}

// A comparison covers all pieces of a text, in any division, and detects a missing end.
TEST(Comparison, ComparisonCoversAllPieces) {
  const std::string wanted = "abcabc";
  const auto compare = [&](const std::string& text, size_t first, size_t second) {
    Comparison comparison(wanted);
    comparison.Add(std::string_view(text).substr(0, first));
    comparison.Add(std::string_view(text).substr(first, second - first));
    comparison.Add(std::string_view(text).substr(second));
    return std::pair(comparison.equal(), comparison.at_end());
  };
  for (size_t first = 0; first <= wanted.size(); ++first) {
    for (size_t second = first; second <= wanted.size(); ++second) {
      EXPECT_EQ(compare(wanted, first, second), std::pair(true, true)) << first << " " << second;
      for (size_t at = 0; at < wanted.size(); ++at) {
        std::string other = wanted;
        other[at] = 'x';
        EXPECT_FALSE(compare(other, first, second).first) << first << " " << second << " " << at;
      }
      EXPECT_FALSE(compare(wanted + "c", first, second).first);
      const std::string shorter = wanted.substr(0, 5);
      EXPECT_EQ(compare(shorter, std::min(first, size_t{5}), std::min(second, size_t{5})),
                std::pair(true, false));
    }
  }
}

TEST(RunChild, RunChildPassesInputAndReturnsOutput) {
  const auto run = [](const std::string& script, std::string_view input = {}) {
    return RunChild({"sh", "-c", script, "name", "a b", "$c"}, input, "a hint");
  };
  const auto said = [](const ChildResult& result) {
    return std::to_string(result.status) + " " + result.output;
  };
  EXPECT_EQ(said(run("exit 7")), "7 ");
  EXPECT_EQ(said(run("kill -9 $$")), "137 ");
  EXPECT_EQ(said(run("kill -15 $$")), "143 ");
  EXPECT_EQ(said(run("echo out; echo err >&2; echo \"$1|$2\"")), "0 out\nerr\na b|$c\n");
  const std::string input(300'000, 'i');
  EXPECT_EQ(said(run("wc -c", input)), "0 300000\n");
  EXPECT_EQ(said(run("wc -c")), "0 0\n");
  EXPECT_EQ(said(run("true", input)), "0 ");  // The child may ignore its input.
  // Only part of a long output is kept, and the child runs to its end.
  const ChildResult much = run("head -c 1000000 /dev/zero | tr '\\0' x; exit 3");
  EXPECT_EQ(much.status, 3);
  EXPECT_GE(much.output.size(), size_t{65536});
  EXPECT_LT(much.output.size(), size_t{65536 + 4096});
  EXPECT_EQ(much.output.find_first_not_of('x'), std::string::npos);
  EXPECT_EQ(Failure(ExitCode::kUsage, [] { RunChild({"no-such-program"}, "", "a hint"); }),
            "`no-such-program` is not installed");
}

}  // namespace
}  // namespace shardinit
