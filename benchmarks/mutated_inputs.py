"""Does every input end clearly and soon? Mutates files and command lines, and holds each run of `tg` to the rules of the command.

    python benchmarks/mutated_inputs.py --mutants 2000 --seed 1

Kinds: .tg files, the JSON form of graphs, weights (safetensors), config.json, tokenizer.json, databases, exports of databases,
FlashInfer traces, command lines, and files that are no regular ones. A mutation knows the structure (a number becomes one of 30
digits, a list a text, a key comes twice, brackets nest a thousand deep) or only bytes (flips, cuts,
    repeats). A run passes when it
ends with a documented exit code, without a traceback or a warning of Python,
    within 10 s of processor time and 2 GB beyond what the
package takes,
    and when an error names something on one screen. Mutants are numbered: the same seed and number give the same bytes,
so `--only NUMBER` shows one again. Most run in a forked child of this process,
    `--by-command` of them as a process of their own.
Ends with 1 where a run broke a rule; `--keep FOLDER` keeps the files of those.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import random
import re
import resource
import shutil
import signal
import sqlite3
import struct
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from rich.progress import track

from benchmarks.arguments import at_least

ROOT = Path(__file__).resolve().parent.parent
SECONDS, WALL, MEMORY = 10.0, 60.0, 2 << 30
"""of processor time; on the clock (a run that waits, or a busy machine); bytes beyond what this process has"""
SCREEN = 41
CODES = (0, 1, 2)
DIGITS = "@@DIGITS@@"
"""stands for a number of 5000 digits, which Python's own writer of JSON refuses"""
NUMBERS: tuple[Any, ...] = (0, -1, 1, 3, 255, 2**31 - 1, 2**31, 2**32, 2**53 + 1, 2**63 - 1, 2**63, 2**64, -(2**63) - 1,
                            10**30, 10**400, 0.5, -0.0, 1e-320, 1e308, float("nan"), float("inf"), float("-inf"))
WRONG: tuple[Any, ...] = (None, True, "", "x", "\u0000", "ünïcode \U0001f600", "\ud800", "../../etc/passwd", "%s%n{0}",
    "9" * 400, [], {},
                          [[]], [None], {"": None}, "a" * 20_000, DIGITS)
NAMES = ("", "x", "self", "__class__", "\u200b", "ß", "n" * 300, "a b", "tg", "dim", "nan")

TG = r"""tg 1
dim n 1..64
define twice(a f32[8]) {
  b = add(a, a)
  return b
}
input x f32[n, 32]
input v f32[8]
parameter w f32[16, 32]
state s f32[8]
h = linear(rms_norm(x; eps=1e-06), w)
(best, at) = topk(h; k=4)
output y = softmax(h; axis=-1) * 2.0 + best[:, 0:1]
output z = twice(v) + s
output i = at
update s = s + v * 0.5
"""


@dataclass(frozen=True)
class Mutant:
    """arguments: of `tg`, or the name of a function of this module and its argument; `{}` is the folder that `files` lie in."""

    kind: str
    number: int
    arguments: tuple[str, ...]
    files: Mapping[str, bytes] = field(default_factory=dict)
    special: Mapping[str, str] = field(default_factory=dict)
    """files that are a device, a pipe, a folder, or a link to a path"""


@dataclass(frozen=True)
class Run:
    code: int
    out: str
    err: str
    cpu: float
    wall: float


# ---- mutations -------------------------------------------------------------------------------------------------------


def of_bytes(rng: random.Random, data: bytes) -> bytes:
    """A few changes that know nothing of the structure."""
    made = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 5, 40))):
        at = rng.randrange(len(made) + 1)
        length = rng.choice((1, 1, 4, 16, 300))
        match rng.randrange(7):
            case 0 if made:
                made[at % len(made)] ^= 1 << rng.randrange(8)
            case 1:
                del made[at:]
            case 2:
                made[at:at] = rng.randbytes(length)
            case 3:
                del made[at:at + length]
            case 4:
                made[at:at] = made[at:at + length] * rng.choice((1, 3, 50))
            case 5:
                made[at:at + length] = bytes(length)
            case 6:
                other = rng.randrange(len(made) + 1)
                made[at:at + length] = made[other:other + length]
    return bytes(made)


