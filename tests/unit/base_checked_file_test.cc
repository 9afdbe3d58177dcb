#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <thread>

#include "base/checked_file.h"
#include "base/error.h"
#include "base/sha256.h"
#include "support/spec_text.h"

namespace shardinit {
namespace {

namespace fs = std::filesystem;

const std::string kText = "some bytes";

CheckedFile FileOf(const std::string& text) {
  return CheckedFile("table", std::ssize(kText), ToHex(Sha256Of(text)), "x.yaml:1:2");
}

std::string Read(const CheckedFile& file, int64_t offset, int64_t size) {
  std::string out(static_cast<size_t>(size), '?');
  CheckedFile::Reader(file).Read(offset, size, out.data());
  return out;
}

std::string Failure(ExitCode code, const CheckedFile& file) {
  try {
    Read(file, 0, 1);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code);
    return error.what();
  }
  return "no error";
}

TEST(CheckedFile, ReadsAnyPartOfACheckedFile) {
  const WorkingFolder folder({{"table", kText}});
  const CheckedFile file = FileOf(kText);
  EXPECT_EQ(Read(file, 0, 10), kText);
  EXPECT_EQ(Read(file, 5, 4), "byte");
}

TEST(CheckedFile, RejectsAFileWithAnotherDigest) {
  const WorkingFolder folder({{"table", kText}});
  const CheckedFile file = FileOf("some bytez");
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(Failure(ExitCode::kUsage, file), "`table` has the SHA-256 " + ToHex(Sha256Of(kText)) +
                                                   ", but x.yaml:1:2 asks for " +
                                                   ToHex(Sha256Of("some bytez")));
  }
}

TEST(CheckedFile, RejectsAFileReplacedAfterTheCheck) {
  const WorkingFolder folder({{"table", kText}});
  const CheckedFile file = FileOf(kText);
  EXPECT_EQ(Read(file, 0, 1), "s");
  // The content is the same, but it has not been checked.
  std::ofstream("other") << kText;
  fs::rename("other", "table");
  EXPECT_EQ(Failure(ExitCode::kWorld, file), "`table` was changed while it was read");
  fs::remove("table");
  EXPECT_EQ(Failure(ExitCode::kWorld, file), "cannot read `table`: No such file or directory");
}

TEST(CheckedFile, ReportsAFileThatIsTooShort) {
  const WorkingFolder folder(std::map<std::string, std::string>{{"table", "some"}});
  EXPECT_EQ(Failure(ExitCode::kWorld, FileOf("some")), "`table` ends before byte 10");
}

TEST(CheckedFile, ThreadsCanReadOneCheckedFile) {
  const WorkingFolder folder({{"table", kText}});
  const CheckedFile file = FileOf(kText);
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back([&file] { EXPECT_EQ(Read(file, 2, 3), "me "); });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace shardinit
