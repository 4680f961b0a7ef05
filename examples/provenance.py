"""Where and with what a stored result was made, and how it is stored: whole or not at all."""

import platform
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def cpu_name() -> str:
    """The processor, as the system calls it."""
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def commit() -> str:
    """The commit of this repository, or ``"unknown"``."""
    return _git("rev-parse", "--short", "HEAD") or "unknown"


def has_changes() -> bool:
    """Whether files differ from that commit."""
    return bool(_git("status", "--porcelain"))


def write_whole(path: Path, text: str) -> None:
    """Write a file so that a run that is cut off leaves the old one as it was."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partly = path.with_name(path.name + ".partial")
    partly.write_text(text, encoding="utf-8", newline="")
    partly.replace(path)


def _git(*arguments: str) -> str:
    """What git says about this repository; nothing where there is none."""
    try:
        done = subprocess.run(
            ["git", "-C", str(ROOT), *arguments], capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return ""
    return done.stdout.strip()
