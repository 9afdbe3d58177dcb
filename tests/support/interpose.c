// Counts a program's calls of the C library, and applies a rule at the n-th call of a kind. Tests load this library
// with LD_PRELOAD; tests/python/interposed.py compiles it and writes the rules:
//
//   INTERPOSED         lines of `CALLS WHEN WHERE WHAT A B`, separated by tabs
//   INTERPOSED_STATE   a file with the number of calls that each rule matched, in all processes that share it
//
//   CALLS   names in kCalls, separated by commas
//   WHEN    `5`: the fifth call, `5+`: all from the fifth on, `5-7`: these calls, `0`: none, only count
//   WHERE   `*`, the beginning of an absolute path, or a name without a slash; other calls are ignored
//   WHAT    a word in Do(), IsFar() or Meet()
//
// Some words make this process a client of a remote file system, whose view may be outdated:
//
//   late A   a name that was missing, in a lookup or in a folder's list, stays missing for A more lookups after another
//            process has made it; only calls that would make the name see it
//   old      a file keeps the size and times of the first lookup until it is opened
//   stale    a descriptor of a file that others have removed fails with ESTALE
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <link.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/vfs.h>
#include <unistd.h>

enum Call {
  kOpen, kOpendir, kReaddir, kRead, kPread, kWrite, kPwrite, kStat, kAccess, kReadlink, kLink, kRename,
  kUnlink, kMkdir, kClose, kFsync, kFdatasync, kFtruncate, kFallocate, kMmap, kGetrandom, kMalloc, kFlock,
  kStatfs, kChmod, kFork, kPipe, kThread, kCallCount
};
static const char *const kCalls[kCallCount] = {
    "open",   "opendir", "readdir", "read",  "pread", "write",     "pwrite",    "stat",      "access", "readlink",
    "link",   "rename",  "unlink",  "mkdir", "close", "fsync",     "fdatasync", "ftruncate", "fallocate", "mmap",
    "getrandom", "malloc", "flock", "statfs", "chmod", "fork",     "pipe",      "thread"};

enum { kRules = 1024 };
struct Rule {
  uint64_t calls;
  long from, to;
  const char *where, *what, *a, *b;
};
static struct Rule rules[kRules];
static int rule_count;
static uint64_t wanted;  // the calls of all rules
static atomic_long own_state[kRules];
static atomic_long *met = own_state;
// Calls by this library itself are ignored.
static __thread int busy __attribute__((tls_model("initial-exec")));

struct Met {
  enum Call call;
  int folder;  // folder of a relative path
  const char *path;
  int fd;
  off_t offset;
  size_t size;  // for an open: 1 if it may create the file
};
// The action for a call: make it unchanged, fail with `number`, transfer at most `number` bytes, return `number` without
// the call, report another device, report the state of the first lookup, or report no types of names in a folder.
struct Answer {
  enum { kGoOn, kFail, kShort, kReturn, kDevice, kOld, kUntyped } what;
  long number;
};

static void Kill(void) {
  syscall(SYS_kill, getpid(), SIGKILL);
  __builtin_trap();  // A confined process may not send signals.
}

static void Must(int holds) {
  if (!holds) _exit(99);
}

static void LinkOf(int fd, char *path, size_t size) {
  char link[64];
  snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  const ssize_t length = fd == AT_FDCWD ? readlink("/proc/self/cwd", path, size - 1) : readlink(link, path, size - 1);
  path[length < 0 ? 0 : length] = 0;
}

static void PathOf(const struct Met *call, char *path, size_t size) {
  if (call->path == NULL) {
    LinkOf(call->fd, path, size);
    return;
  }
  path[0] = 0;
  if (call->path[0] != '/') {
    LinkOf(call->folder, path, size - 1);
    strcat(path, "/");
  }
  strncat(path, call->path, size - strlen(path) - 1);
}

// A name in a folder as this process knows it, by any path. The folder's own list has an empty name.
struct Name {
  struct Name *next;
  char *key;
  long looks;  // lookups since another process made the missing name
  int is_own, was_missing, is_listed;
  int has_info;
  struct stat info;  // at the first lookup
};
static struct Name *names;
static int is_far;  // whether any rule needs names
static pthread_mutex_t names_mutex = PTHREAD_MUTEX_INITIALIZER;

