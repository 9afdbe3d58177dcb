"""Runs the program on real file systems, by hand and as root:

    apt-get install bindfs btrfs-progs dosfstools exfat-fuse exfatprogs fuse2fs glusterfs-client glusterfs-server \
        nfs-kernel-server ntfs-3g openssh-server rclone sshfs xfsprogs
    build/venv/bin/python tests/filesystems.py [NAME...]      NAME: of FILE_SYSTEMS; default: all of them

Each file system is mounted from its own disk in a folder of this run. Commands that write folders run there
undisturbed, without O_DIRECT, killed at random and restarted, two equal ones at once, and on a disk that becomes full.
All files must have the same bytes as on the file system of the temporary folder. File systems that are mounted twice,
each mount with its own caches and locks, simulate two machines: runs continue through one mount what others did through
the other. A line reports the runs on each file system, and the last lines those that could not be mounted, with the
reason. The exit status is 1 if anything was wrong. It takes about 8 minutes."""

import collections
import contextlib
import errno
import getpass
import os
import pathlib
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import traceback

sys.path.insert(0, str(pathlib.Path(__file__).parent / "python"))

from interposed import interposed, rule  # noqa: E402
from support import AWKWARD, BINARY, CLEAN, run_ok, run_tool, tree_of  # noqa: E402

MEBIBYTES = 320  # size of a disk; xfs needs at least 300
ROOM = 24 << 20  # bytes left on it before it becomes full
TURNS = 3  # repetitions of random disturbances for each command
NO_DIRECT = interposed(rule("open", "fail", errno.EINVAL, where="/proc/self/fd/"))
# Boxes of all kinds, some of several MB, which are written past the cache.
SPEC = AWKWARD + "  large: {shape: [1024, 1536], axes: [x, y], init: {normal: {std: 0.02}}}\n"

# Each makes the folder named last. The current folder has `spec.yaml`, and `source` and `weights` made from it.
COMMANDS = {
    "gen": ["gen", "spec.yaml", "-o"],
    "reshard": ["reshard", "source", "--mesh", "a=4,b=1", "--uneven", "chunk", "-o"],
    "export --to dcp": ["export", "spec.yaml", "--to", "dcp", "-o"],
    "export --to zarr": ["export", "source", "--to", "zarr", "-o"],
    "convert --to hdf5": ["convert", "weights", "--to", "hdf5", "-o"],
    "convert --to safetensors": ["convert", "source", "--to", "safetensors", "-o"],
}
PARTS = {
    "gen": ["gen", "spec.yaml", "-o"],
    "reshard": ["reshard", "source", "--mesh", "a=2,b=2", "--uneven", "chunk", "-o"],
    "convert": ["convert", "weights", "--to", "dcp", "--sharding", "fsdpv2", "--mesh", "fsdp=4", "-o"],
}


class CannotMount(Exception):
    """The kernel or a package lacks this file system."""


def call(*command):
    """Runs a command that mounts or makes a file system."""
    try:
        done = subprocess.run([*map(str, command)], capture_output=True, text=True, stdin=subprocess.DEVNULL)
    except FileNotFoundError:
        raise CannotMount(f"there is no {command[0]} here") from None
    if done.returncode:
        said = " ".join((done.stderr + done.stdout).split())
        raise CannotMount(f"{command[0]}: {said or done.returncode}")
    return done.stdout.strip()


def wait_for(condition, seconds=10):
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise CannotMount("it did not answer in time")
        time.sleep(0.02)


# File systems ---------------------------------------------------------------------

