"""A library that a test loads into shardinit, which changes a folder while it is read: before the n-th
read of a file in it, which is the same one each time where one thread reads. It also kills: before a read,
or before the n-th time that the disk is told something, a name or to keep what was written."""

import functools
import os
import subprocess
import tempfile

LIBRARY = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static atomic_long reads, steps;

/* Lines `READ xor|cut|move|swap|kill PATH NUMBER|OTHER`. */
static void Change(long read) {
  const char *lines = getenv("CHANGING");
  char what[8], path[512], other[512];
  long when;
  while (lines != NULL && sscanf(lines, "%ld %7s %511s %511s", &when, what, path, other) == 4) {
    if (when == read) {
      if (strcmp(what, "kill") == 0) raise(SIGKILL);
      if (strcmp(what, "cut") == 0 && truncate(path, atol(other)) != 0) abort();
      if (strcmp(what, "move") == 0 && rename(other, path) != 0) abort();
      if (strcmp(what, "swap") == 0 &&
          renameat2(AT_FDCWD, other, AT_FDCWD, path, RENAME_EXCHANGE) != 0) abort();
      if (strcmp(what, "xor") == 0) {
        const int fd = open(path, O_RDWR);
        unsigned char byte;
        static ssize_t (*next)(int, void *, size_t, off_t);
        *(void **)&next = dlsym(RTLD_NEXT, "pread");
        if (fd < 0 || next(fd, &byte, 1, atol(other)) != 1) abort();
        byte ^= 0x41;
        if (pwrite(fd, &byte, 1, atol(other)) != 1) abort();
        close(fd);
      }
    }
    lines = strchr(lines, '\n');
    if (lines != NULL) ++lines;
  }
}

/* A line `PATH OFFSET BYTES` for each read. */
static void Log(const char *path, off_t offset, size_t size) {
  const char *name = getenv("CHANGING_LOG");
  char line[640];
  const int fd = name != NULL ? open(name, O_WRONLY | O_CREAT | O_APPEND, 0666) : -1;
  if (fd < 0) return;
  const int length = snprintf(line, sizeof line, "%s %ld %zu\n", path, (long)offset, size);
  if (write(fd, line, (size_t)length) != length) abort();
  close(fd);
}

static void Note(int fd, off_t offset, size_t size) {
  char link[64], path[512];
  const char *folder = getenv("CHANGING_FOLDER");
  snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  const ssize_t length = readlink(link, path, sizeof path - 1);
  if (folder == NULL || length <= 0) return;
  path[length] = 0;
  if (strncmp(path, folder, strlen(folder)) != 0) return;
  Log(path, offset, size);
  Change(++reads);
}

ssize_t read(int fd, void *to, size_t size) {
  static ssize_t (*next)(int, void *, size_t);
  *(void **)&next = dlsym(RTLD_NEXT, "read");
  Note(fd, lseek(fd, 0, SEEK_CUR), size);
  return next(fd, to, size);
}

ssize_t pread(int fd, void *to, size_t size, off_t offset) {
  static ssize_t (*next)(int, void *, size_t, off_t);
  *(void **)&next = dlsym(RTLD_NEXT, "pread");
  Note(fd, offset, size);
  return next(fd, to, size, offset);
}

ssize_t pread64(int fd, void *to, size_t size, off_t offset) { return pread(fd, to, size, offset); }

static void Step(void) {
  const char *killed = getenv("CHANGING_KILL");
  if (++steps == (killed != NULL ? atol(killed) : 0)) raise(SIGKILL);
}

int fsync(int fd) {
  static int (*next)(int);
  *(void **)&next = dlsym(RTLD_NEXT, "fsync");
  Step();
  return next(fd);
}

int fdatasync(int fd) {
  static int (*next)(int);
  *(void **)&next = dlsym(RTLD_NEXT, "fdatasync");
  Step();
  return next(fd);
}

int renameat(int from_folder, const char *from, int folder, const char *to) {
  static int (*next)(int, const char *, int, const char *);
  *(void **)&next = dlsym(RTLD_NEXT, "renameat");
  Step();
  return next(from_folder, from, folder, to);
}

__attribute__((destructor)) static void Say(void) {
  FILE *file = getenv("CHANGING_COUNT") != NULL ? fopen(getenv("CHANGING_COUNT"), "w") : NULL;
  if (file == NULL) return;
  fprintf(file, "%ld %ld", (long)reads, (long)steps);
  fclose(file);
}
"""


@functools.cache
def library():
    folder = tempfile.mkdtemp(prefix="shardinit-changing-")
    path = os.path.join(folder, "changing.so")
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-x", "c", "-", "-o", path, "-ldl"],
                   input=LIBRARY, text=True, check=True)
    return path


def changing(folder, *changes, count=None, log=None, kill=None):
    """An environment: before its n-th read in the folder, a process does `n xor|cut|move|swap|kill PATH WITH`.

    `count` is a file for the numbers of reads and of steps, `log` one for where each read is, and `kill` the
    number of the step before which it is killed: a sync, or a name that is given.
    """
    return {"LD_PRELOAD": library(), "CHANGING_FOLDER": f"{folder}/", "CHANGING": "\n".join(changes),
            **({"CHANGING_COUNT": str(count)} if count else {}), **({"CHANGING_LOG": str(log)} if log else {}),
            **({"CHANGING_KILL": str(kill)} if kill else {})}
