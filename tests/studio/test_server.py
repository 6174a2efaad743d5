"""The server of a page: read-only, on this machine alone, rows as JSON, new rows as they are stored, an end in order."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from tensor_graphs.devices.environment import Environment
from tensor_graphs.records import GraphRecord, ImplementationRecord, TraceRecord, WorkloadRecord, open_database
from tensor_graphs.records.database import Database
from tensor_graphs.studio.page import html_page
from tensor_graphs.studio.server import StudioRoutes

ROOT = Path(__file__).resolve().parents[2]
HOSTILE = "<script>alert(1)</script>"
HERE = Environment("A CPU", 8 << 30, "linux-x86_64", "c", (), ())
GRAPH = GraphRecord("tanh-key", "tg 1\ny = tanh(x)\n", "{}", "tanh")


def trace(name: str = HOSTILE, **changes: Any) -> TraceRecord:
    kernel = ImplementationRecord(type="KERNEL", name=name, backend="c", source_hash=f"hash of {name}")
    values = {"kind": "cold", "status": "PASSED", "samples_ms": (1.0, 1.1, 1.2), "max_relative_error": 1e-7, **changes}
    return TraceRecord(implementation=kernel, workload=WorkloadRecord(GRAPH.structural_key, {"n": 4}), environment=HERE, **values)


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    with open_database(tmp_path / "measured.db") as opened:
        opened.ensure_graph(GRAPH)
        opened.add_trace(trace())
        opened.add_trace(trace(samples_ms=(4.0, 4.1, 4.2)))
        opened.add_trace(trace(status="INCORRECT_NUMERICAL", samples_ms=(), max_relative_error=float("inf")))
        yield opened


@pytest.fixture
def client(database: Database) -> TestClient:
    page = html_page({"title": "Measurements", "live": True})
    return TestClient(StudioRoutes(page, database).app(), base_url="http://127.0.0.1:8090", raise_server_exceptions=False)


def test_views_are_rows_of_json_and_numbers_that_are_not_finite_are_null(client: TestClient) -> None:
    (group,) = client.get("/api/kernels").json()
    assert (group["kernel"], group["times"], group["lowest_ms"], group["failures"], group["error"]) == (HOSTILE, 2, 1.1, 1, None)
    assert client.get("/api/kernels?text=relu").json() == []
    assert [row["kernel"] for row in client.get("/api/disturbed").json()] == [HOSTILE]
    assert [row["trace"] for row in client.get("/api/failures").json()] == [3]
    assert [row["trace"] for row in client.get("/api/history", params={"kernel": HOSTILE}).json()] == [3, 2, 1]
    assert client.get("/api/coverage").json()[0]["measured"] == 1 and client.get("/api/searches").json() == []
    one = client.get("/api/trace?trace=2").json()
    assert one["samples_ms"] == [4.0, 4.1, 4.2] and one["standing"].startswith("disturbed")
    assert client.get("/api/totals").json()["environments"][0]["statuses"] == {"INCORRECT_NUMERICAL": 1, "PASSED": 2}


@pytest.mark.parametrize("path", ["/api/nothing", "/api/trace?trace=9", "/api/trace?trace=x", "/api/trace", "/x",
                                  "/..%2f..%2fetc/passwd", "/api/trace?trace=99999999999999999999", "/studio.js"])
def test_what_is_not_there_is_404(client: TestClient, path: str) -> None:
    assert client.get(path).status_code == 404


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE", "OPTIONS"])
def test_no_route_writes(client: TestClient, method: str) -> None:
    for path in ("/", "/api/kernels", "/api/rows", "/api/trace?trace=1"):
        assert client.request(method, path).status_code == 405


def test_only_this_machine_s_names_are_answered_and_the_page_may_load_nothing(client: TestClient) -> None:
    assert client.get("/", headers={"Host": "rebound.example"}).status_code == 400
    page = client.get("/")
    assert page.status_code == 200 and "default-src 'none'" in page.headers["content-security-policy"]
    assert "access-control-allow-origin" not in page.headers


@pytest.fixture
def served(database: Database) -> Iterator[tuple[subprocess.Popen[str], str]]:
    place = str(database.location)
    command = [sys.executable, "-m", "tensor_graphs.cli.main", "studio", place, "--port", "0", "--json"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
    assert process.stdout is not None
    try:
        yield process, json.loads(process.stdout.readline())["url"]
    finally:
        process.kill()
        process.communicate()


def test_new_rows_arrive_while_a_page_is_open_and_ctrl_c_ends_it_in_order(served: tuple[subprocess.Popen[str], str],
                                                                          database: Database) -> None:
    process, url = served
    with urllib.request.urlopen(f"{url}/api/rows", timeout=20) as stream:
        lines = iter(lambda: stream.readline().decode().rstrip("\n"), None)
        assert next(line for line in lines if line.startswith("data:")) == "data: 3"
        database.add_trace(trace("tanh_new"))
        rows = json.loads(next(line for line in lines if line.startswith("data:"))[5:])
        assert [(row["trace"], row["kernel"], row["median_ms"]) for row in rows] == [(4, "tanh_new", 1.1)]
        process.send_signal(signal.SIGINT)
        assert process.wait(15) == 0
    assert process.stderr is not None and process.stderr.read() == ""


LIVE = """
(async () => {
  const faults = [], rest = ms => new Promise(resolve => setTimeout(resolve, ms));
  window.addEventListener("error", event => faults.push(event.message));
  window.addEventListener("unhandledrejection", event => faults.push(String(event.reason)));
  const seen = { tabs: [...document.querySelectorAll("[role=tab]")].map(tab => tab.textContent), scripts: document.scripts.length };
  for (const tab of seen.tabs) { location.hash = tab; await rest(400); }
  location.hash = "Database"; await rest(400);
  const rows = [...document.querySelectorAll("#view tbody tr[tabindex]")];
  rows.find(row => row.textContent.includes("alert(1)")).click(); await rest(600);
  seen.history = document.getElementById("details").textContent;
  document.querySelector("#details circle.point").dispatchEvent(new MouseEvent("click", { bubbles: true })); await rest(500);
  seen.trace = document.getElementById("details").textContent;
  location.hash = "Live"; await rest(1500);
  seen.live = document.getElementById("view").textContent;
  console.log("SEEN" + encodeURIComponent(JSON.stringify({ ...seen, faults })) + "END");
})();
"""


@pytest.mark.long
def test_a_browser_shows_histories_rows_and_what_is_measured_now(database: Database, tmp_path: Path) -> None:
    program = shutil.which("chromium") or shutil.which("google-chrome")
    assert program is not None, "apt install chromium"
    code = f"""if True:
        import sys
        from tensor_graphs.records import open_database
        from tensor_graphs.serving.http.server import bound
        from tensor_graphs.studio.page import html_page
        from tensor_graphs.studio.server import serve
        page = html_page({{"title": "Measurements", "live": True}}).replace("</body>", "<script>" + {LIVE!r} + "</script></body>")
        address = bound("127.0.0.1", 0)
        serve(page, open_database(sys.argv[1]), address, lambda: print(address.getsockname()[1], flush=True))
    """
    process = subprocess.Popen([sys.executable, "-c", code, str(database.location)], stdout=subprocess.PIPE, text=True,
                               env={**os.environ, "PYTHONPATH": str(ROOT)})
    assert process.stdout is not None
    port = process.stdout.readline().strip()
    options = ("--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr", "--window-size=1400,1000")
    browser = subprocess.Popen([program, *options, f"http://127.0.0.1:{port}/"], stderr=subprocess.PIPE, text=True)
    assert browser.stderr is not None
    stop = threading.Event()
    adding = threading.Thread(target=lambda: [database.add_trace(trace("tanh_new")) for _ in range(60) if not stop.wait(0.5)])
    adding.start()
    try:
        watch = threading.Timer(60, browser.kill)
        watch.start()
        line = next((line for line in browser.stderr if "SEEN" in line), "")
        watch.cancel()
    finally:
        stop.set()
        adding.join()
        for program_run in (browser, process):
            program_run.kill()
            program_run.communicate()
    stored = re.search(r"SEEN(.*)END", line)
    assert stored is not None, "the page's script did not come to its end"
    seen = json.loads(urllib.parse.unquote(stored[1]))
    assert seen["faults"] == [] and seen["tabs"] == ["Database", "Suspect", "Failures", "Coverage", "Searches", "Live"]
    assert seen["scripts"] == 3 and HOSTILE in seen["history"] and "rows" in seen["history"]
    assert "sample 2: 4.20 ms" in seen["trace"] and "disturbed" in seen["trace"]
    assert "rows since this page was opened" in seen["live"] and "tanh_new" in seen["live"]
