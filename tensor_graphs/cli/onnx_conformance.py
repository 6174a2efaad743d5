"""onnx_conformance: `tg conformance --onnx`, the table of ONNX node tests that are computed as they say."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import typer

from tensor_graphs.cli import options


def make_folder(out: Path | None) -> None:
    """Make the folder of --out. Raises NotPossible."""
    try:
        if out is not None:
            out.mkdir(parents=True, exist_ok=True)
    except OSError as e:
        raise options.NotPossible(
            f"--out: the folder {out} cannot be made: {e.strerror or e}\n  fix: choose a path below a folder that you may write"
        ) from e


def conformance(ops: str | None, out: Path | None, json: bool) -> None:
    """Judge the node tests (of these ops), and print or write the table. Raises typer.Exit(1) when one is wrong."""
    from tensor_graphs.frontends.onnx.conformance import SETS, document, judge, markdown, node_tests

    if ops is not None and out is not None:
        raise options.UsageError("--out writes the whole table\n  fix: leave --ops out, or print it: --onnx --ops … > FILE")
    tests = node_tests(*SETS if out is not None else ())
    if ops is not None:
        wanted = {name.strip() for name in ops.split(",")}
        options.known("--ops", sorted(wanted), sorted({node.op_type for t in tests for node in t.model.graph.node}))
        tests = [t for t in tests if any(node.op_type in wanted for node in t.model.graph.node)]
    make_folder(out)
    rows = []
    with options.progress("judging ONNX", quiet=False, total=len(tests)) as show:
        for done, test in enumerate(tests, 1):
            rows.append(judge(test))
            show(done, len(tests), test.name)
    if out is not None:
        (out / "onnx.md").write_text(markdown(rows), encoding="utf-8")
    if json:
        options.print_json(document(rows))
    elif out is not None:
        counts = Counter(row.status for row in rows)
        print(f"onnx: {', '.join(f'{count} {status}' for status, count in counts.items())} · {out / 'onnx.md'}")
    else:
        print(markdown(rows), end="")
    if any(row.status == "wrong" for row in rows):
        raise typer.Exit(1)
