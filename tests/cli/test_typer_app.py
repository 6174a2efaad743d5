"""Each verb answers a person and, with --json, prints exactly one JSON document that says the same."""

from __future__ import annotations

import json
import logging
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tensor_graphs.cli.main import VERBS, common
from tensor_graphs.devices.toolchain import build_library
from tensor_graphs.frontends.huggingface.load import load_model
from tensor_graphs.language.text import parse_graph
from tensor_graphs.meaning.interpreter import interpret
from tests.cli.command import ROOT, TINY, assert_complains, document, tg, with_words

EXAMPLES = sorted((ROOT / "examples").glob("*.tg"))


def oracle_tokens(folder: Path, prompt: list[int], tokens: int) -> list[int]:
    """Greedy tokens by the float64 interpreter."""
    model = load_model(folder)
    ids = list(prompt)
    for _ in range(tokens):
        n = len(ids)
        states = {name: np.zeros(node.shape) for name, node in model.graph.states.items()}
        result = interpret(
            model.graph, {"ids": np.array(ids, np.int32)}, dict(model.weights), states, {"n": n, "p": 0, "m": 1}
        )
        ids.append(int(result.outputs["logits"][-1].argmax()))
    return ids[len(prompt) :]


def test_the_version_and_the_verbs() -> None:
    assert tg("--version").stdout.startswith("tg ")
    shown = tg("--help").stdout
    for verb in VERBS:
        assert re.search(rf"^│ {verb.replace('_', '-')} ", shown, re.MULTILINE), verb


def test_on_a_terminal_the_command_says_that_it_compiles_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    log = logging.getLogger("tensor_graphs.devices.toolchain")
    monkeypatch.setattr(log, "filters", [])
    monkeypatch.setattr(log, "level", log.level)
    monkeypatch.setattr(logging.getLogger("tensor_graphs"), "level", logging.NOTSET)
    (tmp_path / "one.c").write_text("int one(void) { return 1; }\n")
    for terminal in (False, True, True):                           # off a terminal, at the first command, at the next
        monkeypatch.setattr(sys.stderr, "isatty", lambda terminal=terminal: terminal)
        common(verbose=0)
        build_library([tmp_path / "one.c"], name=f"one_{terminal}", cache=tmp_path / "cache")
    said = capsys.readouterr()
    assert said.out == "" and said.err.count("compiling one_True: 1 C file, once for this machine\n") == 1
    assert "one_False" not in said.err


def test_run_generates_the_tokens_of_the_oracle_and_says_what_it_took(gemma: Path) -> None:
    said = document(tg("run", gemma, "--ids", "2,9,10", "--tokens", 6, "--ignore-eos", "--json"))
    assert said["ids"] == oracle_tokens(gemma, [2, 9, 10], 6)
    assert said["tokens_per_second"] == pytest.approx(1e3 / np.median(said["step_ms"]))
    assert len(said["step_ms"]) == 5 and said["prefill_ms"] > 0
    detail = said["memory_detail"]["cpu"]
    assert said["memory"]["cpu"] == detail["total"] > detail["parameters"] > 0
    assert detail["states"] == 2 * TINY.num_hidden_layers * TINY.max_position_embeddings * TINY.head_dim * 4
    spoken = tg("run", gemma, "--ids", "2,9,10", "--tokens", 6, "--ignore-eos")
    assert spoken.stdout == ",".join(map(str, said["ids"])) + "\n"
    assert "6 tokens" in spoken.stderr and "tokens/s (median of 5 steps)" in spoken.stderr
    assert said["predicted_step_ms"] > 0 and said["predicted_at"]["n"] == said["predicted_at"]["m"] == 1 < said["predicted_at"]["p"]