def of_text(rng: random.Random, text: str) -> str:
    """A few changes that know lines, words, numbers and brackets."""
    for _ in range(rng.choice((1, 1, 2, 4))):
        words = list(re.finditer(r"-?\d+(?:\.\d+)?(?:e-?\d+)?|\w+|[^\w\s]", text))
        if not words:
            return text
        word = rng.choice(words)
        numbers = [w for w in words if w[0][0].isdigit() or w[0][0] == "-"]
        lines = text.split("\n")
        match rng.randrange(9):
            case 0 | 1 if numbers:
                word = rng.choice(numbers)
                value = rng.choice((*map(str, NUMBERS), "9" * 900, "9" * 5000, "1e999", "2 ** 9", "1..2"))
                text = text[:word.start()] + value + text[word.end():]
            case 2:
                text = text[:word.start()] + rng.choice(words)[0] + text[word.end():]
            case 3:
                deep = rng.choice((3, 70, 3000))
                pair = rng.choice(("()", "[]", "{}", "-", "~"))
                text = text[:word.start()] + pair[0] * deep + word[0] + pair[-1] * deep * (len(pair) - 1) + text[word.end():]
            case 4:
                text = text[:word.start()] + text[word.end():]
            case 5:
                at = rng.randrange(len(lines))
                lines[at:at + 1] = [lines[at]] * rng.choice((0, 2, 2, 400))
                text = "\n".join(lines)
            case 6:
                a, b = rng.randrange(len(lines)), rng.randrange(len(lines))
                lines[a], lines[b] = lines[b], lines[a]
                text = "\n".join(lines)
            case 7:
                text = text[:word.start()] + rng.choice((*NAMES, "\x00", "\ufeff", "…", "'", '"',
                    "é" * 500)) + text[word.end():]
            case 8:
                text = text[:word.end()] + f" {rng.choice('+-*/@&|<')} {word[0]}" * rng.choice((1, 60,
                    2000)) + text[word.end():]
    return text


def _places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield from _places(inner, (*path, key))


def _nested(rng: random.Random) -> Any:
    made: Any = rng.choice((1, "x", None))
    for _ in range(rng.choice((20, 400))):
        made = [made] if rng.random() < 0.5 else {"a": made}
    return made


def of_json(rng: random.Random, document: Any) -> bytes:
    """A document with a few values, keys or lists changed, as text; now and then with a key that comes twice, or nested deeply."""
    made = copy.deepcopy(document)
    for _ in range(rng.choice((1, 1, 2, 4))):
        places = [p for p in _places(made) if p]
        if not places:
            break
        path = rng.choice(places)
        holder = made
        for key in path[:-1]:
            holder = holder[key]
        key, old = path[-1], holder[path[-1]]
        match rng.randrange(9):
            case 0 | 1 if isinstance(old, (int, float)):
                holder[key] = rng.choice((*NUMBERS, old * 1000, -old, old + 1, DIGITS))
            case 0 | 1 | 2:
                holder[key] = rng.choice((*NUMBERS, *WRONG))
            case 3:
                del holder[key]
            case 4 if isinstance(holder, dict):
                holder[rng.choice(NAMES)] = holder.pop(key)
            case 4 | 5 if isinstance(holder, list):
                holder[key:key] = [copy.deepcopy(old)] * rng.choice((1, 2, 100))
            case 6:
                holder[key] = rng.choice(([old], {"value": old}, str(old), _nested(rng)))
            case 7:
                other = rng.choice(places)
                found = made
                for step in other:
                    try:
                        found = found[step]
                    except (KeyError, IndexError, TypeError):
                        break
                holder[key] = copy.deepcopy(found) if len(json.dumps(found, default=str)) < 10_000 else 0
            case 8 if isinstance(holder, dict):
                holder[f"@@TWICE@@{key}"] = rng.choice((*NUMBERS, *WRONG))
    text = json.dumps(made).replace("@@TWICE@@", "").replace(json.dumps(DIGITS), "9" * 5000)
    if rng.random() < 0.03:
        text = text.replace(":", ":" + "[" * 5000, 1)
    return text.encode("utf-8", "surrogatepass")