class Machine:
    """The parts of a file system: folders, disks, mounts and servers. All of them end with the block."""

    def __init__(self, folder):
        self.folder, self.stack, self.names = folder, contextlib.ExitStack(), 0
        self.below = None  # the mounted folder as its server sees it
        self.is_changed_below = True  # whether it may be changed there too

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stack.close()

    def path(self):
        self.names += 1
        return self.folder / str(self.names)

    def empty(self):
        path = self.path()
        path.mkdir()
        return path

    def mount(self, *command):
        """Mounts at a new folder, which is the command's last word."""
        place = self.empty()
        call(*command, place)
        # FUSE's daemons may still be ending when the next file system needs their disk.
        self.stack.callback(self.unmount, place)
        wait_for(lambda: os.path.ismount(place))
        return place

    @staticmethod
    def unmount(place):
        for _ in range(100):
            if subprocess.run(["umount", place], capture_output=True).returncode == 0:
                return
            time.sleep(0.05)
        subprocess.run(["umount", "--lazy", place], check=True)

    def image(self):
        image = self.path()
        with open(image, "wb") as file:
            file.truncate(MEBIBYTES << 20)
        return image

    def loop(self, sector):
        """Makes a block device with sectors of this size."""
        device = call("losetup", "--show", "--find", "--sector-size", sector, self.image())
        self.stack.callback(subprocess.run, ["losetup", "--detach", device], check=True)
        return device

    def start(self, *command):
        try:
            server = subprocess.Popen([*map(str, command)], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                      stderr=subprocess.DEVNULL)
        except FileNotFoundError:
            raise CannotMount(f"there is no {command[0]} here") from None
        self.stack.callback(server.wait)
        self.stack.callback(server.terminate)
        return server


def free_port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def answers(port):
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
        return True
    return False


def require_kernel(kind):
    """Checks that the kernel has a file system or a module for it."""
    def has_it():
        return kind in pathlib.Path("/proc/filesystems").read_text().split()

    if not has_it() and shutil.which("modprobe"):
        subprocess.run(["modprobe", kind], capture_output=True, check=False)
    if not has_it():
        raise CannotMount(f"this kernel has no {kind}")


def tmpfs(machine):
    return [machine.mount("mount", "-t", "tmpfs", "-o", f"size={MEBIBYTES}m", "none")]


def on_loop(kind, sector, *make):
    def mount(machine):
        require_kernel(kind)
        device = machine.loop(sector)
        call(*make, device)
        return [machine.mount("mount", "-t", kind, device)]
    return mount


def ext4(machine):
    return on_loop("ext4", 512, "mkfs.ext4", "-q", "-m", "0")(machine)


def overlayfs(machine):
    """Mounts over a folder with files, so that the run replaces files of a lower layer."""
    (disk,) = ext4(machine)
    for name in ("lower", "upper", "work"):
        (disk / name).mkdir()
    options = f"lowerdir={disk}/lower,upperdir={disk}/upper,workdir={disk}/work"
    return [machine.mount("mount", "-t", "overlay", "-o", options, "none")]


def bindfs(machine):
    (machine.below,) = ext4(machine)
    return [machine.mount("bindfs", machine.below) for _ in range(2)]


def sshfs(machine):
    """Mounts one server twice; each mount caches attributes for 20 seconds, the default."""
    (machine.below,) = ext4(machine)
    keys, port = machine.empty(), free_port()
    for name in ("host", "user"):
        call("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", keys / name)
    (keys / "user.pub").chmod(0o600)
    pathlib.Path("/run/sshd").mkdir(exist_ok=True)
    machine.start("/usr/sbin/sshd", "-D", "-f", "/dev/null", "-h", keys / "host", "-p", port,
                  "-o", "ListenAddress=127.0.0.1", "-o", f"AuthorizedKeysFile={keys}/user.pub", "-o", "PidFile=none",
                  "-o", "StrictModes=no", "-o", "UsePAM=no", "-o", "PermitRootLogin=prohibit-password",
                  "-o", "Subsystem=sftp internal-sftp")
    wait_for(lambda: answers(port))
    options = f"port={port},IdentityFile={keys}/user,StrictHostKeyChecking=no,UserKnownHostsFile=/dev/null"
    return [machine.mount("sshfs", "-o", options, f"{getpass.getuser()}@127.0.0.1:{machine.below}") for _ in range(2)]


# GlusterFS's own tools would write this for a volume of one brick; no management daemon runs.
BRICK = """
volume posix
  type storage/posix
  option directory {disk}
end-volume
volume locks
  type features/locks
  subvolumes posix
end-volume
volume server
  type protocol/server
  option transport-type tcp
  option transport.socket.listen-port {port}
  option transport.socket.bind-address 127.0.0.1
  option auth.addr.locks.allow 127.0.0.1
  subvolumes locks
end-volume
"""
CLIENT = """
volume remote
  type protocol/client
  option transport-type tcp
  option remote-host 127.0.0.1
  option remote-port {port}
  option remote-subvolume locks
end-volume
volume write-behind
  type performance/write-behind
  subvolumes remote
end-volume
volume md-cache
  type performance/md-cache
  subvolumes write-behind
end-volume
"""