@pytest.mark.long
def test_random_weights_and_draws_are_repeatable_and_depend_on_their_seeds(gemma: Path) -> None:
    def ids(*more: object, anew: bool = False) -> list[int]:
        said = tg("run", gemma, "--ids", "2,9,10", "--tokens", 8, "--ignore-eos", "--json", *more, anew=anew)
        return list(document(said)["ids"])

    stored = ids()
    assert ids("--random-weights", 0, "--threads", 1) == stored  # the folder was written from seed 0
    drawn = ids("--temperature", 5, "--top-k", 50, "--top-p", 0.9, "--seed", 3)
    assert drawn == ids("--temperature", 5, "--top-k", 50, "--top-p", 0.9, "--seed", 3, anew=True) != stored   # another hash seed
    assert ids("--top-k", 50, "--seed", 3) == ids("--temperature", 1, "--top-k", 50, "--seed", 3)
    assert ids("--top-k", 0) == stored == ids("--temperature", 0, "--top-k", 50, "--seed", 3)


def test_a_folder_with_a_tokenizer_takes_a_prompt_a_chat_template_and_stops_at_the_end_of_text(
    gemma: Path, tmp_path: Path
) -> None:
    folder = with_words(gemma, tmp_path / "model", template=None)
    expected = oracle_tokens(gemma, [2, 9, 10], 6)
    said = document(tg("run", folder, "--prompt", "w2 w9 w10", "--tokens", 6, "--json", "--ignore-eos"))
    assert said["ids"] == expected and said["text"] == " ".join(f"w{i}" for i in expected)

    template = "{% for message in messages %}w2 {{ message['content'] }} w10{% endfor %}"
    folder = with_words(gemma, tmp_path / "chat", template=template, end=[1, expected[2]])
    chat = document(tg("run", folder, "--prompt", "w9", "--tokens", 6, "--json"))
    assert chat["ids"] == expected[: expected.index(expected[2]) + 1] and chat["stopped"] is True
    plain = tg("run", folder, "--prompt", "w2 w9 w10", "--tokens", 6, "--no-chat", "--ignore-eos")
    assert plain.stdout == said["text"] + "\n"


def test_generation_ends_before_a_stop_text_which_is_not_shown_either(gemma: Path, wordy: Path) -> None:
    asked = ("run", wordy, "--prompt", "w2 w9 w10", "--no-chat", "--tokens", 6, "--ignore-eos")
    ids = oracle_tokens(gemma, [2, 9, 10], 6)
    stop = f"w{ids[2]} w{ids[3]}"
    cut = document(tg(*asked, "--stop", "no such", "--stop", stop, "--json"))
    assert cut["ids"] == ids[:4] and cut["text"] == f"w{ids[0]} w{ids[1]} " and cut["stopped"] is True
    assert tg(*asked, "--stop", stop).stdout == cut["text"] + "\n"
    held = f"w{ids[-1]} and on"                              # the last text may begin it, and does not
    assert tg(*asked, "--stop", held).stdout == " ".join(f"w{i}" for i in ids) + "\n"
    assert_complains(tg(*asked, "--stop", ""), "--stop '' is no text", code=2)
    assert_complains(tg("run", gemma, "--ids", "2,9", "--stop", "x"), "has no tokenizer, so --stop has no text to look at")


def test_lines_of_json_are_the_tokens_with_their_log_probabilities_and_then_the_document(gemma: Path, wordy: Path) -> None:
    asked = ("run", wordy, "--prompt", "w2 w9 w10", "--no-chat", "--tokens", 5, "--ignore-eos", "--logprobs")
    whole = document(tg(*asked, "--json"))
    *tokens, last = map(json.loads, tg(*asked, "--jsonl").stdout.splitlines())
    ids = oracle_tokens(gemma, [2, 9, 10], 5)
    assert [line["id"] for line in tokens] == last["ids"] == whole["ids"] == ids and last.keys() == whole.keys()
    assert "".join(line["text"] for line in tokens) == last["text"] == whole["text"]
    assert [line["logprob"] for line in tokens] == last["logprobs"] == whole["logprobs"] and max(last["logprobs"]) < 0
    *lines, several = map(json.loads, tg("run", wordy, "--prompt", "w9", "--prompt", "w10", "--tokens", 3, "--ignore-eos",
                                         "--jsonl").stdout.splitlines())
    assert [line["prompt"] for line in lines] == [0] * 3 + [1] * 3 and {"prompt", "id", "text"} == set(lines[0])
    assert [line["id"] for line in lines] == [i for each in several for i in each["ids"]]
    assert_complains(tg(*asked), "--logprobs has its place in a JSON document", "fix: --json or --jsonl", code=2)
    assert_complains(tg(*asked, "--json", "--jsonl"), "--json and --jsonl are two forms", code=2)