def of_database(rng: random.Random, file: Path) -> None:
    """Change cells, tables or bytes of an SQLite file, in place."""
    if rng.random() < 0.4:
        data = file.read_bytes()
        if rng.random() < 0.5:                                      # beyond the first page, so that it opens
            data = data[:4096] + of_bytes(rng, data[4096:])
        else:
            data = of_bytes(rng, data)
        file.write_bytes(data)
        return
    with sqlite3.connect(file) as opened:
        opened.execute("PRAGMA foreign_keys = OFF")
        opened.execute("PRAGMA ignore_check_constraints = ON")
        tables = [r[0] for r in opened.execute("SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite%'")]
        filled = [t for t in tables if opened.execute(f"SELECT count(*) FROM {t}").fetchone()[0]]
        for _ in range(rng.choice((1, 1, 3))):
            table = rng.choice(filled)
            columns = [r[1] for r in opened.execute(f"PRAGMA table_info({table})")]
            column = rng.choice(columns)
            value = rng.choice((None, -1, 0, 2**63 - 1, 1e300, float("inf"), "", "x", "{", "[" * 5000, "9" * 5000, "\x00",
                "null",
                                "[]", "{}", "[1, NaN]", '{"a": 1e999}', b"\xff\xfe", b"", "ü" * 10_000,
                                "2020-13-45 99:99:99", "9999"))
            try:
                match rng.randrange(8):
                    case 0:
                        opened.execute(f"ALTER TABLE {table} DROP COLUMN {column}")
                    case 1:
                        opened.execute(f"DELETE FROM {table}")
                        filled = [t for t in filled if t != table] or filled
                    case 2 if rng.random() < 0.5:
                        opened.execute(f"DROP TABLE {table}")
                        filled = [t for t in filled if t != table] or filled
                    case _:
                        where = "" if rng.random() < 0.5 else f"WHERE rowid IN (SELECT rowid FROM {table} ORDER BY rowid LIMIT 1)"
                        opened.execute(f"UPDATE {table} SET {column} = ? {where}", (value,))
            except sqlite3.Error:                                   # it is guarded by the schema
                continue


# ---- what is mutated -------------------------------------------------------------------------------------------------


class Corpus:
    """Valid inputs of every kind, made once in a folder of their own."""

    def __init__(self, folder: Path) -> None:
        from tensor_graphs.choice.compile import compile_graph
        from tensor_graphs.frontends.huggingface.folder import write_gemma3_folder
        from tensor_graphs.language.json_writer import graph_to_json
        from tensor_graphs.language.text import parse_graph
        from tensor_graphs.records.database import open_database
        from tensor_graphs.records.portable import export_file
        from tests.cli.command import TINY

        self.folder = folder
        self.texts = [TG, *(f.read_text() for f in sorted((ROOT / "examples").rglob("*.tg"))[:12])]
        self.graphs = [json.loads(graph_to_json(parse_graph(text))) for text in self.texts]
        self.model = folder / "model"
        write_gemma3_folder(self.model, TINY, seed=0)
        vocabulary = {"<pad>": 0, "<eos>": 1, "<bos>": 2, **{f"w{i}": i for i in range(3, 211)}}
        self.tokenizer = {
            "version": "1.0", "truncation": None, "padding": None, "normalizer": None, "post_processor": None, "decoder": None,
            "added_tokens": [{"id": i, "content": t, "single_word": False, "lstrip": False, "rstrip": False,
            "normalized": False,
                              "special": True} for t, i in list(vocabulary.items())[:3]],
            "pre_tokenizer": {"type": "Whitespace"}, "model": {"type": "WordLevel", "vocab": vocabulary, "unk_token": "<pad>"}}
        (self.model / "tokenizer.json").write_text(json.dumps(self.tokenizer))
        self.settings = {"bos_token": "<bos>", "eos_token": "<eos>", "add_bos_token": True, "model_max_length": 256,
                         "chat_template": "{% for m in messages %}{{ m.content }}{% endfor %}"}
        (self.model / "tokenizer_config.json").write_text(json.dumps(self.settings))
        self.config = json.loads((self.model / "config.json").read_text())
        self.weights = (self.model / "model.safetensors").read_bytes()
        self.database = folder / "filled.db"
        with open_database(self.database) as database:
            for text in self.texts[:3]:
                compile_graph(parse_graph(text), database=database, backends=("numpy",))
            self.export = folder / "export.jsonl.gz"
            export_file(database, self.export)
        with sqlite3.connect(self.database) as opened:              # one file, without a log beside it
            opened.execute("PRAGMA journal_mode = DELETE")
        import gzip

        self.lines = gzip.decompress(self.export.read_bytes())
        self.trace = ROOT / "tests/frontends/flashinfer/data_set"
        self.trace_files = sorted(p.relative_to(self.trace) for p in self.trace.rglob("*.json*") if p.read_bytes().strip())


