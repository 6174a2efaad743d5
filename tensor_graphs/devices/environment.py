"""environment: the fingerprint under which a measurement is valid: this hardware, and the software of the backend that was
measured.

Two environments with different keys never share a number. So a fingerprint contains whatever can change a time or a bit (processor
model and instruction set, usable cores, memory, compiler, library versions). It leaves out what changes without effect (host name,
kernel release, load). Nothing heavy is imported: versions come from package metadata, and each device describes itself.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import itertools
import json
import logging
import math
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

from tensor_graphs.devices.c_code import find_compiler
from tensor_graphs.devices.device import Device
from tensor_graphs.devices.features import first_core

log = logging.getLogger(__name__)

GIB = 1 << 30


@dataclass(frozen=True)
class Environment:
    """Hardware and software of one backend. Every field is plain, so that it can be stored and rebuilt.

    hardware_name: model of the processor or accelerator, as its maker prints it. memory_bytes: memory of the device, rounded to
    whole GiB (the last few MiB change with every kernel update). platform: operating system, architecture, C library, e.g.
    "linux-x86_64-glibc2.36". backend: the backend of this software ("numpy", "c", "torch", ...; "c+numpy" for a path through
    several). libs: (name, version) pairs, sorted. hardware: (property, value) pairs, sorted, e.g. ("cores", "2"), ("flags",
    "9f…")."""

    hardware_name: str
    memory_bytes: int
    platform: str
    backend: str
    libs: tuple[tuple[str, str], ...] = ()
    hardware: tuple[tuple[str, str], ...] = ()

    def __post_init__(self) -> None:
        for pairs in ("libs", "hardware"):
            value = getattr(self, pairs)
            items = value.items() if isinstance(value, Mapping) else value
            object.__setattr__(self, pairs, tuple(sorted((str(name), str(text)) for name, text in items)))

    def key(self) -> str:
        """Return the sha256 over every field (64 hexadecimal digits), which identifies this environment in the database."""
        return self._digest

    @cached_property
    def machine(self) -> str:
        """Hash (sha256) of what all backends on one machine share, hardware and platform. Times of one machine may be compared."""
        return _digest(self.hardware_name, self.memory_bytes, self.platform, self.hardware)

    @cached_property
    def _digest(self) -> str:
        return _digest(self.hardware_name, self.memory_bytes, self.platform, self.backend, self.libs, self.hardware)

    def __str__(self) -> str:
        libs = ", ".join(f"{name} {version}" for name, version in self.libs)
        hardware = f"{self.hardware_name} ({self.memory_bytes / GIB:.0f} GiB)"
        return f"{hardware}, {self.platform}, {self.backend}: {libs or 'no libraries'}"


def _digest(*content: Any) -> str:
    return hashlib.sha256(json.dumps(content, separators=(",", ":")).encode()).hexdigest()


def fingerprint(backend: str, device: Device | None = None, compiler: str | None = None,
                libs: Mapping[str, str] | None = None) -> Environment:
    """Return the environment of `backend` on `device` (default: the processor) of this machine, now.

    compiler: the C compiler of the `c` backend (default: the first found of cc, gcc, clang). libs: versions that only the caller
    knows (of the code generator, of a plug-in)."""
    name, memory, hardware = processor() if device is None else device.hardware()
    versions = _SOFTWARE[backend](compiler) if backend in _SOFTWARE else _versions(backend)
    versions.update(libs or {})
    versions["python"] = ".".join(platform.python_version_tuple()[:2])
    return Environment(name, memory, _platform(), backend, tuple(versions.items()), hardware)


def combine(environments: Iterable[Environment]) -> Environment:
    """Return the environment of a path on several backends: the platform of the first, the libraries of all. Different hardware (a
    processor and its accelerator) is joined. Raises ValueError without environments."""
    parts = sorted(dict.fromkeys(environments), key=lambda part: (part.backend, part.key()))
    if not parts:
        raise ValueError("combine needs at least one environment")
    if len(parts) == 1:
        return parts[0]
    memory = {part.hardware_name: part.memory_bytes for part in parts}
    backends = dict.fromkeys(name for part in parts for name in part.backend.split("+"))
    return Environment(" + ".join(memory), sum(memory.values()), parts[0].platform, "+".join(sorted(backends)),
                       _joined(part.libs for part in parts), _joined(part.hardware for part in parts))


def _joined(lists: Iterable[tuple[tuple[str, str], ...]]) -> tuple[tuple[str, str], ...]:
    """Return the pairs of several lists with one pair for each name, whose different values are joined."""
    texts: dict[str, set[str]] = {}
    for name, text in itertools.chain.from_iterable(lists):
        texts.setdefault(name, set()).add(text)
    return tuple((name, " | ".join(sorted(those))) for name, those in texts.items())


MOST_THREADS = 4
"""Most threads that a caller may request for each usable core: more threads than cores can be of interest, also for rows and
constants of another machine; thousands are a mistake, and each takes memory."""


def most_threads() -> int:
    """Return the most threads that a caller may request."""
    return MOST_THREADS * usable_cores()


def usable_cores() -> int:
    """Return the cores this process may keep busy: its affinity mask, limited by the cgroup quota (rounded up), at least 1."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)
    quota = _cgroup_quota()
    return max(1, min(cores, math.ceil(quota))) if quota else max(1, cores)


