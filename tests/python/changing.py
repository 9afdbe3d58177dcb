"""Changes a folder before shardinit's n-th read in it, or kills the process before a read or before the n-th step that
changes the disk (a rename or sync). With one thread, the n-th read is the same in each run."""

from interposed import interposed, met, rule

READS, STEPS = "read,pread", "fsync,fdatasync,rename"


def changing(folder, *changes, count=None, log=None, kill=None):
    """Returns an environment in which, before the n-th read in the folder, the process does `n xor|cut|move|swap|kill
    PATH WITH`.

    `count` is a file for `counted`, and `log` receives the place of each read. The process is killed before step number
    `kill`: a sync, or a rename.
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
    """Returns the numbers of reads and steps."""
    return met(count, 2)