def text_mutant(corpus: Corpus, rng: random.Random, number: int) -> Mutant:
    text = rng.choice(corpus.texts)
    data = of_text(rng, text).encode("utf-8", "surrogatepass") if rng.random() < 0.75 else of_bytes(rng, text.encode())
    verb = rng.choice((("show", "{}/g.tg"), ("show", "{}/g.tg"), ("show", "{}/g.tg", "--json"), ("show", "{}/g.tg", "--expand"),
                       ("list-paths", "{}/g.tg", "--backends", "numpy", "--db", "{}/d.db", "--limit", "2"),
                       ("equal", "{}/g.tg", "{}/old.tg"), ("rewrites", "{}/g.tg")))
    files = {"g.tg": data, "old.tg": text.encode()}
    return Mutant("tg", number, verb, files | ({"d.db": corpus.database.read_bytes()} if "--db" in verb else {}))


def json_mutant(corpus: Corpus, rng: random.Random, number: int) -> Mutant:
    document = rng.choice(corpus.graphs)
    data = of_json(rng, document) if rng.random() < 0.8 else of_bytes(rng, json.dumps(document).encode())
    return Mutant("json", number, ("!read_json", "{}/g.json"), {"g.json": data})


def _model(corpus: Corpus, files: Mapping[str, bytes]) -> dict[str, bytes]:
    valid = {f"m/{p.name}": p.read_bytes() for p in corpus.model.iterdir()}
    return valid | {f"m/{name}": data for name, data in files.items()}


READS = ("run", "{}/m", "--prompt", "w3 w9 w10", "--tokens", "1000000000")
"""all of a folder is read before so many tokens are refused"""


def config_mutant(corpus: Corpus, rng: random.Random, number: int) -> Mutant:
    name, document = rng.choice((("config.json", corpus.config), ("config.json", corpus.config), ("generation_config.json", {
        "bos_token_id": 2, "eos_token_id": [1, 106], "do_sample": True, "top_k": 64, "top_p": 0.95})))
    data = of_json(rng, document) if rng.random() < 0.85 else of_bytes(rng, json.dumps(document).encode())
    verb = ("show", "{}/m") if rng.random() < 0.3 and name == "config.json" else READS
    return Mutant("config.json", number, verb, _model(corpus, {name: data}))


def tokenizer_mutant(corpus: Corpus, rng: random.Random, number: int) -> Mutant:
    name, document = rng.choice((("tokenizer.json", corpus.tokenizer), ("tokenizer_config.json", corpus.settings)))
    data = of_json(rng, document) if rng.random() < 0.85 else of_bytes(rng, json.dumps(document).encode())
    return Mutant("tokenizer.json", number, (*READS, *(("--chat",) if rng.random() < 0.3 else ())), _model(corpus,
        {name: data}))


def weights_mutant(corpus: Corpus, rng: random.Random, number: int) -> Mutant:
    length = struct.unpack("<Q", corpus.weights[:8])[0]
    header, rest = corpus.weights[8:8 + length], corpus.weights[8 + length:]
    if rng.random() < 0.6:
        header = of_json(rng, json.loads(header))
        data = struct.pack("<Q", len(header) if rng.random() < 0.9 else rng.choice((0, 7, 2**31, 2**63,
            2**64 - 1))) + header + rest
    else:
        data = of_bytes(rng, corpus.weights)
    return Mutant("safetensors", number, READS, _model(corpus, {"model.safetensors": data}))


QUESTIONS = (("db", "stats"), ("db", "check"), ("db", "best"), ("db", "best", "--all"), ("db", "failures"),
             ("db", "history", "numpy.add"), ("db", "vacuum"), ("db", "best", "{}/g.tg"), ("db", "export",
             "{}/out.jsonl.gz"), ("db", "export", "{}/out.sqlite"),
             ("db", "trust", "numpy.add"),
             ("explain", "{}/g.tg", "--backends", "numpy"), ("list-paths", "{}/g.tg", "--backends", "numpy", "--limit", "2"))