def glusterfs(machine):
    (machine.below,) = on_loop("xfs", 512, "mkfs.xfs", "-q")(machine)
    machine.is_changed_below = False  # It keeps a second name of each file.
    port, files = free_port(), machine.empty()
    for name, text in {"brick": BRICK, "client": CLIENT}.items():
        (files / name).write_text(text.format(disk=machine.below, port=port))
    machine.start("glusterfsd", "--no-daemon", "-f", files / "brick", "-l", files / "brick.log")
    wait_for(lambda: answers(port))
    return [machine.mount("glusterfs", "-f", files / "client", "-l", files / f"{i}.log") for i in range(2)]


def nfs(machine):
    """Uses the kernel's server and client on one machine."""
    require_kernel("nfs4")
    (machine.below,) = ext4(machine)
    call("rpc.nfsd", "4")
    machine.stack.callback(subprocess.run, ["rpc.nfsd", "0"], check=True)
    call("exportfs", "-o", "rw,no_root_squash,insecure,fsid=1", f"127.0.0.1:{machine.below}")
    machine.stack.callback(subprocess.run, ["exportfs", "-u", f"127.0.0.1:{machine.below}"], check=True)
    # Without this option, two mounts of one export share their caches.
    return [machine.mount("mount", "-t", "nfs4", "-o", "nosharecache", f"127.0.0.1:{machine.below}") for _ in range(2)]


def fuse2fs(machine):
    image = machine.image()
    call("mkfs.ext4", "-q", "-F", "-m", "0", image)
    return [machine.mount("fuse2fs", "-o", "fakeroot", image)]


def exfat(machine):
    """Has no hard links, and FUSE invents the inodes."""
    device = machine.loop(512)
    call("mkfs.exfat", device)
    return [machine.mount("mount.exfat-fuse", device)]


def ntfs(machine):
    device = machine.loop(512)
    call("mkfs.ntfs", "--quiet", "--fast", device)
    return [machine.mount("ntfs-3g", device)]


FILE_SYSTEMS = {
    "tmpfs": tmpfs,
    "ext4 of 512-byte sectors": ext4,
    "ext4 of 4096-byte sectors": on_loop("ext4", 4096, "mkfs.ext4", "-q", "-m", "0"),
    "xfs of 512-byte sectors": on_loop("xfs", 512, "mkfs.xfs", "-q"),
    "xfs of 4096-byte sectors": on_loop("xfs", 4096, "mkfs.xfs", "-q"),
    "btrfs": on_loop("btrfs", 512, "mkfs.btrfs", "-q"),
    "vfat": on_loop("vfat", 512, "mkfs.vfat"),
    "overlayfs": overlayfs,
    "NFS": nfs,
    "bindfs, twice": bindfs,
    "sshfs, twice": sshfs,
    "GlusterFS, twice": glusterfs,
    "ext4 by fuse2fs": fuse2fs,
    "exFAT by exfat-fuse": exfat,
    "NTFS by ntfs-3g": ntfs,
}


# Runs on a file system -----------------------------------------------------------

def is_temporary(path):
    return any(re.fullmatch(r"\..*\.(tmp-[0-9a-f]{16}-[0-9a-f]{16}|part-[0-9a-f]{16})|\w+\.parts", part)
               for part in pathlib.PurePath(path).parts)


class Wanted:
    """The expected results: what each command makes on the file system of the temporary folder."""

    def __init__(self, folder):
        self.folder, self.trees = folder, {}
        self.make_inputs(folder)
        for name, words in [*COMMANDS.items(), *((f"{name} of ranks", words) for name, words in PARTS.items())]:
            run_ok(*words, "out", cwd=folder)
            self.trees[name] = tree_of(folder / "out")
            shutil.rmtree(folder / "out")

    @staticmethod
    def make_inputs(folder):
        (folder / "spec.yaml").write_text(SPEC)
        run_ok("gen", "spec.yaml", "-o", "source", cwd=folder)
        run_ok("export", "spec.yaml", "--to", "safetensors", "-o", "weights", cwd=folder)


