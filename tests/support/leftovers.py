"""What processes are there: evidence from the system, not from our own records."""

from pathlib import Path


def naming(folder: Path) -> list[str]:
    """Command lines of the processes that name a folder on their command line or in their environment."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or entry.name == str(_own_pid()):
            continue
        try:
            words = (entry / "cmdline").read_bytes() + b"\0" + (entry / "environ").read_bytes()
        except OSError:
            continue
        if str(folder).encode() in words:
            found.append(f"{entry.name} {words.partition(b'TURNKEEPER')[0][:200]!r}")
    return found


def listening_addresses(pids: list[int]) -> set[str]:
    """Hexadecimal local addresses, with port, on which these processes listen for TCP."""
    inodes = {inode for pid in pids for inode in _sockets_of(pid)}
    lines = [line.split() for name in ("tcp", "tcp6") for line in Path(f"/proc/net/{name}").read_text().splitlines()]
    return {fields[1] for fields in lines if fields[3] == "0A" and fields[9] in inodes}


def _sockets_of(pid: int) -> set[str]:
    try:
        targets = [str(link.readlink()) for link in Path(f"/proc/{pid}/fd").iterdir()]
    except OSError:
        return set()
    return {target[len("socket:[") : -1] for target in targets if target.startswith("socket:[")}


def _own_pid() -> int:
    return int(Path("/proc/self").readlink().name)