def database_mutant(corpus: Corpus, rng: random.Random, number: int) -> Mutant:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(shutil.copy(corpus.database, Path(folder) / "d.db"))
        of_database(rng, file)
        data = file.read_bytes()
    question = rng.choice(QUESTIONS)
    more = ("--json",) if rng.random() < 0.3 else ()
    return Mutant("database", number, (*question, "--db", "{}/d.db", *more), {"d.db": data, "g.tg": corpus.texts[1].encode()})


def export_mutant(corpus: Corpus, rng: random.Random, number: int) -> Mutant:
    import gzip

    if rng.random() < 0.7:
        lines = corpus.lines.split(b"\n")
        at = rng.randrange(len(lines) - 1)
        lines[at] = of_json(rng, json.loads(lines[at]))
        data = b"\n".join(lines)
    else:
        data = of_bytes(rng, corpus.lines)
    if rng.random() < 0.3:
        data = gzip.compress(data)
        data = of_bytes(rng, data) if rng.random() < 0.5 else data
    return Mutant("export", number, ("db", "import", "{}/e.jsonl.gz", "--db", "{}/new.db"), {"e.jsonl.gz": data})


def trace_mutant(corpus: Corpus, rng: random.Random, number: int) -> Mutant:
    files = {f"t/{p}": (corpus.trace / p).read_bytes() for p in corpus.trace_files}
    name = f"t/{rng.choice(corpus.trace_files)}"
    lines = files[name].split(b"\n") if name.endswith("l") else [files[name]]
    at = rng.choice([i for i, line in enumerate(lines) if line.strip()])
    try:
        lines[at] = of_json(rng, json.loads(lines[at])) if rng.random() < 0.8 else of_bytes(rng, lines[at])
    except ValueError:                                              # some are kept as they are though they are no JSON
        lines[at] = of_bytes(rng, lines[at])
    files[name] = b"\n".join(lines)
    return Mutant("trace", number, ("db", "import", "--format", "flashinfer-trace", "{}/t", "--db", "{}/new.db"), files)


LINES = (
    ("show", "{}/g.tg"), ("show", "{}/g.tg", "--json", "--expand"),
    ("show", "{}/m", "--dtype", "bfloat16", "--max-positions", "64"),
    ("list-paths", "{}/g.tg", "--at", "n=16", "--limit", "3", "--backends", "numpy", "--db", "{}/d.db", "--tolerance", "1e-3"),
    ("explain", "{}/g.tg", "--at", "n=16", "--largest", "n=64", "--backends", "numpy", "--db", "{}/d.db",
     "--memory-limit", "100000000"),
    ("equal", "{}/g.tg", "{}/g.tg", "--bits"), ("rewrites", "{}/g.tg", "--assuming", "no overflow", "--derive", "0"),
    ("run", "{}/m", "--ids", "2,9,10", "--tokens", "400", "--temperature", "1", "--top-k", "5", "--top-p", "0.9", "--seed",
    "3"),
    ("run", "{}/m", "--prompt", "w3 w4", "--tokens", "300", "--dtype", "float32", "--max-positions", "200"),
    ("embed", "{}/m", "--text", "a", "--text", "b"), ("db", "stats", "--db", "{}/d.db", "--json"),
    ("db", "best", "softmax", "--all", "--tolerance", "1e-3", "--db", "{}/d.db"),
    ("db", "history", "numpy.add", "--limit", "5", "--db", "{}/d.db"),
    ("db", "failures", "numpy.add", "--limit", "5", "--db", "{}/d.db"),
    ("db", "export", "{}/e.jsonl.gz", "--db", "{}/d.db", "--force"),
    ("db", "import", "{}/d.db", "--db", "{}/n.db"), ("new-backend", "mine", "--into", "{}"),
)
VALUES = ("", "0", "-1", "1e9", "1000000000", "99999999999999999999999", "9" * 5000, "nan", "inf", "-inf", "1e-400", "x",
    "n=", "=1",
          "n=16,n=17", "n=99999999999999999999", "--", "-", "/dev/null", "/dev/zero", "/", ".", "{}", "{}/none",
          "\u00e9\U0001f600", "a" * 5000,
          "'; DROP TABLE", "%s", "None", "true", "0x10", "1_000", "٣", " 1", "2,", "c,,numpy", "\x1b[31m", "sqlite://",
          "mysql://nowhere/x",
          "{}/\udcff", "2147483648", "9223372036854775808", "18446744073709551616", "1" + "0" * 400)


