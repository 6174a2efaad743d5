"""environment: what changes a time changes the key, what does not leaves it alone, and nothing heavy is imported."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import json
import os
import platform
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from tensor_graphs.devices import environment
from tensor_graphs.devices.cpu import Cpu
from tensor_graphs.devices.environment import GIB, Environment, combine, fingerprint

ONE = Environment("CPU X", 8 * GIB, "linux-x86_64", "c", (("compiler", "gcc 12"),), (("cores", "2"),))


@pytest.mark.parametrize(
    "change",
    [
        {"hardware_name": "CPU Y"},
        {"memory_bytes": 16 * GIB},
        {"platform": "linux-aarch64"},
        {"backend": "numpy"},
        {"libs": (("compiler", "gcc 13"),)},
        {"hardware": (("cores", "4"),)},
    ],
    ids=lambda change: next(iter(change)),
)
def test_every_field_is_part_of_the_key(change: dict[str, object]) -> None:
    assert len(change) == 1 and dataclasses.replace(ONE, **change).key() != ONE.key()


def test_the_parametrisation_above_forgets_no_field() -> None:
    changed = {next(iter(mark.args[1][index])) for mark in _marks() for index in range(len(mark.args[1]))}
    assert changed == {field.name for field in dataclasses.fields(Environment)}


def _marks() -> list[pytest.Mark]:
    return [mark for mark in test_every_field_is_part_of_the_key.pytestmark if mark.name == "parametrize"]


def test_a_machine_is_hardware_and_platform_whatever_runs_on_it() -> None:
    here = Environment("CPU", 8 * GIB, "linux", "c", (("compiler", "gcc"),), (("cores", "2"),))
    same = [{"backend": "numpy"}, {"libs": (("numpy", "2.1"),)}]
    other = [{"hardware_name": "GPU"}, {"memory_bytes": GIB}, {"platform": "darwin"}, {"hardware": (("cores", "4"),)}]
    assert {dataclasses.replace(here, **each).machine for each in same} == {here.machine}
    assert len({here.machine, *(dataclasses.replace(here, **each).machine for each in other)}) == 5


def test_the_order_of_libraries_does_not_matter_and_a_mapping_is_welcome() -> None:
    pairs = (("b", "2"), ("a", "1"))
    one, two = (dataclasses.replace(ONE, libs=libs) for libs in (pairs, dict(reversed(pairs))))
    assert one == two and one.key() == two.key()
    assert one.libs == (("a", "1"), ("b", "2"))
    assert hash(one) == hash(two)


def test_an_environment_survives_json() -> None:
    fields = json.loads(json.dumps(dataclasses.asdict(ONE)))
    assert Environment(**fields).key() == ONE.key()


def test_this_machine_has_the_same_fingerprint_every_time_and_says_what_it_is() -> None:
    first, second = fingerprint("numpy"), fingerprint("numpy")
    assert first == second and first.key() == second.key() and len(first.key()) == 64
    assert first.hardware_name and first.memory_bytes >= GIB and first.memory_bytes % GIB == 0
    assert dict(first.hardware)["cores"] == str(environment.usable_cores())
    assert platform.machine() in first.platform
    assert first.hardware_name in str(first) and "numpy" in str(first)


def test_another_process_computes_the_same_key() -> None:
    code = "from tensor_graphs.devices.environment import fingerprint; print(fingerprint('c').key())"
    root = str(Path(environment.__file__).parents[2])
    if not (Path(root) / "tensor_graphs/errors.py").exists():  # the package lies elsewhere when installed by links
        root = next(path for path in sys.path if (Path(path or ".") / "tensor_graphs/errors.py").exists())
    paths = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))
    run = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": paths},
    )
    assert run.stdout.strip() == fingerprint("c").key()


def test_each_backend_names_its_own_software_only() -> None:
    numpy, torch, c = (dict(fingerprint(backend).libs) for backend in ("numpy", "torch", "c"))
    assert numpy["numpy"] == importlib.metadata.version("numpy") and "blas" in numpy and "torch" not in numpy
    assert torch["torch"] == importlib.metadata.version("torch") and "numpy" not in torch
    assert set(c) == {"compiler", "python"} and c["compiler"] not in ("unknown", "not installed")


def test_a_backend_nobody_knows_is_named_by_its_package_and_by_what_the_caller_adds() -> None:
    libs = dict(fingerprint("no-such-backend", libs={"codegen": "3"}).libs)
    assert (libs["no-such-backend"], libs["codegen"]) == ("not installed", "3")
    assert fingerprint("c", libs={"codegen": "3"}).key() != fingerprint("c", libs={"codegen": "4"}).key()


def test_another_compiler_is_another_environment(tmp_path: Path) -> None:
    def compiler(version: str) -> str:
        path = tmp_path / version / "mycc"
        path.parent.mkdir()
        path.write_text(f"#!/bin/sh\necho mycc {version}\necho more text\n")
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
        return str(path)

    old, new = (fingerprint("c", compiler=compiler(version)) for version in ("1.0", "2.0"))
    assert dict(old.libs)["compiler"] == "mycc 1.0" and dict(new.libs)["compiler"] == "mycc 2.0"
    assert old.key() != new.key()
    assert dict(fingerprint("c", compiler=str(tmp_path / "none")).libs)["compiler"] == "not installed"


def test_a_compiler_upgraded_in_place_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "mycc"
    for version, second in (("1.0", 1), ("2.0", 2)):
        path.write_text(f"#!/bin/sh\necho mycc {version}\n")
        path.chmod(0o755)
        os.utime(path, (second, second))
        assert environment.compiler_version(str(path)) == f"mycc {version}"


def test_the_compiler_that_is_asked_is_the_one_that_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "mycc"
    path.write_text("#!/bin/sh\necho mycc 3.0 $*\n")
    path.chmod(0o755)
    monkeypatch.setenv("CC", f"{path} -m64")
    assert environment.compiler_version() == "mycc 3.0 -m64 --version"
    monkeypatch.setenv("CC", str(tmp_path / "none"))
    assert environment.compiler_version() == "not installed"


X86 = """processor\t: 0
model name\t: Some  CPU @ 3.00GHz
flags\t\t: fpu avx2 avx512f