def test_a_repetition_penalty_and_a_min_p_change_what_is_generated(gemma: Path) -> None:
    def ids(*more: object) -> list[int]:
        return list(document(tg("run", gemma, "--ids", "2,9,10", "--tokens", 12, "--ignore-eos", "--json", *more))["ids"])

    plain, varied = ids(), ids("--repetition-penalty", 1e6)
    assert len(set(plain)) < 12 == len(set(varied)) and not {2, 9, 10} & set(varied)
    assert ids("--min-p", 1, "--temperature", 9) == plain != ids("--min-p", 0.01, "--temperature", 9, "--seed", 1)
    assert_complains(tg("run", gemma, "--ids", "2", "--min-p", 2), "min_p is 2", code=2)
    assert_complains(tg("run", gemma, "--ids", "2", "--repetition-penalty", 0), "repetition_penalty is 0", code=2)


def test_several_prompts_are_answered_each_on_its_own(wordy: Path, tmp_path: Path) -> None:
    options = ("--tokens", 4, "--system", "w7", "--top-k", 9, "--seed", 3)
    (tmp_path / "prompts").write_text("w9 w10\n\nw11\nw9 w10\n")
    said = document(tg("run", wordy, "--prompts", tmp_path / "prompts", *options, "--json"))
    assert [d["prompt"] for d in said] == ["w9 w10", "w11", "w9 w10"] and [d["prompt_tokens"] for d in said] == [9, 8, 9]
    assert said[0]["ids"] == said[2]["ids"] != said[1]["ids"]
    assert said[0]["cached_tokens"] == 0 and said[0]["compile_ms"] > 0
    alone = document(tg("run", wordy, "--prompt", "w11", *options, "--json"))
    assert alone["ids"] == said[1]["ids"] and "prompt" not in alone
    shown = tg("run", wordy, "--prompt", "w9 w10", "--prompt", "w11", *options)
    assert shown.stdout == f"> w9 w10\n{said[0]['text']}\n\n> w11\n{said[1]['text']}\n"
    assert "2 prompts · 8 tokens" in shown.stderr and shown.stderr.count("compile ") == 1
    shown = tg("run", wordy, "--prompt", "w9 w10", "--prompt", "w11", *options, "--jsonl")
    lines = [json.loads(line) for line in shown.stdout.splitlines()]
    for number in range(2):
        assert [line["id"] for line in lines[:-1] if line["prompt"] == number] == said[number]["ids"]
    assert [d["ids"] for d in lines[-1]] == [d["ids"] for d in said[:2]]


def test_invariant_answers_are_those_of_each_prompt_alone(wordy: Path) -> None:
    def answers(*prompts: str) -> list[tuple[Any, Any]]:
        answer = document(tg("run", wordy, *(part for p in prompts for part in ("--prompt", p)), "--tokens", 6, "--stop", "w146",
                           "--logprobs", "--json", "--invariant"))
        return [(d["ids"], d["logprobs"]) for d in (answer if isinstance(answer, list) else [answer])]

    prompts = [f"w{i} w{i + 7}" for i in range(9, 14)]
    assert answers(*prompts) == [answers(prompt)[0] for prompt in prompts]
    shown = tg("run", wordy, "--prompt", "w9", "--invariant", "--tolerance", "1e-3")
    assert_complains(shown, "--tolerance is not for prompts", code=2)
    each = document(tg("run", wordy, "--prompt", "w9", "--prompt", "w11", "--tolerance", "1e-3", "--tokens", 2, "--json"))
    assert len(each) == 2 and "cached_tokens" not in each[0]