// Requires the mutex. Returns NULL if the name's folder is missing.
static struct Name *NameOf(const char *path) {
  char folder[PATH_MAX], key[PATH_MAX + 64];
  const char *slash = strrchr(path, '/');
  struct statx info;
  if (slash == NULL) return NULL;
  snprintf(folder, sizeof folder, "%.*s/", (int)(slash - path), path);
  if (statx(AT_FDCWD, folder, 0, STATX_INO | STATX_BTIME, &info) != 0) return NULL;
  snprintf(key, sizeof key, "%llu %lld %u %s", (unsigned long long)info.stx_ino, (long long)info.stx_btime.tv_sec,
           info.stx_btime.tv_nsec, slash + 1);
  struct Name *name = names;
  while (name != NULL && strcmp(name->key, key) != 0) name = name->next;
  if (name != NULL) return name;
  name = calloc(1, sizeof *name);
  Must(name != NULL);
  name->key = strdup(key);
  name->next = names;
  return names = name;
}

// Looks a name up. Returns whether it must still appear missing: for `looks` lookups after another process made it.
static int IsLate(const char *path, long looks) {
  struct stat info;
  const int is_missing = lstat(path, &info) != 0;
  pthread_mutex_lock(&names_mutex);
  struct Name *name = NameOf(path);
  if (name != NULL) name->was_missing |= is_missing;
  const int is_late = name != NULL && !is_missing && name->was_missing && !name->is_own && ++name->looks <= looks;
  pthread_mutex_unlock(&names_mutex);
  return is_late;
}

// Notes the names in a folder when its list is first read. Names that appear later were missing then.
static void ListFolder(const char *path) {
  char inside[2 * PATH_MAX];
  snprintf(inside, sizeof inside, "%s/", path);
  pthread_mutex_lock(&names_mutex);
  struct Name *list = NameOf(inside);
  const int is_first = list != NULL && !list->is_listed;
  if (list != NULL) list->is_listed = 1;
  DIR *folder = is_first ? opendir(path) : NULL;
  const struct dirent *entry;
  while (folder != NULL && (entry = readdir(folder)) != NULL) {
    snprintf(inside, sizeof inside, "%s/%s", path, entry->d_name);
    NameOf(inside)->is_listed = 1;
  }
  if (folder != NULL) closedir(folder);
  pthread_mutex_unlock(&names_mutex);
}

// Notes that this process knows a name that it has made, and the current state of a file that it opens.
static void Learn(const struct Met *call) {
  if (busy || !is_far || call->path == NULL) return;
  const int is_made = call->call == kRename || call->call == kLink || call->call == kMkdir ||
                      (call->call == kOpen && call->size != 0);
  if (!is_made && call->call != kOpen) return;
  busy = 1;
  const int error = errno;
  char path[PATH_MAX];
  PathOf(call, path, sizeof path);
  pthread_mutex_lock(&names_mutex);
  struct Name *name = NameOf(path);
  if (name != NULL) name->is_own |= is_made;
  if (name != NULL) name->has_info = 0;
  pthread_mutex_unlock(&names_mutex);
  errno = error;
  busy = 0;
}

static int IsThere(const struct Rule *rule, const char *path) {
  if (rule->where[0] == '*') return 1;
  if (rule->where[0] == '/') return strncmp(path, rule->where, strlen(rule->where)) == 0;
  const char *slash = strrchr(path, '/');
  return strcmp(slash == NULL ? path : slash + 1, rule->where) == 0;
}