class Place:
    """A file system, and the results there."""

    def __init__(self, mounts, machine, wanted, chance):
        # A mount may show old state, so the server's side is checked.
        self.mounts, self.below, self.wanted, self.chance = mounts, machine.below or mounts[0], wanted, chance
        self.changed = self.below if machine.is_changed_below else mounts[0]
        probe = mounts[0] / "probe"
        probe.mkdir(0o700)
        self.has_modes = probe.stat().st_mode & 0o777 == 0o700
        probe.rmdir()
        self.counts, self.seconds, self.wrong, self.serial, self.direct = collections.Counter(), {}, [], 0, False

    def note(self, what):
        if what not in self.wrong:
            self.wrong.append(what)
            print(f"  wrong: {what}", flush=True)

    def need(self, holds, what):
        if not holds:
            self.note(what)
        return holds

    def out(self):
        self.serial += 1
        return f"out{self.serial}"

    def run(self, *words, mount=0, **options):
        self.counts["commands"] += 1
        return run_tool(*words, cwd=self.mounts[mount], timeout=300, **options)

    def begin(self, *words, mount=0):
        self.counts["commands"] += 1
        return subprocess.Popen([BINARY, *map(str, words)], cwd=self.mounts[mount], env=CLEAN, text=True,
                                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    def check(self, name, out, why):
        """Checks that the folder has the bytes of the undisturbed run and nothing is next to it, and removes it."""
        found = tree_of(self.below / out)
        # FUSE keeps a file that was removed while open under such a name, until its last user has closed it.
        kept = {path: data for path, data in found.items()
                if not is_temporary(path) and not path.rpartition("/")[2].startswith(".fuse_hidden")}
        different = sorted(path for path in {*kept, *self.wanted.trees[name]}
                           if kept.get(path, b"-") != self.wanted.trees[name].get(path, b"-"))
        self.need(not different, f"{name}, {why}: other bytes in {different}")
        left = sorted({path for path in found if is_temporary(path)} |
                      {path.name for path in self.below.iterdir()
                       if path.name.startswith((f".{out}.", f"{out}."))})
        # Locks of the other mount are not visible, so files of a killed run there stay for hours. If modes are not
        # kept, a killed copy's folder may belong to anyone, so it stays.
        open_ones = [path for path in left if ".part-" in path and not self.has_modes]
        self.counts["left"] += len(left)
        self.need(len(self.mounts) > 1 or left == open_ones, f"{name}, {why}: left {left}")
        self.remove(out, *left)

    def remove(self, *names):
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                path = self.changed / name
                shutil.rmtree(path) if path.is_dir() else path.unlink()

    def ends_well(self, name, words, out, why, mount=0):
        """Runs the command again until it succeeds, as a job does after status 3."""
        for _ in range(10):
            result = self.run(*words, out, mount=mount)
            if result.returncode != 3:
                break
            self.counts["tried again"] += 1
            time.sleep(1)
        return self.need(result.returncode == 0, f"{name}, {why}: exit {result.returncode}: {result.stderr}")

    # Each function below is a kind of disturbance.

    def undisturbed(self):
        for name, words in COMMANDS.items():
            for how, env in {"undisturbed": {}, "without O_DIRECT": NO_DIRECT}.items():
                out = self.out()
                begin = time.monotonic()
                result = self.run(*words, out, env=env)
                self.seconds[name] = time.monotonic() - begin
                if self.need(result.returncode == 0, f"{name}, {how}: exit {result.returncode}: {result.stderr}"):
                    again = self.run(*words, out)
                    self.need(again.returncode == 0, f"{name}, again: exit {again.returncode}: {again.stderr}")
                    self.check(name, out, how)
        result = self.run("gen", "spec.yaml", "-o", "stats", "--stats")
        past = re.search(r"([\d,]+) of [\d,]+ bytes written with O_DIRECT", result.stderr)
        self.direct = past is not None and past[1] != "0"
        self.remove("stats")

    def readers(self):
        """Commands that read a folder print the same as elsewhere, and notice a flipped bit."""
        last = len(self.mounts) - 1
        for words in (["verify", "source"], ["verify", "source", "--spec", "spec.yaml"], ["verify", "weights"],
                      ["verify", "weights", "--spec", "spec.yaml"], ["digest", "weights"], ["status", "source"],
                      ["diff", "source", "weights", "--values"], ["stats", "source"],
                      ["inspect", "source/ranks/rank-00001.h5"]):
            there, here = self.run(*words, mount=last), run_tool(*words, cwd=self.wanted.folder)
            self.need((there.returncode, there.stdout) == (here.returncode, here.stdout), f"{words}: {there}")
        shutil.copytree(self.mounts[0] / "source", self.mounts[0] / "bad")
        with open(self.mounts[0] / "bad/ranks/rank-00001.h5", "r+b") as file:
            file.seek(-7, os.SEEK_END)
            byte = file.read(1)[0]
            file.seek(-7, os.SEEK_END)
            file.write(bytes([byte ^ 1]))
        self.need(self.run("verify", "bad").returncode == 1, "verify did not see a flipped bit")
        repaired = self.run("gen", "spec.yaml", "--repair", "-o", "bad")
        self.need(repaired.returncode == 0 and tree_of(self.below / "bad") == self.wanted.trees["gen"],
                  f"gen --repair: {repaired}")
        self.remove("bad")

    def killed(self):
        for name, words in COMMANDS.items():
            for _ in range(TURNS):
                out = self.out()
                for _ in range(self.chance.randint(1, 3)):
                    run = self.begin(*words, out)
                    time.sleep(self.chance.random() * self.seconds[name])
                    run.send_signal(signal.SIGKILL)
                    run.communicate()
                    self.counts["killed"] += run.returncode == -signal.SIGKILL
                mount = self.chance.randrange(len(self.mounts))
                if self.ends_well(name, words, out, "killed and run again", mount):
                    self.check(name, out, "killed and run again")

    def at_once(self):
        """Starts two equal runs, and lets several runs make ranks together."""
        for name, words in COMMANDS.items():
            for _ in range(TURNS):
                self.together(name, [words, words], "two at once")
        for name, words in PARTS.items():
            ranks = ["0-1", "2-3"] if self.chance.random() < 0.5 else ["0-2", "1-3"]
            halves = [[*words[:-1], "--ranks", which, "-o"] for which in ranks]
            for _ in range(TURNS):
                self.together(f"{name} of ranks", halves, "ranks at once")

    def together(self, name, commands, why):
        out, runs = self.out(), []
        for number, words in enumerate(commands):
            runs.append(self.begin(*words, out, mount=number % len(self.mounts)))
            time.sleep(self.chance.random() * 0.02)
        for run in runs:
            _, stderr = run.communicate(timeout=300)
            is_busy = run.returncode == 4 and "another process" in stderr
            self.counts["busy"] += is_busy
            self.counts["tried again"] += run.returncode == 3
            self.need(run.returncode in (0, 3) or is_busy, f"{name}, {why}: exit {run.returncode}: {stderr}")
        whole = PARTS[name.removesuffix(" of ranks")] if name.endswith(" of ranks") else COMMANDS[name]
        if name.endswith(" of ranks"):  # Each run may have checked before it could see the other's last rank.
            whole = [*whole[:-1], "--ranks", "0-3", "-o"]
        mount = self.chance.randrange(len(self.mounts))
        if self.ends_well(name, whole, out, why, mount):
            self.check(name, out, why)

    def finalized(self):
        for _ in range(TURNS):
            out = self.out()
            for ranks in ("0-2", "3"):
                self.run("gen", "spec.yaml", "--ranks", ranks, "-o", out, mount=self.chance.randrange(len(self.mounts)))
            for name in ("manifest.json", "index.h5"):
                (self.changed / out / name).unlink(missing_ok=True)
            runs = [self.begin("finalize", out, mount=i % len(self.mounts)) for i in range(2)]
            for run in runs:
                _, stderr = run.communicate(timeout=300)
                self.need(run.returncode in (0, 3), f"finalize: exit {run.returncode}: {stderr}")
            if self.ends_well("finalize", ["finalize"], out, "two at once"):
                self.check("gen", out, "finalized")

    def full(self):
        """A full disk is reported, and with free space the same command succeeds."""
        fill(self.below / "most", leave=ROOM)
        for name, words in COMMANDS.items():
            size = sum(len(data) for data in self.wanted.trees[name].values() if data is not None)
            for share in (0, 0.3, 0.9):
                out = self.out()
                fill(self.below / "rest", leave=int(size * share))
                result = self.run(*words, out)
                (self.below / "rest").unlink()
                call("sync", "--file-system", self.below)  # Some free the space only on sync.
                said = "No space left on device" in result.stderr or " free\n" in result.stderr
                self.counts["full"] += said
                # Protocols such as SFTP have no error code for a full disk.
                self.need(result.returncode == 0 or (result.returncode == 3 and (said or self.below != self.mounts[0])),
                          f"{name}, full at {share} of it: exit {result.returncode}: {result.stderr}")
                if self.ends_well(name, words, out, "on a disk that was full"):
                    self.check(name, out, "on a disk that was full")
        (self.below / "most").unlink()


def fill(path, leave):
    """Fills the file system except for `leave` bytes."""
    zeros = bytes(1 << 20)
    with open(path, "wb", buffering=0) as file:
        for size in (1 << 20, 1 << 12):
            with contextlib.suppress(OSError):
                while file.write(zeros[:size]):
                    pass
        with contextlib.suppress(OSError):
            os.fsync(file.fileno())
        file.truncate(max(0, file.tell() - leave))
    call("sync", "--file-system", path.parent)


def file_system_type(mount):
    return call("findmnt", "--noheadings", "--output", "FSTYPE", "--target", mount)


def try_file_system(name, folder, wanted, seed):
    """Returns the errors on a file system."""
    begin = time.monotonic()
    with Machine(folder) as machine:
        mounts = FILE_SYSTEMS[name](machine)
        place = Place(mounts, machine, wanted, random.Random(f"{seed} {name}"))
        Wanted.make_inputs(mounts[0])
        for disturbed in (place.undisturbed, place.readers, place.killed, place.at_once, place.finalized, place.full):
            try:
                disturbed()
            except Exception:
                place.note(f"{disturbed.__name__}: {traceback.format_exc()}")
        counts = ", ".join(f"{count} {what}" for what, count in sorted(place.counts.items()) if count)
        print(f"{name} ({file_system_type(mounts[0])}, {'with' if place.direct else 'no'} O_DIRECT, "
              f"{'with' if place.has_modes else 'no'} modes): {counts}; "
              f"{len(place.wrong)} wrong; {time.monotonic() - begin:.0f} s", flush=True)
        return place.wrong


def refuses_buckets(folder):
    """Mounts of an object store are rejected by their type."""
    with Machine(folder) as machine:
        store = machine.empty()
        mount = machine.mount("rclone", "mount", "--daemon", f":local:{store}")
        result = run_tool("gen", "llama3-tiny", "-o", mount / "out")
        said = result.returncode == 2 and "is in a mount of an object store" in result.stderr
        print(f"rclone ({file_system_type(mount)}): {'refused' if said else f'wrong: {result}'}", flush=True)
        return [] if said else ["not refused"]


def main(names, seed):
    print(f"seed {seed}", flush=True)
    wrong, missing = 0, {}
    with tempfile.TemporaryDirectory() as scratch:
        reference = pathlib.Path(scratch, "wanted")
        reference.mkdir()
        wanted = Wanted(reference)
        jobs = {name: lambda folder, name=name: try_file_system(name, folder, wanted, seed) for name in FILE_SYSTEMS}
        jobs["rclone"] = refuses_buckets
        for number, name in enumerate(names or jobs):
            folder = pathlib.Path(scratch, f"machine{number}")
            folder.mkdir()
            try:
                wrong += len(jobs[name](folder))
            except CannotMount as why:
                missing[name] = why
    for name, why in missing.items():
        print(f"not tried: {name}: {why}")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], int(os.environ.get("SHARDINIT_GENERATED_SEED", time.time()))))
