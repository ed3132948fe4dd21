"""Too little memory, by a control group that holds a node's processes."""

import os
import subprocess


def folder():
    """Where this process's control group of memory is, whichever version the system has."""
    with open("/proc/self/cgroup") as file:
        lines = [line.strip().split(":", 2) for line in file]
    for _, controllers, path in lines:
        if "memory" in controllers.split(","):
            return f"/sys/fs/cgroup/memory{path}", "memory.limit_in_bytes"
    path = next(path for number, _, path in lines if number == "0")
    return f"/sys/fs/cgroup{path}", "memory.max"


class Group:
    """A control group with a node's processes, and those that they start."""

    def __init__(self, node):
        parent, self.limit_file = folder()
        self.parent, self.path = parent, os.path.join(parent, f"sinew-{os.getpid()}-{node.name}")
        os.mkdir(self.path)
        for pid in node.processes():
            self._move(pid, self.path)

    def _move(self, pid, path):
        with open(os.path.join(path, "cgroup.procs"), "w") as file:
            file.write(str(pid))

    def limit(self, size):
        with open(os.path.join(self.path, self.limit_file), "w") as file:
            file.write(str(size))

    def remove(self):
        with open(os.path.join(self.path, "cgroup.procs")) as file:
            pids = file.read().split()
        for pid in pids:
            self._move(pid, self.parent)
        os.rmdir(self.path)


def resident(pid):
    """Bytes that a process has in memory."""
    with open(f"/proc/{pid}/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGESIZE")


def synth(binary, shape, quant, path):
    subprocess.run([binary, "dev", "synth", "--shape", shape, "--quant", quant, "-o", path],
                   check=True, capture_output=True)