// Applies a rule that changes files or the process. Returns whether it did.
static int Do(const struct Rule *rule, const struct Met *call, const char *path) {
  const char *a = rule->a, *b = rule->b;
  if (strcmp(rule->what, "kill") == 0) {
    Kill();
  } else if (strcmp(rule->what, "cut") == 0) {
    Must(truncate(a, atol(b)) == 0);
  } else if (strcmp(rule->what, "move") == 0) {
    Must(rename(b, a) == 0);
  } else if (strcmp(rule->what, "swap") == 0) {
    Must(renameat2(AT_FDCWD, b, AT_FDCWD, a, RENAME_EXCHANGE) == 0);
  } else if (strcmp(rule->what, "xor") == 0 || strcmp(rule->what, "disguise") == 0) {
    const int fd = open(a, O_RDWR);
    struct stat before;
    unsigned char byte;
    Must(fd >= 0 && fstat(fd, &before) == 0 && pread(fd, &byte, 1, atol(b)) == 1);
    byte ^= 0x41;
    Must(pwrite(fd, &byte, 1, atol(b)) == 1);
    const struct timespec times[] = {before.st_atim, before.st_mtim};
    if (strcmp(rule->what, "disguise") == 0) Must(futimens(fd, times) == 0);  // hides the change
    close(fd);
  } else if (strcmp(rule->what, "log") == 0) {  // a line `PATH OFFSET BYTES` in A
    char line[PATH_MAX + 64];
    const int fd = open(a, O_WRONLY | O_CREAT | O_APPEND, 0666);
    const off_t offset = call->offset >= 0 ? call->offset : lseek(call->fd, 0, SEEK_CUR);
    const int length = snprintf(line, sizeof line, "%s %ld %zu\n", path, (long)offset, call->size);
    Must(fd >= 0 && write(fd, line, (size_t)length) == length);
    close(fd);
  } else if (strcmp(rule->what, "wait") == 0) {  // makes A.reached, and waits for A.open
    char file[PATH_MAX];
    snprintf(file, sizeof file, "%s.reached", a);
    close(open(file, O_WRONLY | O_CREAT, 0666));
    snprintf(file, sizeof file, "%s.open", a);
    while (access(file, F_OK) != 0) usleep(1000);
  } else {
    return 0;
  }
  return 1;
}

// Applies a rule that simulates a remote file system. Returns whether it did.
static int IsFar(const struct Rule *rule, const struct Met *call, const char *path, struct Answer *answer) {
  if (strcmp(rule->what, "late") == 0) {
    // Entries of a folder are checked one by one (IsEntryLate).
    if (call->call == kReaddir || (call->call == kOpen && call->size != 0)) return 1;
    if (call->path != NULL && IsLate(path, atol(rule->a))) *answer = (struct Answer){kFail, ENOENT};
    if (call->call == kOpendir && answer->what != kFail) ListFolder(path);
  } else if (strcmp(rule->what, "stale") == 0) {
    const int fd = call->path == NULL ? call->fd : call->path[0] == '/' ? -1 : call->folder;
    struct stat info;
    if (fd >= 0 && fstat(fd, &info) == 0 && info.st_nlink == 0) *answer = (struct Answer){kFail, ESTALE};
  } else if (strcmp(rule->what, "old") == 0) {
    if (call->path != NULL) answer->what = kOld;
  } else {
    return 0;
  }
  return 1;
}

static struct Answer Meet(const struct Met *call) {
  struct Answer answer = {kGoOn, 0};
  if (busy || (wanted >> call->call & 1) == 0) return answer;
  busy = 1;
  const int error = errno;
  char path[PATH_MAX] = "";
  int has_path = 0;
  // All rules count the call before any rule acts. Otherwise, while one rule waits at this call, a later rule would
  // count another thread's call first.
  long numbers[kRules];
  for (int i = 0; i < rule_count; ++i) {
    const struct Rule *rule = &rules[i];
    numbers[i] = 0;
    if ((rule->calls >> call->call & 1) == 0) continue;
    const int needs_path = rule->where[0] != '*' || strcmp(rule->what, "log") == 0;
    if (needs_path && !has_path) PathOf(call, path, sizeof path);
    has_path |= needs_path;
    if (IsThere(rule, path)) numbers[i] = ++met[i];
  }
  for (int i = 0; i < rule_count; ++i) {
    const struct Rule *rule = &rules[i];
    if (numbers[i] == 0 || numbers[i] < rule->from || numbers[i] > rule->to || Do(rule, call, path)) continue;
    if (IsFar(rule, call, path, &answer)) continue;
    answer.number = atol(rule->a);
    if (strcmp(rule->what, "fail") == 0) {
      answer.what = kFail;
    } else if (strcmp(rule->what, "return") == 0) {
      answer.what = kReturn;
    } else if (strcmp(rule->what, "device") == 0) {
      answer.what = kDevice;
    } else if (strcmp(rule->what, "untyped") == 0) {
      answer.what = kUntyped;
    } else if (strcmp(rule->what, "short") == 0) {  // at most A bytes, or half of them
      answer.what = kShort;
      if (answer.number == 0) answer.number = (long)(call->size / 2 > 1 ? call->size / 2 : 1);
    } else {
      Must(strcmp(rule->what, "count") == 0);
    }
  }
  errno = error;
  busy = 0;
  return answer;
}

