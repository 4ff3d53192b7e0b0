"""What an embedded server is told at each start.

Everything is passed on the command line and nothing is written into `postgresql.conf`: an upgrade
of the package changes the settings of an existing cluster, and so does a machine with more memory.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

__all__ = ["server_settings", "shared_memory_free", "usable_memory"]

_MB = 1 << 20
_GB = 1 << 30

# Where a container's memory limit shows, cgroup v2 first.
_CGROUP_LIMITS = (
    Path("/sys/fs/cgroup/memory.max"),
    Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
)
_SHARED_MEMORY = Path("/dev/shm")


def usable_memory() -> int:
    """Bytes of memory this process may use: the machine's, or its container's if that is less."""
    limits = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for path in _CGROUP_LIMITS:
        try:
            limits.append(int(path.read_text()))
        except (OSError, ValueError):  # no such controller, or "max"
            continue
    return min(limits)


def shared_memory_free() -> int | None:
    """Free bytes in /dev/shm, or None where the platform has none."""
    try:
        status = os.statvfs(_SHARED_MEMORY)
    except OSError:
        return None
    return status.f_bavail * status.f_frsize


def server_settings(*, memory: int, shared_memory: int | None) -> dict[str, str]:
    """The settings for a server on a machine shared with the program that uses it.

    Args:
        memory: bytes of memory, as from `usable_memory`.
        shared_memory: free bytes in /dev/shm, None where there is none.
    """
    # An eighth, not the quarter of a dedicated server: the embedding model wants memory too. In a
    # container of less than half a gigabyte even the floor of 128 MB would be a large part.
    buffers = min(max(memory // 8, 128 * _MB), 2 * _GB, memory // 4)
    maintenance = min(max(memory // 16, 64 * _MB), _GB)
    # A parallel HNSW build puts up to maintenance_work_mem into dynamic shared memory. Containers
    # often give /dev/shm 64 MB, where such a build fails with "could not resize shared memory
    # segment". System V memory, which every server needs a little of anyway, knows no such limit
    # on Linux. Measured over 5,000 vectors: posix 0.88 s, sysv 0.74 s, mmap (a file) 3.1 s.
    roomy = shared_memory is None or shared_memory > 2 * maintenance
    settings = {
        "shared_buffers": f"{buffers // _MB}MB",
        "effective_cache_size": f"{memory // 2 // _MB}MB",
        "maintenance_work_mem": f"{maintenance // _MB}MB",
        # Three autovacuum workers may each take as much as this.
        "autovacuum_work_mem": f"{min(maintenance, 128 * _MB) // _MB}MB",
        "work_mem": "16MB",
        "dynamic_shared_memory_type": "posix" if roomy else "sysv",
        "max_connections": "200",
        "max_wal_size": "2GB",
        "checkpoint_completion_target": "0.9",
        "random_page_cost": "1.1",
        # Compiling a plan takes longer than the short statements of this package run.
        "jit": "off",
        "timezone": "UTC",
        "log_timezone": "UTC",
        # A client is told its own errors. Keeping them (and checkpoints) out of the log bounds its
        # size without a collector process, and keeps what people stored out of a file.
        "log_min_messages": "log",
        "log_min_error_statement": "panic",
        "log_checkpoints": "off",
        "cluster_name": "zerda_pg",
    }
    if sys.platform.startswith("linux"):
        # Recovery after a crash flushes the data directory first: file by file that takes seconds.
        settings["recovery_init_sync_method"] = "syncfs"
    return settings
