"""A folder that changes while shardinit reads it: before the n-th read of a file in it, which is the same one each
time where one thread reads. It is also killed: before a read, or before the n-th time that the disk is told something,
a name or to keep what was written."""

from interposed import interposed, met, rule

READS, STEPS = "read,pread", "fsync,fdatasync,rename"


def changing(folder, *changes, count=None, log=None, kill=None):
    """An environment: before its n-th read in the folder, a process does `n xor|cut|move|swap|kill PATH WITH`.

    `count` is a file for `counted`, `log` one for where each read is, and `kill` the number of the step before which
    it is killed: a sync, or a name that is given.
    """
    where = f"{folder}/"
    rules = [rule(READS, "count", when=0, where=where), rule(STEPS, "count", when=0)]
    if log:
        rules.append(rule(READS, "log", log, where=where))
    for change in changes:
        when, what, path, other = change.split()
        rules.append(rule(READS, what, path, other, when=when, where=where))
    if kill:
        rules.append(rule(STEPS, "kill", when=kill))
    return interposed(*rules, count=count)


def counted(count):
    """The numbers of reads and of steps."""
    return met(count, 2)