static uint64_t CallsOf(char *names) {
  uint64_t calls = 0;
  for (char *rest = names, *name; (name = strsep(&rest, ",")) != NULL;) {
    int call = 0;
    while (call < kCallCount && strcmp(kCalls[call], name) != 0) ++call;
    Must(call < kCallCount);
    calls |= UINT64_C(1) << call;
  }
  return calls;
}

__attribute__((constructor)) static void Start(void) {
  const char *text = getenv("INTERPOSED"), *state = getenv("INTERPOSED_STATE");
  if (text == NULL || *text == 0) return;
  busy = 1;
  if (state != NULL) {
    const int fd = open(state, O_RDWR | O_CREAT, 0666);
    Must(fd >= 0 && ftruncate(fd, sizeof own_state) == 0);
    met = mmap(NULL, sizeof own_state, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    Must(met != MAP_FAILED);
    close(fd);
  }
  uint64_t calls = 0;
  for (char *rest = strdup(text), *line; (line = strsep(&rest, "\n")) != NULL;) {
    Must(rule_count < kRules);
    struct Rule *rule = &rules[rule_count++];
    char *fields[6];
    for (int i = 0; i < 6; ++i) Must((fields[i] = strsep(&line, "\t")) != NULL);
    rule->calls = CallsOf(fields[0]);
    char *end;
    rule->from = strtol(fields[1], &end, 10);
    rule->to = *end == 0 ? rule->from : *end == '-' ? atol(end + 1) : LONG_MAX;
    is_far |= strcmp(fields[3], "late") == 0 || strcmp(fields[3], "old") == 0;
    rule->where = fields[2], rule->what = fields[3], rule->a = fields[4], rule->b = fields[5];
    Must(rule->where[0] != '*' || rule->where[1] == 0);  // Patterns are not supported.
    calls |= rule->calls;
  }
  wanted = calls;
  busy = 0;
}

static void *Find(const char *name) {
  const int before = busy;
  busy = 1;
  void *found = dlsym(RTLD_NEXT, name);
  Must(found != NULL);
  busy = before;
  return found;
}

#define NEXT(result, name, ...)       \
  static result (*next)(__VA_ARGS__); \
  if (next == NULL) *(void **)&next = Find(#name)

// Wraps a function that returns `failed` on errors. The last arguments are the members of its Met.
#define WRAP(result, failed, name, PARAMETERS, ARGUMENTS, ...) \
  result name PARAMETERS {                                     \
    static result(*next) PARAMETERS;                           \
    if (next == NULL) *(void **)&next = Find(#name);           \
    const struct Met call = {__VA_ARGS__};                     \
    const struct Answer answer = Meet(&call);                  \
    if (answer.what == kReturn) return (result)answer.number;  \
    if (answer.what != kFail) {                                \
      result done = next ARGUMENTS;                            \
      if (done != failed) Learn(&call);                        \
      return done;                                             \
    }                                                          \
    errno = (int)answer.number;                                \
    return failed;                                             \
  }

// Wraps reads and writes, which may transfer fewer bytes than requested.
#define WRAP_SIZED(result, name, PARAMETERS, ARGUMENTS, ...)                                 \
  result name PARAMETERS {                                                                   \
    static result(*next) PARAMETERS;                                                         \
    if (next == NULL) *(void **)&next = Find(#name);                                         \
    const struct Met call = {__VA_ARGS__};                                                   \
    const struct Answer answer = Meet(&call);                                                \
    if (answer.what == kShort && size > (size_t)answer.number) size = (size_t)answer.number; \
    if (answer.what != kFail) return next ARGUMENTS;                                         \
    errno = (int)answer.number;                                                              \
    return -1;                                                                               \
  }

static mode_t ModeOf(int flags, va_list more) {
  return (flags & O_CREAT) != 0 || (flags & O_TMPFILE) == O_TMPFILE ? va_arg(more, mode_t) : 0;
}

#define WRAP_OPEN(name)                                                             \
  int name(const char *path, int flags, ...) {                                      \
    NEXT(int, name, const char *, int, ...);                                        \
    va_list more;                                                                   \
    va_start(more, flags);                                                          \
    const mode_t mode = ModeOf(flags, more);                                        \
    va_end(more);                                                                   \
    const struct Met call = {kOpen, AT_FDCWD, path, -1, 0, (flags & O_CREAT) != 0}; \
    const struct Answer answer = Meet(&call);                                       \
    if (answer.what != kFail) {                                                     \
      const int fd = next(path, flags, mode);                                       \
      if (fd >= 0) Learn(&call);                                                    \
      return fd;                                                                    \
    }                                                                               \
    errno = (int)answer.number;                                                     \
    return -1;                                                                      \
  }
WRAP_OPEN(open)
WRAP_OPEN(open64)

#define WRAP_OPENAT(name)                                                         \
  int name(int folder, const char *path, int flags, ...) {                        \
    NEXT(int, name, int, const char *, int, ...);                                 \
    va_list more;                                                                 \
    va_start(more, flags);                                                        \
    const mode_t mode = ModeOf(flags, more);                                      \
    va_end(more);                                                                 \
    const struct Met call = {kOpen, folder, path, -1, 0, (flags & O_CREAT) != 0}; \
    const struct Answer answer = Meet(&call);                                     \
    if (answer.what != kFail) {                                                   \
      const int fd = next(folder, path, flags, mode);                             \
      if (fd >= 0) Learn(&call);                                                  \
      return fd;                                                                  \
    }                                                                             \
    errno = (int)answer.number;                                                   \
    return -1;                                                                    \
  }
WRAP_OPENAT(openat)
WRAP_OPENAT(openat64)

WRAP(int, -1, __open_2, (const char *path, int flags), (path, flags), kOpen, AT_FDCWD, path, -1, 0, 0)
WRAP(FILE *, NULL, fopen, (const char *path, const char *mode), (path, mode), kOpen, AT_FDCWD, path, -1, 0, 0)
WRAP(FILE *, NULL, fopen64, (const char *path, const char *mode), (path, mode), kOpen, AT_FDCWD, path, -1, 0, 0)
WRAP(DIR *, NULL, opendir, (const char *path), (path), kOpendir, AT_FDCWD, path, -1, 0, 0)
WRAP(DIR *, NULL, fdopendir, (int fd), (fd), kOpendir, -1, NULL, fd, 0, 0)

// Returns whether a rule hides this entry of the folder.
static int IsEntryLate(DIR *folder, const char *entry) {
  if (busy || !is_far || entry[0] == '.') return 0;
  busy = 1;
  const struct Met call = {kReaddir, dirfd(folder), entry, -1, 0, 0};
  char path[PATH_MAX];
  PathOf(&call, path, sizeof path);
  pthread_mutex_lock(&names_mutex);
  struct Name *name = NameOf(path);
  if (name != NULL) name->was_missing |= !name->is_listed;
  pthread_mutex_unlock(&names_mutex);
  int is_late = 0;
  for (int i = 0; i < rule_count; ++i) {
    const struct Rule *rule = &rules[i];
    if ((rule->calls >> kReaddir & 1) == 0 || strcmp(rule->what, "late") != 0 || !IsThere(rule, path)) continue;
    is_late |= IsLate(path, atol(rule->a));
  }
  busy = 0;
  return is_late;
}

#define WRAP_READDIR(type, name)                                       \
  struct type *name(DIR *folder) {                                     \
    NEXT(struct type *, name, DIR *);                                  \
    const struct Met call = {kReaddir, -1, NULL, dirfd(folder), 0, 0}; \
    const struct Answer answer = Meet(&call);                          \
    if (answer.what == kFail) errno = (int)answer.number;              \
    if (answer.what == kFail) return NULL;                             \
    struct type *entry;                                                \
    do entry = next(folder);                                           \
    while (entry != NULL && IsEntryLate(folder, entry->d_name));       \
    if (entry != NULL && answer.what == kUntyped)                      \
      entry->d_type = DT_UNKNOWN;                                      \
    return entry;                                                      \
  }
WRAP_READDIR(dirent, readdir)
WRAP_READDIR(dirent64, readdir64)

WRAP_SIZED(ssize_t, read, (int fd, void *to, size_t size), (fd, to, size), kRead, -1, NULL, fd, -1, size)
WRAP_SIZED(ssize_t, pread, (int fd, void *to, size_t size, off_t at), (fd, to, size, at), kPread, -1, NULL, fd, at, size)
WRAP_SIZED(ssize_t, pread64, (int fd, void *to, size_t size, off64_t at), (fd, to, size, at), kPread, -1, NULL, fd, at, size)
WRAP_SIZED(ssize_t, write, (int fd, const void *from, size_t size), (fd, from, size), kWrite, -1, NULL, fd, -1, size)
WRAP(ssize_t, -1, writev, (int fd, const struct iovec *parts, int count), (fd, parts, count), kWrite, -1, NULL, fd, -1, 0)
WRAP_SIZED(ssize_t, pwrite, (int fd, const void *from, size_t size, off_t at), (fd, from, size, at), kPwrite, -1, NULL, fd, at, size)
WRAP_SIZED(ssize_t, pwrite64, (int fd, const void *from, size_t size, off64_t at), (fd, from, size, at), kPwrite, -1, NULL, fd, at, size)

// Replaces the file's state by its state at the first lookup.
static void GrowOld(const struct Met *call, struct stat *info) {
  busy = 1;
  char path[PATH_MAX];
  PathOf(call, path, sizeof path);
  pthread_mutex_lock(&names_mutex);
  struct Name *name = NameOf(path);
  if (name != NULL && name->has_info) *info = name->info;
  if (name != NULL) name->info = *info;
  if (name != NULL) name->has_info = 1;
  pthread_mutex_unlock(&names_mutex);
  busy = 0;
}

#define WRAP_STAT(name, INFO, PARAMETERS, ARGUMENTS, ...)                           \
  int name PARAMETERS {                                                             \
    static int(*next) PARAMETERS;                                                   \
    if (next == NULL) *(void **)&next = Find(#name);                                \
    const struct Met call = {__VA_ARGS__};                                          \
    const struct Answer answer = Meet(&call);                                       \
    if (answer.what == kFail) errno = (int)answer.number;                           \
    if (answer.what == kFail) return -1;                                            \
    const int result = next ARGUMENTS;                                              \
    if (result == 0 && answer.what == kDevice) info->st_dev = (dev_t)answer.number; \
    if (result == 0 && answer.what == kOld) GrowOld(&call, (struct stat *)info);    \
    return result;                                                                  \
  }
WRAP_STAT(stat, stat, (const char *path, struct stat *info), (path, info), kStat, AT_FDCWD, path, -1, 0, 0)
WRAP_STAT(lstat, stat, (const char *path, struct stat *info), (path, info), kStat, AT_FDCWD, path, -1, 0, 0)
WRAP_STAT(fstat, stat, (int fd, struct stat *info), (fd, info), kStat, -1, NULL, fd, 0, 0)
WRAP_STAT(fstatat, stat, (int folder, const char *path, struct stat *info, int flags), (folder, path, info, flags), kStat, folder, path, -1, 0, 0)
WRAP_STAT(stat64, stat64, (const char *path, struct stat64 *info), (path, info), kStat, AT_FDCWD, path, -1, 0, 0)
WRAP_STAT(lstat64, stat64, (const char *path, struct stat64 *info), (path, info), kStat, AT_FDCWD, path, -1, 0, 0)
WRAP_STAT(fstat64, stat64, (int fd, struct stat64 *info), (fd, info), kStat, -1, NULL, fd, 0, 0)
WRAP_STAT(fstatat64, stat64, (int folder, const char *path, struct stat64 *info, int flags), (folder, path, info, flags), kStat, folder, path, -1, 0, 0)
WRAP(int, -1, statx, (int folder, const char *path, int flags, unsigned mask, struct statx *info), (folder, path, flags, mask, info), kStat, folder, path, -1, 0, 0)
WRAP(int, -1, access, (const char *path, int how), (path, how), kAccess, AT_FDCWD, path, -1, 0, 0)
WRAP(int, -1, faccessat, (int folder, const char *path, int how, int flags), (folder, path, how, flags), kAccess, folder, path, -1, 0, 0)
WRAP(ssize_t, -1, readlink, (const char *path, char *to, size_t size), (path, to, size), kReadlink, AT_FDCWD, path, -1, 0, 0)
WRAP(ssize_t, -1, readlinkat, (int folder, const char *path, char *to, size_t size), (folder, path, to, size), kReadlink, folder, path, -1, 0, 0)

WRAP(int, -1, link, (const char *from, const char *to), (from, to), kLink, AT_FDCWD, to, -1, 0, 0)
WRAP(int, -1, linkat, (int from_folder, const char *from, int folder, const char *to, int flags), (from_folder, from, folder, to, flags), kLink, folder, to, -1, 0, 0)
WRAP(int, -1, rename, (const char *from, const char *to), (from, to), kRename, AT_FDCWD, to, -1, 0, 0)
WRAP(int, -1, renameat, (int from_folder, const char *from, int folder, const char *to), (from_folder, from, folder, to), kRename, folder, to, -1, 0, 0)
WRAP(int, -1, renameat2, (int from_folder, const char *from, int folder, const char *to, unsigned flags), (from_folder, from, folder, to, flags), kRename, folder, to, -1, 0, 0)
WRAP(int, -1, unlink, (const char *path), (path), kUnlink, AT_FDCWD, path, -1, 0, 0)
WRAP(int, -1, unlinkat, (int folder, const char *path, int flags), (folder, path, flags), kUnlink, folder, path, -1, 0, 0)
WRAP(int, -1, rmdir, (const char *path), (path), kUnlink, AT_FDCWD, path, -1, 0, 0)
WRAP(int, -1, mkdir, (const char *path, mode_t mode), (path, mode), kMkdir, AT_FDCWD, path, -1, 0, 0)
WRAP(int, -1, mkdirat, (int folder, const char *path, mode_t mode), (folder, path, mode), kMkdir, folder, path, -1, 0, 0)

// Closes the descriptor even if the call must fail.
int close(int fd) {
  NEXT(int, close, int);
  const struct Met call = {kClose, -1, NULL, fd, 0, 0};
  const struct Answer answer = Meet(&call);
  const int result = next(fd);
  if (answer.what != kFail) return result;
  errno = (int)answer.number;
  return -1;
}

WRAP(int, -1, fsync, (int fd), (fd), kFsync, -1, NULL, fd, 0, 0)
WRAP(int, -1, fdatasync, (int fd), (fd), kFdatasync, -1, NULL, fd, 0, 0)
WRAP(int, -1, ftruncate, (int fd, off_t size), (fd, size), kFtruncate, -1, NULL, fd, 0, 0)
WRAP(int, -1, ftruncate64, (int fd, off64_t size), (fd, size), kFtruncate, -1, NULL, fd, 0, 0)
WRAP(int, -1, fallocate, (int fd, int mode, off_t at, off_t size), (fd, mode, at, size), kFallocate, -1, NULL, fd, 0, 0)
WRAP(int, -1, fallocate64, (int fd, int mode, off64_t at, off64_t size), (fd, mode, at, size), kFallocate, -1, NULL, fd, 0, 0)
WRAP(void *, MAP_FAILED, mmap, (void *to, size_t size, int protection, int flags, int fd, off_t at), (to, size, protection, flags, fd, at), kMmap, -1, NULL, fd, at, size)
WRAP(void *, MAP_FAILED, mmap64, (void *to, size_t size, int protection, int flags, int fd, off64_t at), (to, size, protection, flags, fd, at), kMmap, -1, NULL, fd, at, size)
WRAP_SIZED(ssize_t, getrandom, (void *to, size_t size, unsigned flags), (to, size, flags), kGetrandom, -1, NULL, -1, 0, size)
WRAP(int, -1, flock, (int fd, int how), (fd, how), kFlock, -1, NULL, fd, 0, 0)
WRAP(int, -1, statfs, (const char *path, struct statfs *info), (path, info), kStatfs, AT_FDCWD, path, -1, 0, 0)
WRAP(int, -1, fstatvfs, (int fd, struct statvfs *info), (fd, info), kStatfs, -1, NULL, fd, 0, 0)
WRAP(int, -1, fchmod, (int fd, mode_t mode), (fd, mode), kChmod, -1, NULL, fd, 0, 0)
WRAP(int, -1, fchown, (int fd, uid_t user, gid_t group), (fd, user, group), kChmod, -1, NULL, fd, 0, 0)
WRAP(pid_t, -1, fork, (void), (), kFork, -1, NULL, -1, 0, 0)
WRAP(int, -1, pipe2, (int ends[2], int flags), (ends, flags), kPipe, -1, NULL, -1, 0, 0)
WRAP(int, (int)answer.number, pthread_create, (pthread_t *thread, const pthread_attr_t *how, void *(*body)(void *), void *of), (thread, how, body, of), kThread, -1, NULL, -1, 0, 0)

// Wraps system calls that programs make by number.
long syscall(long number, ...) {
  NEXT(long, syscall, long, ...);
  long words[6];
  va_list more;
  va_start(more, number);
  for (int i = 0; i < 6; ++i) words[i] = va_arg(more, long);
  va_end(more);
  struct Answer answer = {kGoOn, 0};
  if (number == SYS_getrandom) {
    const struct Met call = {kGetrandom, -1, NULL, -1, 0, (size_t)words[1]};
    answer = Meet(&call);
    if (answer.what == kShort && words[1] > answer.number) words[1] = answer.number;
  } else if (number == SYS_renameat2) {
    const struct Met call = {kRename, (int)words[2], (const char *)words[3], -1, 0, 0};
    answer = Meet(&call);
  }
  if (answer.what != kFail) {
    const long done = next(number, words[0], words[1], words[2], words[3], words[4], words[5]);
    if (number == SYS_renameat2 && done == 0) {
      const struct Met call = {kRename, (int)words[2], (const char *)words[3], -1, 0, 0};
      Learn(&call);
    }
    return done;
  }
  errno = (int)answer.number;
  return -1;
}

// Memory. The loader needs some before it can find any function.
extern void *__libc_malloc(size_t), *__libc_calloc(size_t, size_t), *__libc_realloc(void *, size_t);
extern void *__libc_memalign(size_t, size_t);

// The path of such a call is the calling library's. dladdr() would also search for the function, which is too slow:
// a command allocates memory ten thousand times.
static int IsRefused(void *caller, size_t size) {
  const char *library = "";
  struct dl_find_object of;
  if (!busy && (wanted >> kMalloc & 1) != 0 && _dl_find_object(caller, &of) == 0) library = of.dlfo_link_map->l_name;
  // The program itself has an empty name.
  const struct Met call = {kMalloc, -1, *library != 0 ? library : "/", -1, 0, size};
  const int refused = Meet(&call).what == kFail;
  if (refused) errno = ENOMEM;
  return refused;
}
#define IS_REFUSED(size) IsRefused(__builtin_return_address(0), size)

void *malloc(size_t size) { return IS_REFUSED(size) ? NULL : __libc_malloc(size); }
void *calloc(size_t count, size_t size) { return IS_REFUSED(count * size) ? NULL : __libc_calloc(count, size); }
void *realloc(void *old, size_t size) { return IS_REFUSED(size) ? NULL : __libc_realloc(old, size); }
void *aligned_alloc(size_t unit, size_t size) { return IS_REFUSED(size) ? NULL : __libc_memalign(unit, size); }
int posix_memalign(void **to, size_t unit, size_t size) {
  if (IS_REFUSED(size)) return ENOMEM;
  *to = __libc_memalign(unit, size);
  return *to == NULL ? ENOMEM : 0;
}
