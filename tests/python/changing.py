"""A library that a test loads into shardinit, which changes a folder while it is read: before the n-th
read of a file in it, which is the same one each time where one thread reads."""

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

static atomic_long reads;

/* Lines `READ xor|cut|move|kill PATH NUMBER|OTHER`. */
static void Change(long read) {
  const char *lines = getenv("CHANGING");
  char what[8], path[512], other[512];
  long when;
  while (lines != NULL && sscanf(lines, "%ld %7s %511s %511s", &when, what, path, other) == 4) {
    if (when == read) {
      if (strcmp(what, "kill") == 0) raise(SIGKILL);
      if (strcmp(what, "cut") == 0 && truncate(path, atol(other)) != 0) abort();
      if (strcmp(what, "move") == 0 && rename(other, path) != 0) abort();
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

static void Note(int fd) {
  char link[64], path[512];
  const char *folder = getenv("CHANGING_FOLDER");
  snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  const ssize_t size = readlink(link, path, sizeof path - 1);
  if (folder == NULL || size <= 0) return;
  path[size] = 0;
  if (strncmp(path, folder, strlen(folder)) == 0) Change(++reads);
}

ssize_t read(int fd, void *to, size_t size) {
  static ssize_t (*next)(int, void *, size_t);
  *(void **)&next = dlsym(RTLD_NEXT, "read");
  Note(fd);
  return next(fd, to, size);
}

ssize_t pread(int fd, void *to, size_t size, off_t offset) {
  static ssize_t (*next)(int, void *, size_t, off_t);
  *(void **)&next = dlsym(RTLD_NEXT, "pread");
  Note(fd);
  return next(fd, to, size, offset);
}

ssize_t pread64(int fd, void *to, size_t size, off_t offset) { return pread(fd, to, size, offset); }

__attribute__((destructor)) static void Say(void) {
  FILE *file = getenv("CHANGING_COUNT") != NULL ? fopen(getenv("CHANGING_COUNT"), "w") : NULL;
  if (file == NULL) return;
  fprintf(file, "%ld", (long)reads);
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


def changing(folder, *changes, count=None):
    """An environment: before its n-th read in the folder, a process does `n xor|cut|move|kill PATH WITH`."""
    return {"LD_PRELOAD": library(), "CHANGING_FOLDER": f"{folder}/", "CHANGING": "\n".join(changes),
            **({"CHANGING_COUNT": str(count)} if count else {})}