@pytest.mark.long
def test_bf16_weights_take_half_the_memory(gemma: Path) -> None:
    def parameters(dtype: str) -> int:
        said = document(tg("run", gemma, "--ids", "2", "--tokens", 2, "--json", "--dtype", dtype))
        return int(said["memory_detail"]["cpu"]["parameters"])

    assert parameters("bfloat16") < 0.6 * parameters("float32")


def test_embed_prints_vectors_or_similarities(minilm: Path) -> None:
    texts = ["A cat sleeps.", "A kitten naps.", "Matrix products."]
    arguments = ["embed", minilm, *(part for t in texts for part in ("--text", t))]
    said = document(tg(*arguments, "--json"))
    vectors = np.array(said["embeddings"])
    assert vectors.shape == (3, 384) and said["texts"] == texts and said["memory"]["cpu"] > 80e6
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, rtol=1e-5)
    similar = vectors @ vectors.T
    assert similar[0, 1] > 0.5 > similar[0, 2]
    table = tg(*arguments).stdout.splitlines()
    assert len(table) == 3 and table[0].endswith("A cat sleeps.") and f"{similar[0, 1]:.3f}" in table[0]


def test_embed_says_what_of_a_long_text_it_leaves_out(minilm: Path) -> None:
    result = tg("embed", minilm, "--text", "short", "--text", "word " * 300, "--json")
    assert document(result)["tokens_left_out"] == [0, 46]
    assert result.stderr.startswith("note: --text number 2 has 46 tokens more than the 256 that ")


@pytest.mark.parametrize("file", EXAMPLES, ids=lambda f: f.stem)
def test_show_prints_a_text_that_reads_back_as_the_same_graph(file: Path) -> None:
    said = document(tg("show", file, "--json"))
    assert (
        parse_graph(said["text"]).structural_key
        == said["structural_key"]
        == parse_graph(file.read_text()).structural_key
    )
    assert tg("show", file).stdout.splitlines()[0] == "tg 1"


def test_show_expands_composites_into_the_27_atomic_ops() -> None:
    from tensor_graphs.language import leaves
    from tensor_graphs.language.atomic import ATOMIC

    expanded = parse_graph(document(tg("show", ROOT / "examples" / "softmax.tg", "--expand", "--json"))["text"])
    assert {n.op.name for n in expanded.nodes} - {op.name for op in leaves.NAMED_LEAVES} - {"constant"} <= set(ATOMIC)


def test_list_paths_is_sorted_by_price_and_complete_in_its_fields() -> None:
    file = ROOT / "examples" / "softmax.tg"
    said = document(tg("list-paths", file, "--at", "n=16", "--backends", "c,gen,numpy", "--limit", 12, "--json"))
    assert len(said) == 12 and len({path["id"] for path in said}) == 12
    order = [(path["small_swaps"], path["predicted_us"]) for path in said]
    assert order == sorted(order)
    for path in said:
        assert set(path) >= {"id", "predicted_us", "measured", "error", "steps"}
        assert path["of"] > 1000 and path["of_is_exact"]
        assert all(step["kernel"] for step in path["steps"])
    shown = tg("list-paths", file, "--at", "n=16", "--backends", "c,gen,numpy", "--limit", 12).stdout
    assert said[0]["id"] in shown.splitlines()[0] and f"(12 of {said[0]['of']:,} paths; --limit shows more)" in shown


def test_explain_says_the_same_in_both_forms() -> None:
    file = ROOT / "examples" / "cached_attention.tg"
    said = document(tg("explain", file, "--at", "n=1,p=255", "--json"))
    shown = tg("explain", file, "--at", "n=1,p=255").stdout
    for variant in said["variants"]:
        assert variant["path"] in shown
        for choice in variant["choices"]:
            assert choice["kernel"] in shown
    kinds = ("parameters", "states", "arena", "outputs", "constants", "bound", "scratch")
    assert said["memory"]["total"] == sum(said["memory"][kind] for kind in kinds)