def _cgroup_quota(root: Path = Path("/sys/fs/cgroup")) -> float | None:
    """Return the processor quota in cores of cgroup v2 (cpu.max) or v1 (cfs_quota_us), None without a limit."""
    try:
        quota, period = (root / "cpu.max").read_text().split()
        return None if quota == "max" else int(quota) / int(period)
    except (OSError, ValueError):
        pass                                                        # no cgroup v2 here; v1 may be
    try:
        quota_us = int((root / "cpu/cpu.cfs_quota_us").read_text())
        period_us = int((root / "cpu/cpu.cfs_period_us").read_text())
        return quota_us / period_us if quota_us > 0 and period_us > 0 else None
    except (OSError, ValueError):
        return None


def processor() -> tuple[str, int, tuple[tuple[str, str], ...]]:
    name, flags = _cpuinfo()
    return name, _whole_gib(_memory_bytes()), (("cores", str(usable_cores())), ("flags", flags))


@lru_cache(maxsize=1)
def _cpuinfo() -> tuple[str, str]:
    """Return (processor model, 16 hexadecimal digits of the hash of its sorted instruction set flags)."""
    if sys.platform == "darwin":
        name = _first_line(["sysctl", "-n", "machdep.cpu.brand_string"]) or platform.machine()
        return name, _short_hash(_first_line(["sysctl", "-n", "machdep.cpu.features"]) or platform.machine())
    try:
        return parse_cpuinfo(Path("/proc/cpuinfo").read_text())
    except OSError:
        return platform.processor() or platform.machine(), _short_hash(platform.machine())


def parse_cpuinfo(text: str) -> tuple[str, str]:
    """Return (model, hash of the sorted flags) from the text of /proc/cpuinfo, of x86-64 or aarch64."""
    core = first_core(text)
    model = core.get("model name") or core.get("Model") or ""
    if not model:
        parts = (core.get(name, "") for name in ("CPU implementer", "CPU part", "CPU variant"))
        model = " ".join([platform.machine(), *filter(None, parts)])
    return re.sub(r"\s+", " ", model), _short_hash(" ".join(sorted((core.get("flags") or core.get("Features") or "").split())))


def _short_hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _memory_bytes() -> int:
    try:
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError, AttributeError):
        return 0
    for limit in ("memory.max", "memory/memory.limit_in_bytes"):
        try:
            total = min(total, int((Path("/sys/fs/cgroup") / limit).read_text()))
        except (OSError, ValueError):  # no such file, or the word "max"
            continue
    return total


def _whole_gib(count: int) -> int:
    return round(count / GIB) * GIB


@lru_cache(maxsize=1)
def _platform() -> str:
    library, version = platform.libc_ver()
    parts = [platform.system().lower(), platform.machine(), f"{library}{version}"]
    return "-".join(filter(None, parts))


def _first_line(command: list[str]) -> str | None:
    """Return the first line that a program prints, or None when it is missing, fails, or prints nothing."""
    lines = _output(command)
    return lines[0] if lines else None


def _output(command: list[str]) -> list[str] | None:
    """Return the lines that a program prints, without blank ones at the ends, or None when it is missing or fails."""
    if shutil.which(command[0]) is None:
        return None
    environment = {**os.environ, "LC_ALL": "C"}
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False, env=environment)
    except (OSError, subprocess.TimeoutExpired) as error:
        log.debug("%s did not answer: %s", command[0], error)
        return None
    return [line.strip() for line in done.stdout.strip().splitlines()] if done.returncode == 0 else None


def _versions(*packages: str) -> dict[str, str]:
    """Return installed versions from package metadata, without importing; "not installed" for a missing package."""
    versions = {}
    for package in packages:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            versions[package] = "not installed"
    return versions


def _numpy_software(compiler: str | None) -> dict[str, str]:
    """Return the versions of numpy and of the BLAS it was built with, on which its times depend."""
    versions = _versions("numpy")
    if versions["numpy"] != "not installed":
        from numpy import __config__  # numpy's wheel metadata does not name its BLAS

        blas = getattr(__config__, "CONFIG", {}).get("Build Dependencies", {}).get("blas", {})
        versions["blas"] = f"{blas.get('name', 'unknown')} {blas.get('version', '')}".strip()
    return versions


def compiler_version(compiler: str | None = None) -> str:
    """Return the name and version that the C compiler (`compiler`, $CC or the first found) prints, e.g. "gcc (Debian 12.2.0-14)
    12.2.0", or "not installed"."""
    used, _ = find_compiler(compiler)
    return used.version if used is not None else "not installed"


def _c_software(compiler: str | None) -> dict[str, str]:
    return {"compiler": compiler_version(compiler)}


def _cuda_software(compiler: str | None) -> dict[str, str]:
    """Return the version of CUDA's run-time compiler: of its wheel if there is one, else of the toolkit's nvcc."""
    for package in ("nvidia-cuda-nvrtc", "nvidia-cuda-nvrtc-cu13", "nvidia-cuda-nvrtc-cu12"):
        versions = _versions(package)
        if versions[package] != "not installed":
            return {"nvrtc": versions[package]}
    release = re.search(r"release .*?V(\d[\d.]*)", " ".join(_output(["nvcc", "--version"]) or ()))
    return {"nvrtc": release[1] if release else "not installed"}


_SOFTWARE: dict[str, Callable[[str | None], dict[str, str]]] = {
    "numpy": _numpy_software,
    "c": _c_software,
    "torch": lambda _: _versions("torch"),
    "gen": _c_software,
    "cuda": _cuda_software,
    "gencuda": _cuda_software,
    "torchcuda": lambda _: _versions("torch"),
    "triton": lambda _: _versions("triton", "torch"),
}
