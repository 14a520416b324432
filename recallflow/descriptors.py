"""The budget of file descriptors of a process.

Clients, databases and everything else have shares that add up to less than the limit, so that no number of clients
takes the descriptors that an engine needs to write.
"""

import resource

STATE_SHARE = 1 / 2
CONNECTIONS_SHARE = 1 / 4
ACCEPTED_SHARE = 1 / 16  # connections that one turn of the event loop may accept before any of them is closed
CONNECTIONS_MOST = 4_096  # memory: an open connection takes about 15 kB
BACKLOG_MOST = 2_048
DATABASE_FILES_LEAST = 20  # RocksDB raises anything below to it
_UNLIMITED = 1_048_576  # what to ask for where the hard limit is none: Linux refuses more than fs.nr_open


def raise_limit() -> None:
    """Raise the soft limit of open files of this process to the hard limit, as far as the system allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _UNLIMITED if hard == resource.RLIM_INFINITY else hard
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    except (OSError, ValueError):  # macOS allows less than it says: the soft limit stays
        return


def limit() -> int:
    """Return how many files this process may have open."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _UNLIMITED if soft == resource.RLIM_INFINITY else soft


def connections_most() -> int:
    """Return how many connections one server may have open."""
    return max(1, min(CONNECTIONS_MOST, int(limit() * CONNECTIONS_SHARE)))


def backlog() -> int:
    """Return how many connections may wait to be accepted."""
    return max(8, min(BACKLOG_MOST, int(limit() * ACCEPTED_SHARE)))


def database_files(databases: int) -> int:
    """Return RocksDB's `max_open_files` for each of several databases that are open at the same time."""
    return max(DATABASE_FILES_LEAST, int(limit() * STATE_SHARE) // max(1, databases))


def suffices_for(databases: int) -> bool:
    """Return whether the state's share holds the least that so many databases need."""
    return int(limit() * STATE_SHARE) >= databases * DATABASE_FILES_LEAST