def test_devices_names_each_backend_or_why_it_is_missing() -> None:
    said = document(tg("devices", "--json"))
    assert said["devices"][0]["cores"] >= 1
    assert {b["backend"] for b in said["backends"]} >= {"numpy", "c"}
    for backend in said["backends"]:
        assert backend["available"] is (backend["why_not"] is None)
        assert (backend["kernels"] > 0) is backend["available"]


def test_db_tells_its_rows_checks_itself_and_names_the_best(tmp_path: Path) -> None:
    file = tmp_path / "small.tg"
    file.write_text("tg 1\ninput x f32[8, 32]\noutput y = softmax(x)\n")
    db = ("--db", tmp_path / "own.db", "--json")
    done = document(tg("profile", file, "--budget", 60, "--backends", "numpy", *db))
    assert done["measured"] >= 1 and done["failed"] == done["left"] == 0 and not done["interrupted"]
    assert document(tg("db", "stats", *db))["rows"]["benchmark_traces"] >= done["measured"]
    best = document(tg("db", "best", *db))
    assert {row["implementation_name"] for row in best} >= {"numpy.softmax"}
    assert all(row["worst_relative_error"] <= 1e-3 for row in best)
    assert document(tg("db", "check", *db)) == {"ok": True, "problems": [], "removed": {}}
    assert document(tg("db", "vacuum", *db))["bytes"] >= 0
    again = document(tg("profile", file, "--budget", 60, "--backends", "numpy", *db))
    assert again["measured"] == again["again"] and again["left"] == 0 and again["already_known"] >= 1       # nothing but doubts


def test_equal_proves_refutes_and_says_so_to_machines(tmp_path: Path) -> None:
    one, other = tmp_path / "a.tg", tmp_path / "b.tg"
    one.write_text("tg 1\ndim n 1..64\ninput x f32[n, 6]\noutput y = rms_norm(x; eps=1e-06)\n", encoding="utf-8")
    other.write_text("tg 1\ndim n 1..64\ninput x f32[n, 6]\noutput y = rms_norm(x; eps=1e-05)\n", encoding="utf-8")
    examples = (ROOT / "examples" / "softmax.tg", ROOT / "examples" / "softmax_safe.tg")
    assert document(tg("equal", *examples, "--json"))["verdict"] == "structural"
    assert document(tg("equal", one, one, "--bits", "--json"))["mode"] == "bits"
    refused = tg("equal", one, other, "--json")
    said = json.loads(refused.stdout)
    assert refused.returncode == 1 and said["verdict"] == "refuted"
    shown = said["counterexample"]
    assert shown["left"] != shown["right"] and shown["leaves"]["x"]["shape"] == [shown["sizes"]["n"], 6]
    assert tg("equal", one, other).stdout.startswith("not equal:\ny[")


def test_rewrites_lists_recipes_and_derives_them(tmp_path: Path) -> None:
    naive = ROOT / "examples" / "rewrites" / "softmax_naive.tg"
    said = document(tg("rewrites", naive, "--assuming", "no overflow", "--derive", 0, "--limit", 3, "--json"))
    assert said["paid"] == 3 and [r["paid"] for r in said["recipes"]] == [1, 1, 3]         # the fewest first
    assert said["recipes"][0]["rules"] == ["softmax/naive-to-safe"] and "softmax/naive-to-safe" in said["derivation"][0]
    assert said["report"]["saturated"] == {"bitwise": True, "reassociating": True}
    for recipe in said["recipes"]:
        assert list(parse_graph(recipe["graph"]).outputs) == ["out"]
    spoken = tg("rewrites", naive, "--level", "bitwise").stdout
    assert "as given" in spoken and "softmax/naive-to-safe" not in spoken
    found = document(tg("rewrites", naive, "--discover", "softmax", "--json"))["discovered"]
    assert [(f["composite"], f["attributes"]) for f in found] == [("softmax", {"axis": "-1"})]
    assert tg("rewrites", naive, "--discover", "silu").stdout == "nothing was found\n"


