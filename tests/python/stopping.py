"""A library that a test loads into shardinit, which stops a process before a call on a file, until the
test lets it go: so two processes meet where one would have to wait long for it to happen."""

import functools
import os
import pathlib
import subprocess
import tempfile
import time

from support import BINARY, CLEAN

LIBRARY = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* STOPPING: `CALL NAME GATE`. Whoever comes there makes GATE.reached, and waits for GATE.open. */
static void Wait(const char *call, const char *path) {
  char wanted[16], name[256], gate[512], file[528];
  const char *stopping = getenv("STOPPING"), *slash = strrchr(path, '/');
  if (stopping == NULL || sscanf(stopping, "%15s %255s %511s", wanted, name, gate) != 3) return;
  if (strcmp(call, wanted) != 0 || strcmp(slash == NULL ? path : slash + 1, name) != 0) return;
  snprintf(file, sizeof file, "%s.reached", gate);
  close(open(file, O_WRONLY | O_CREAT, 0666));
  snprintf(file, sizeof file, "%s.open", gate);
  while (access(file, F_OK) != 0) usleep(1000);
}

int renameat(int from_folder, const char *from, int folder, const char *to) {
  static int (*next)(int, const char *, int, const char *);
  *(void **)&next = dlsym(RTLD_NEXT, "renameat");
  Wait("renameat", to);
  return next(from_folder, from, folder, to);
}

int fsync(int fd) {
  static int (*next)(int);
  *(void **)&next = dlsym(RTLD_NEXT, "fsync");
  char link[64], path[512];
  snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  const ssize_t size = readlink(link, path, sizeof path - 1);
  path[size < 0 ? 0 : size] = 0;
  Wait("fsync", path);
  return next(fd);
}
"""


@functools.cache
def library():
    folder = tempfile.mkdtemp(prefix="shardinit-stopping-")
    path = os.path.join(folder, "stopping.so")
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-x", "c", "-", "-o", path, "-ldl"],
                   input=LIBRARY, text=True, check=True)
    return path


class Stopped:
    """A run that has come to `call` (`renameat`: to the name; `fsync`) on a file of this name, and waits there."""

    def __init__(self, folder, call, name, *words):
        self.gate = pathlib.Path(tempfile.mkdtemp(dir=folder)) / "gate"
        self.run = subprocess.Popen([BINARY, *map(str, words)], text=True, stdin=subprocess.DEVNULL,
                                    stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                    env={**CLEAN, "LD_PRELOAD": library(), "STOPPING": f"{call} {name} {self.gate}"})
        while not pathlib.Path(f"{self.gate}.reached").exists():
            assert self.run.poll() is None, self.run.communicate()
            time.sleep(0.002)

    def go(self):
        """Lets it go to its end, and returns its status and its output."""
        pathlib.Path(f"{self.gate}.open").touch()
        _, stderr = self.run.communicate(timeout=60)
        return self.run.returncode, stderr