def line_mutant(corpus: Corpus, rng: random.Random, number: int) -> Mutant:
    words = list(rng.choice(LINES))
    for _ in range(rng.choice((1, 1, 2))):
        at = rng.randrange(1, len(words)) if len(words) > 1 else 0
        match rng.randrange(6):
            case 0 | 1 | 2:
                words[at] = rng.choice(VALUES)
            case 3:
                del words[at]
            case 4:
                words.insert(at, words[at])
            case 5:
                words.insert(at, rng.choice((*VALUES, "--json", "--bits", "--nonsense", "--help", "-v", "--limit")))
    files = {**_model(corpus, {}), "g.tg": corpus.texts[1].encode(), "d.db": corpus.database.read_bytes()}
    return Mutant("line", number, tuple(w.replace("\0", "") for w in words), files)


def special_mutant(corpus: Corpus, rng: random.Random, number: int) -> Mutant:
    """A file that is a device, a pipe, a folder or a link to itself in the place of one that is read."""
    thing = rng.choice(("/dev/zero", "/dev/urandom", "/dev/full", "/dev/tty", "pipe", "folder", "loop", "socket", "empty"))
    name, line = rng.choice((
        ("g.tg", ("show", "{}/g.tg")), ("g.tg", ("equal", "{}/g.tg", "{}/g.tg")), ("d.db", ("db", "stats", "--db", "{}/d.db")),
        ("d.db", ("explain", "{}/ok.tg", "--backends", "numpy", "--db", "{}/d.db")),
        ("e.gz", ("db", "import", "{}/e.gz", "--db", "{}/n.db")), ("m/config.json", READS), ("m/tokenizer.json", READS),
        ("m/tokenizer_config.json", READS), ("m/model.safetensors", READS),
        ("m/generation_config.json", READS), ("m/chat_template.jinja", READS), ("m/model.safetensors.index.json", READS),
        ("t", ("db", "import", "--format", "flashinfer-trace", "{}/t", "--db", "{}/n.db")),
        ("t/definitions/x.json", ("db", "import", "--format", "flashinfer-trace", "{}/t", "--db", "{}/n.db")),
        ("out.jsonl.gz", ("db", "export", "{}/out.jsonl.gz", "--force", "--db", "{}/ok.db"))))
    files = {"ok.tg": corpus.texts[1].encode(), "ok.db": corpus.database.read_bytes(), **_model(corpus, {})}
    if name.endswith(".index.json"):
        del files["m/model.safetensors"]
    files = {k: v for k, v in files.items() if k != name}
    return Mutant("special", number, line, files, {name: thing})


KINDS: dict[str, tuple[Callable[[Corpus, random.Random, int], Mutant], int]] = {
    "tg": (text_mutant, 6), "json": (json_mutant, 3), "safetensors": (weights_mutant, 2),
    "config.json": (config_mutant, 3), "tokenizer.json": (tokenizer_mutant, 2), "database": (database_mutant, 3),
    "export": (export_mutant, 1),
    "trace": (trace_mutant, 2), "line": (line_mutant, 4), "special": (special_mutant, 1)}
"""how a mutant of the kind is made, and of how many among all"""


def mutant_of(corpus: Corpus, seed: int, number: int, kinds: tuple[str, ...] = tuple(KINDS)) -> Mutant:
    """Mutant `number` of a seed: of the same kind and bytes each time."""
    rng = random.Random(f"{seed}/{number}")
    kind = rng.choices(kinds, [KINDS[k][1] for k in kinds])[0]
    return KINDS[kind][0](corpus, rng, number)


# ---- runs ------------------------------------------------------------------------------------------------------------


def read_json(path: str) -> None:
    """The JSON form of a graph, read and written again."""
    from tensor_graphs.cli.main import _fail
    from tensor_graphs.errors import TensorGraphsError
    from tensor_graphs.language.json_reader import graph_from_json
    from tensor_graphs.language.json_writer import graph_to_json

    try:
        graph_to_json(graph_from_json(Path(path).read_bytes().decode("utf-8", "replace")))
    except TensorGraphsError as error:
        _fail(str(error), 1)                                        # as any verb would tell it


