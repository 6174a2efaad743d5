"""cli/conformance.py and cli/new_backend.py: from a name to a backend that conforms, and what goes wrong on the way."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.cli.command import ROOT, TG, assert_complains, document, environment, tg

OPS = "add,mul,linear,softmax,rms_norm"


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `tg new-backend fast_numbers` writes."""
    folder = tmp_path_factory.mktemp("third")
    made = document(tg("new-backend", "fast_numbers", "--into", folder, "--json"))
    assert made["name"] == "fast_numbers" and made["lines"] <= 300 and made["lines"] == sum(made["files"].values())
    assert all(Path(f).is_file() for f in made["files"])
    return Path(made["folder"])


@pytest.mark.long
def test_what_a_new_backend_claims_is_right(project: Path, tmp_path: Path) -> None:
    result = tg("conformance", "--module", project / "fast_numbers" / "backend.py", "--out", tmp_path / "tables")
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith("fast_numbers: 14 pass, ") and "fail" not in result.stdout
    cells = json.loads((tmp_path / "tables" / "fast_numbers.json").read_text())["cells"]
    passed = {(op, dtype) for op, row in cells.items() for dtype, cell in row.items() if cell["status"] == "pass"}
    assert passed == {(op, t) for op in ("add", "mul") for t in ("f32", "f64", "i32", "i64")} | {
        (op, t) for op in ("linear", "softmax", "rms_norm") for t in ("f32", "f64")
    }
    assert (tmp_path / "tables" / "fast_numbers.md").read_text().startswith("# What the backend `fast_numbers` computes\n")


def test_the_readme_of_a_new_backend_names_commands_that_work(project: Path) -> None:
    readme = (project / "README.md").read_text(encoding="utf-8")
    assert f"tg conformance --module fast_numbers/backend.py --ops {OPS}\n" in readme
    result = subprocess.run(
        [*TG, "conformance", "--module", "fast_numbers/backend.py", "--ops", "add"],
        cwd=project, env=environment(), capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert result.returncode == 0 and "| add | (1) | (2) | 6e-08 |" in result.stdout, result.stderr


def test_an_installed_backend_is_known_by_its_name_alone(project: Path, tmp_path: Path) -> None:
    """Installed by hand: the project's folder on the path, and beside it the metadata that an installer writes."""
    info = tmp_path / "fast_numbers-0.1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: fast_numbers\nVersion: 0.1.0\n")
    (info / "entry_points.txt").write_text(
        "[tensor_graphs.backends]\nfast_numbers = fast_numbers.backend\nghost = ghost.backend\nnumpy = fast_numbers.backend\n"
    )
    env: dict[str, str | None] = {"PYTHONPATH": os.pathsep.join([str(ROOT), str(project), str(tmp_path)])}
    shown = tg("devices", "--json", "--db", tmp_path / "own.db", env=env)
    found = {b["backend"]: b for b in document(shown)["backends"]}
    assert found["fast_numbers"]["available"] and found["fast_numbers"]["kernels"] == 5
    assert not found["ghost"]["available"] and "No module named 'ghost'" in found["ghost"]["why_not"]
    assert found["numpy"]["kernels"] > 40 and "the backend 'numpy' (fast_numbers.backend) is left out" in shown.stderr
    row = document(tg("conformance", "--backend", "fast_numbers", "--ops", "softmax", "--json", env=env))["cells"]["softmax"]
    assert row["f32"]["status"] == "pass" and row["f16"]["reason"] == "f16: only f32, f64"
    said = document(tg("explain", ROOT / "examples" / "softmax.tg", "--at", "n=4", "--backends", "fast_numbers,numpy",
                       "--db", tmp_path / "own.db", "--json", env=env))  # fmt: skip
    kernels = {choice["kernel"] for variant in said["variants"] for choice in variant["choices"]}
    assert kernels and {k.partition(".")[0] for k in kernels} <= {"fast_numbers", "numpy", "expand"}


def test_a_wrong_kernel_is_red_and_the_exit_code_says_so(project: Path, tmp_path: Path) -> None:
    package = tmp_path / "fast_numbers"
    package.mkdir()
    for file in (project / "fast_numbers").iterdir():
        if file.suffix == ".py":
            (package / file.name).write_text(file.read_text().replace("np.multiply(", "np.add("))
    result = tg("conformance", "--module", package / "backend.py", "--ops", "add,mul", "--json")
    cells = json.loads(result.stdout)["cells"]
    assert result.returncode == 1
    assert {t for t, c in cells["mul"].items() if c["status"] == "fail"} == {"f32", "f64", "i32", "i64"}
    assert not any(c["status"] == "fail" for c in cells["add"].values())
    assert cells["mul"]["i32"]["reason"].startswith("INCORRECT_NUMERICAL: fast_numbers.mul on mul i32[")


def test_names_that_a_backend_cannot_have(tmp_path: Path) -> None:
    for name, said in (("my-backend", "no Python name"), ("torch", "there is a backend 'torch' already")):
        assert_complains(tg("new-backend", name, "--into", tmp_path), f"{name!r}", said, "fix: ")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("arguments", "said", "code"),
    [
        (("--backend", "cobol"), "--backend: 'cobol' is no backend", 2),
        (("--backend", "numpy", "--ops", "add,sofmax"), "'sofmax' is no op", 1),
        (("--module", "no/such/backend.py"), "there is no file no/such/backend.py", 1),
        (("--module", "no_such_module"), "no_such_module cannot be imported: ModuleNotFoundError", 1),
    ],
)
def test_wrong_usage_is_told_on_one_screen(arguments: tuple[str, ...], said: str, code: int) -> None:
    assert_complains(tg("conformance", *arguments), said, code=code)


@pytest.mark.parametrize(
    ("text", "backend", "said"),
    [
        ("", (), "named.py has no NAME, so it is no backend\n  fix: NAME = \"…\" at the top"),
        ("", ("--backend", "mine"), "named.py has no NAME, so it is no backend\n  fix: NAME = \"mine\" at the top"),
        ("NAME = 3", (), "named.py has a NAME that is no text, 3, so it is no backend"),
        ("NAME = 'theirs'", ("--backend", "mine"), "is the backend 'theirs', and --backend says 'mine'\n  fix: --backend theirs"),
    ],
)
def test_a_module_that_is_not_the_backend_says_what_its_name_is(
    tmp_path: Path, text: str, backend: tuple[str, ...], said: str
) -> None:
    (tmp_path / "named.py").write_text(text)
    assert_complains(tg("conformance", "--module", tmp_path / "named.py", *backend), said)


def test_a_folder_for_the_tables_that_cannot_be_made_is_told_with_a_fix(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for folder in (tmp_path / "file", tmp_path / "file" / "below"):
        said = f"--out: the folder {folder} cannot be made: "
        assert_complains(tg("conformance", "--backend", "numpy", "--out", folder), said, "\n  fix: choose a path below a folder")


def test_ctrl_c_ends_it_quietly_and_leaves_no_half_table(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [*TG, "conformance", "--backend", "numpy", "--out", str(tmp_path / "tables")],
        env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    deadline = time.monotonic() + 60
    while not (tmp_path / "tables").is_dir():
        assert process.poll() is None and time.monotonic() < deadline, process.communicate()
        time.sleep(0.02)
    time.sleep(1.0)
    os.kill(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=30)
    assert process.returncode == 130 and not out, (out, err)
    assert "Traceback" not in err and not list((tmp_path / "tables").iterdir())