def test_rewrites_runs_the_rules_of_a_module_that_is_imported(tmp_path: Path) -> None:
    graph, rules = tmp_path / "squares.tg", tmp_path / "my_rules.py"
    graph.write_text("tg 1\ninput x f32[4, 6]\ninput y f32[4, 6]\noutput out = sub(mul(x, x), mul(y, y))\n")
    rules.write_text("import tensor_graphs as tg\n@tg.rule('sub(mul(x, x), mul(y, y))', dtypes='float')\n"
                     "def squares(x, y):\n    return (x - y) * (x + y)\n")
    assert "squares" not in tg("rewrites", graph).stdout.replace(str(graph), "")
    said = document(tg("rewrites", graph, "--import", rules, "--json"))
    assert any(r["rules"] == ["squares"] for r in said["recipes"])


def test_a_condition_that_a_rule_of_a_module_assumes_may_be_taken_for_granted(tmp_path: Path) -> None:
    graph, rules = tmp_path / "log.tg", tmp_path / "my_rules.py"
    graph.write_text("tg 1\ninput x f32[4, 6]\ninput y f32[4, 6]\noutput out = log(x * y)\n")
    rules.write_text("import tensor_graphs as tg\n"
                     "@tg.rule('log(mul(x, y))', dtypes='float', assuming='logarithms of numbers > 0')\n"
                     "def logs(x, y):\n    return tg.log(x) + tg.log(y)\n")
    assert "logs takes no part: it assumes logarithms of numbers > 0" in tg("rewrites", graph, "--import", rules).stdout
    given = ("--assuming", "logarithms of numbers > 0", "--assuming", "roots of numbers >= 0")
    said = document(tg("rewrites", graph, "--import", rules, *given, "--json"))
    assert any(r["rules"] == ["logs"] for r in said["recipes"])


def test_rewrites_tells_what_each_rule_did_where_it_is_asked_to() -> None:
    naive = ROOT / "examples" / "rewrites" / "softmax_naive.tg"
    short = tg("rewrites", naive, "--limit", 1).stdout
    assert "--report" in short and "unattributed" not in short
    table = tg("rewrites", naive, "--limit", 1, "--report").stdout
    for word in ("matches", "applied", "rejected", "starved", "ms", "\ncomposite/recognise ", "\nunattributed "):
        assert word in table, table


def test_rewrites_says_so_where_no_step_is_needed() -> None:
    naive = ROOT / "examples" / "rewrites" / "softmax_naive.tg"
    assert "is the same graph as" in tg("rewrites", naive, "--to", naive, "--limit", 1).stdout
    assert "recipe 0 is the graph as given" in tg("rewrites", naive, "--derive", 0, "--limit", 1).stdout


def test_a_command_that_compiles_says_where_its_time_went() -> None:
    said = tg("--verbose", "explain", ROOT / "examples" / "softmax.tg").stderr
    rows = [line.split("INFO tensor_graphs.phase_times: ")[1] for line in said.splitlines() if "tensor_graphs.phase_times" in line]
    assert {"import", "prepare", "choose", "lower", "explain", "anything else", "all"} <= {re.split(r"  +", row)[0] for row in rows}
    assert "tensor_graphs.phase_times" not in tg("--verbose", "models").stderr


def test_a_second_start_takes_the_plan_of_the_first_from_its_file(gemma: Path, tmp_path: Path) -> None:
    asked = ("--verbose", "run", gemma, "--ids", "2,9,10", "--tokens", 3, "--ignore-eos")
    own = {"TENSOR_GRAPHS_DB": str(tmp_path / "own.db")}            # rows that another test adds meanwhile make a plan stale
    first, second = (tg(*asked, env=own) for _ in range(2))
    assert second.stdout == first.stdout and "the plan is taken from" in second.stderr
    phases = {line.split("phase_times: ")[1].split()[0] for line in second.stderr.splitlines() if "phase_times: " in line}
    assert "lower" in phases and not {"choose", "prepare"} & phases