def _lay_out(mutant: Mutant, folder: Path) -> list[str]:
    """Write the mutant's files; its arguments with the folder's name in them."""
    for name, data in mutant.files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    for name, thing in mutant.special.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if thing == "pipe":
            os.mkfifo(path)
        elif thing == "folder":
            path.mkdir()
        elif thing == "empty":
            path.touch()
        elif thing == "socket":
            import socket

            with socket.socket(socket.AF_UNIX) as made:
                made.bind(os.path.relpath(path))
        else:
            path.symlink_to(path.name if thing == "loop" else thing)
    return [a.replace("{}", str(folder)) for a in mutant.arguments]


def _virtual() -> int:
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()


def _child(arguments: list[str], folder: Path, limit: int) -> NoReturn:
    """Run the command in this (forked) process; never returns."""
    code = 1
    try:
        os.setsid()
        os.chdir(folder)
        for number, name in ((0, os.devnull), (1, folder / "stdout"), (2, folder / "stderr")):
            handle = os.open(name, os.O_RDONLY if number == 0 else os.O_WRONLY | os.O_CREAT, 0o600)
            os.dup2(handle, number)
        sys.stdin, sys.stdout, sys.stderr = (os.fdopen(n, m, encoding="utf-8", closefd=False) for n, m in enumerate("rww"))
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        if arguments[:1] == ["!read_json"]:
            read_json(arguments[1])
            code = 0
        else:
            from tensor_graphs.cli.main import main as command

            sys.argv = ["tg", *arguments]
            command()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 0 if end.code is None else 1
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
    finally:
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except (OSError, ValueError):
                code = code or 1
        os._exit(code)


def run(mutant: Mutant, folder: Path, by_command: bool = False) -> Run:
    """Run one mutant to its end, or until its time is over."""
    arguments = _lay_out(mutant, folder)
    started = time.monotonic()
    if by_command and arguments[:1] != ["!read_json"]:
        with open(folder / "stdout", "wb") as out, open(folder / "stderr", "wb") as err:
            command = [sys.executable, "-m", "tensor_graphs.cli.main", *arguments]
            environment = {**os.environ, "PYTHONPATH": str(ROOT)}
            pid = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=err, cwd=folder, env=environment,
                                   start_new_session=True).pid
    else:
        limit = _virtual() + MEMORY
        pid = os.fork()
        if pid == 0:
            _child(arguments, folder, limit)
    status, cpu = 0, 0.0
    while True:
        done, status, used = os.wait4(pid, os.WNOHANG)
        if done:
            cpu = used.ru_utime + used.ru_stime
            break
        if time.monotonic() - started > WALL:
            os.killpg(pid, signal.SIGKILL)
            _, status, used = os.wait4(pid, 0)
            cpu = used.ru_utime + used.ru_stime
            break
        time.sleep(0.002)
    with suppress(ProcessLookupError, PermissionError):             # what it started and left
        os.killpg(pid, signal.SIGKILL)
    out, err = ((folder / name).read_bytes().decode("utf-8", "replace") for name in ("stdout", "stderr"))
    return Run(os.waitstatus_to_exitcode(status), out, err, cpu, time.monotonic() - started)


def broken(done: Run, given: Iterable[str] = ()) -> str:
    """The rule that a run broke; "" where it passed. given: what the verb was given; an error that begins with one names it."""
    if done.wall > WALL:
        return f"was ended after {done.wall:.0f} s, {done.cpu:.1f} s of them of processor time"
    if done.cpu > SECONDS:
        return f"took {done.cpu:.1f} s of processor time, {done.wall:.1f} s in all"
    if "Traceback (most recent call last)" in done.err + done.out:
        return "a traceback: " + done.err.strip().splitlines()[-1][:300]
    if done.code not in CODES:
        return f"exit code {done.code}: {done.err[-300:]}"
    warned = re.search(r"^\S+\.py:\d+: \w*Warning.*", done.err, re.MULTILINE)
    if warned:
        return f"a warning of Python: {warned[0][:300]}"
    if done.code == 0:
        return ""
    said = done.err.strip() or done.out.strip()
    if not said:
        return f"exit code {done.code}, and nothing was said"
    if len(done.err.splitlines()) > SCREEN:
        return f"an error of {len(done.err.splitlines())} lines"
    if max(map(len, done.err.splitlines()), default=0) > 8000:
        return "an error with a line of more than 8000 characters"
    told = said.removeprefix("error:").strip()
    named = re.search(r"['\"/`0-9\-\[(:]", told) or any(told.startswith(f"{word} ") for word in given if word)
    if not named or len(said.split()) < 3:
        return f"an error that names nothing: {said[:200]}"
    return ""