processor\t: 1
model name\t: Some  CPU @ 3.00GHz
flags\t\t: avx512f fpu avx2
"""
ARM = "processor : 0\nFeatures : fp asimd\nCPU implementer : 0x41\nCPU part : 0xd40\nCPU variant : 0x1\n"


def test_processors_of_both_architectures_are_read() -> None:
    name, flags = environment.parse_cpuinfo(X86)
    assert name == "Some CPU @ 3.00GHz" and len(flags) == 16
    assert environment.parse_cpuinfo(X86.replace("fpu avx2 avx512f", "avx512f avx2 fpu"))[1] == flags
    assert environment.parse_cpuinfo(X86.replace(" avx512f\n", "\n", 1))[1] != flags
    assert environment.parse_cpuinfo(ARM)[0].endswith("0x41 0xd40 0x1")


def test_the_processor_quota_of_the_container_limits_the_cores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "cpu.max").write_text("150000 100000\n")
    assert environment._cgroup_quota(tmp_path) == 1.5
    (tmp_path / "cpu.max").write_text("max 100000\n")
    assert environment._cgroup_quota(tmp_path) is None
    (tmp_path / "cpu.max").unlink()
    (tmp_path / "cpu").mkdir()
    (tmp_path / "cpu/cpu.cfs_quota_us").write_text("400000")
    (tmp_path / "cpu/cpu.cfs_period_us").write_text("100000")
    assert environment._cgroup_quota(tmp_path) == 4.0
    assert environment._cgroup_quota(tmp_path / "nothing") is None
    monkeypatch.setattr(environment, "_cgroup_quota", lambda: 0.5)
    assert environment.usable_cores() == 1


def test_a_device_says_itself_what_its_environment_is_of() -> None:
    class Card(Cpu):
        def hardware(self) -> tuple[str, int, tuple[tuple[str, str], ...]]:
            return "Card 3", 16 * GIB, (("compute_capability", "9.0"),)

    found = fingerprint("cuda", Card())
    assert (found.hardware_name, found.memory_bytes, found.hardware) == ("Card 3", 16 * GIB, (("compute_capability", "9.0"),))
    assert "nvrtc" in dict(found.libs) and found.key() != fingerprint("cuda").key()


def test_a_path_through_two_backends_has_an_environment_of_both() -> None:
    numpy = dataclasses.replace(ONE, backend="numpy", libs=(("numpy", "2.4"),))
    both = combine([ONE, numpy])
    assert both == combine([numpy, ONE, ONE])
    assert (both.backend, both.hardware_name, both.memory_bytes) == ("c+numpy", "CPU X", 8 * GIB)
    assert both.libs == (("compiler", "gcc 12"), ("numpy", "2.4"))
    assert combine([ONE]) == ONE
    card = dataclasses.replace(ONE, backend="cuda", hardware_name="Card", hardware=(("driver", "1"),))
    mixed = combine([both, card])
    assert (mixed.backend, mixed.memory_bytes) == ("c+cuda+numpy", 16 * GIB)
    assert "CPU X" in mixed.hardware_name and "Card" in mixed.hardware_name
    with pytest.raises(ValueError, match="at least one"):
        combine([])
