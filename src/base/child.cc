#include "base/child.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>

#include "base/error.h"
#include "base/file.h"

extern char** environ;

namespace shardinit {
namespace {

// Little output is kept: it is only for a message.
constexpr size_t kMostOutput = 64 << 10;

std::string ReadAll(int fd) {
  std::string all, some(4096, '\0');
  while (true) {
    const ssize_t count = read(fd, some.data(), some.size());
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return all;
    if (all.size() < kMostOutput) all.append(some, 0, static_cast<size_t>(count));
  }
}

// The descriptors of a child.
class FileActions {
 public:
  FileActions() { posix_spawn_file_actions_init(&actions_); }
  ~FileActions() { posix_spawn_file_actions_destroy(&actions_); }
  FileActions(const FileActions&) = delete;
  void Give(int fd, int as) { posix_spawn_file_actions_adddup2(&actions_, fd, as); }
  const posix_spawn_file_actions_t* get() const { return &actions_; }

 private:
  posix_spawn_file_actions_t actions_;
};

}  // namespace

ChildResult RunChild(const std::vector<std::string>& words, std::string_view input,
                     const std::string& hint) {
  const std::string& name = words.front();
  // A file, because the child may read its input at any time, or never.
  const Fd in = FileInMemory(input, "the input of " + name);
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) throw SystemError("run", name);
  const Fd from(ends[0]);
  Fd to(ends[1]);
  FileActions files;
  files.Give(in.get(), STDIN_FILENO);
  files.Give(to.get(), STDOUT_FILENO);
  files.Give(to.get(), STDERR_FILENO);
  std::vector<char*> arguments;
  for (const std::string& word : words) arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  pid_t child = 0;
  errno = posix_spawnp(&child, name.c_str(), files.get(), nullptr, arguments.data(), environ);
  if (errno == ENOENT) {
    throw Usage(fmt::format("`{}` is not installed", name), hint);
  }
  if (errno != 0) throw SystemError("run", name);
  to.Close();
  ChildResult result{.status = 0, .output = ReadAll(from.get())};
  int how = 0;
  while (waitpid(child, &how, 0) < 0) {
    if (errno != EINTR) throw SystemError("wait for", name);
  }
  result.status = WIFEXITED(how) ? WEXITSTATUS(how) : 128 + WTERMSIG(how);
  return result;
}

}  // namespace shardinit