def _special(folder: str, names: list[str]) -> list[str]:
    """What `copytree` cannot copy: pipes, sockets and devices."""
    return [n for n in names if not (Path(folder) / n).is_dir() and not (Path(folder) / n).is_file()]


def load() -> None:
    """Import what children need, so that a fork is ready to work."""
    import alembic.command
    import tokenizers

    import tensor_graphs.choice.compile
    import tensor_graphs.cli.main
    import tensor_graphs.frontends.flashinfer
    import tensor_graphs.frontends.huggingface.load
    import tensor_graphs.frontends.text.tokenizer
    import tensor_graphs.proof.equality
    import tensor_graphs.rewrites.recipes
    import tensor_graphs.rewrites.rules
    import tensor_graphs.views.explain  # noqa: F401

    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    assert alembic.command is not None and tokenizers is not None


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--mutants", type=at_least(1), default=2000)
    parser.add_argument("--first", type=at_least(0), default=0, help="the number of the first mutant")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kinds", default=",".join(KINDS), help="comma-separated: " + ", ".join(KINDS))
    parser.add_argument("--only", type=int, help="run this mutant alone, and print what it said")
    parser.add_argument("--by-command", type=at_least(0), default=40, help="of the mutants run by a process of their own")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop after so many")
    parser.add_argument("--keep", type=Path, help="a folder for the files of runs that broke a rule")
    args = parser.parse_args()
    kinds = tuple(k for k in args.kinds.split(",") if k)
    if not kinds or set(kinds) - KINDS.keys():
        parser.error(f"--kinds: of {', '.join(KINDS)}")
    with tempfile.TemporaryDirectory(prefix="mutated-") as home:
        for variable in ("XDG_DATA_HOME", "XDG_CACHE_HOME"):
            os.environ[variable] = f"{home}/{variable.lower()}"
        os.environ.pop("TENSOR_GRAPHS_DB", None)
        load()
        corpus = Corpus(Path(home))
        numbers = [args.only] if args.only is not None else range(args.first, args.first + args.mutants)
        started, faults = time.monotonic(), list[tuple[Mutant, str]]()
        counts, codes, cpu = Counter[str](), Counter[int](), 0.0
        shown = track(numbers, "mutants", disable=not sys.stderr.isatty())
        for place, number in enumerate(shown):
            if time.monotonic() - started > args.seconds:
                break
            mutant = mutant_of(corpus, args.seed, number, kinds)
            folder = Path(tempfile.mkdtemp(prefix=f"{number}-", dir=home))
            every = max(1, args.mutants // args.by_command) if args.by_command else 0
            done = run(mutant, folder, by_command=bool(every) and place % every == every - 1)
            counts[mutant.kind] += 1
            codes[done.code] += 1
            cpu = max(cpu, done.cpu)
            fault = broken(done, mutant.arguments[1:])
            if args.only is not None:
                print(*mutant.arguments, done.out[-3000:], done.err[-3000:], f"exit code {done.code}, {done.cpu:.2f} s",
                    sep="\n")
            if fault:
                faults.append((mutant, fault))
                line = f"{mutant.kind} {number}: tg {' '.join(mutant.arguments)[:200]!r}: {fault}"
                print(line.encode("utf-8", "replace").decode(), flush=True)
                if args.keep is not None:
                    shutil.copytree(folder, args.keep / str(number), dirs_exist_ok=True, symlinks=True, ignore=_special)
            shutil.rmtree(folder, ignore_errors=True)
    print(f"{sum(counts.values())} mutants of seed {args.seed} in {time.monotonic() - started:.0f} s: "
          f"{', '.join(f'{n} {k}' for k, n in counts.items())}; exit codes {dict(codes)}; "
          f"the longest took {cpu:.1f} s of processor time; {len(faults)} broke a rule")
    sys.exit(1 if faults else 0)


if __name__ == "__main__":
    main()
