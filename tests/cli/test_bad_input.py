"""Whatever a person gets wrong is told on one screen, with what, where and a fix, without a traceback; exit ≠ 0."""

from __future__ import annotations

import json
import os
import re
import resource
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from tensor_graphs.cli import options
from tensor_graphs.cli.graphs import STEP, typical, within
from tensor_graphs.devices.environment import usable_cores
from tensor_graphs.language.text import parse_graph
from tests.cli.command import ROOT, assert_complains, tg, with_words

WEIGHTS = "model.safetensors"
SOFTMAX = "tg 1\ndim n 1..64\ninput x f32[n, 32]\noutput y = softmax(x)\n"


@pytest.fixture
def copy(gemma: Path, tmp_path: Path) -> Path:
    """A copy of the tiny Gemma folder, to be broken."""
    return Path(shutil.copytree(gemma, tmp_path / "model"))


@pytest.fixture
def softmax(tmp_path: Path) -> Path:
    file = tmp_path / "softmax.tg"
    file.write_text(SOFTMAX)
    return file


def change_config(folder: Path, **values: object) -> None:
    file = folder / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **values}))


def change_weights(folder: Path, change: Callable[[dict[str, np.ndarray]], object]) -> None:
    tensors = load_file(folder / WEIGHTS)
    change(tensors)
    save_file(tensors, folder / WEIGHTS)


def run(folder: Path, *more: object) -> object:
    return tg("run", folder, "--ids", "2,9,10", "--tokens", 2, *more)


def test_dtypes_of_a_model_are_refused_for_a_graph(softmax: Path) -> None:
    for option in ("--dtype", "--activations"):
        assert_complains(tg("explain", softmax, option, "bfloat16"), f"{option} bfloat16 is for a model", "leave it out", code=2)


def test_kernels_are_ranked_by_a_number(tmp_path: Path) -> None:
    assert_complains(tg("db", "best", "--tolerance", "norm:1e-3"), "--tolerance norm:1e-3: rows", "fix: --tolerance 1e-3", code=2)


# ---- model folders ----


def test_a_truncated_weights_file(copy: Path) -> None:
    data = (copy / WEIGHTS).read_bytes()
    (copy / WEIGHTS).write_bytes(data[: len(data) // 2])
    assert_complains(run(copy), "error: WeightsError", f"file: {copy / WEIGHTS}")


def test_a_weights_file_that_ends_in_its_header(copy: Path) -> None:
    (copy / WEIGHTS).write_bytes((copy / WEIGHTS).read_bytes()[:20])
    assert_complains(run(copy), "error: WeightsError", f"file: {copy / WEIGHTS}")


def test_a_missing_tensor(copy: Path) -> None:
    change_weights(copy, lambda t: t.pop("model.layers.1.mlp.up_proj.weight"))
    assert_complains(run(copy), "1 of 28 tensors are missing: model.layers.1.mlp.up_proj.weight", "fix:")


def test_a_tensor_of_the_wrong_shape(copy: Path) -> None:
    change_weights(copy, lambda t: t.update({"model.norm.weight": np.zeros(31, np.float32)}))
    assert_complains(run(copy), "model.norm.weight has shape [31], and [32] is needed", "fix:")


def test_a_tensor_of_a_dtype_that_is_no_weight(copy: Path) -> None:
    change_weights(copy, lambda t: t.update({"model.norm.weight": np.zeros(32, np.int8)}))
    assert_complains(run(copy), "model.norm.weight is stored as I8", "fix:")


def test_no_weights_at_all(copy: Path) -> None:
    (copy / WEIGHTS).unlink()
    assert_complains(run(copy), "safetensors", str(copy))


def test_an_unknown_model_type(copy: Path) -> None:
    change_config(copy, model_type="gemma3_txt")
    assert_complains(run(copy), "the model type 'gemma3_txt' is not known", "did you mean gemma3_text?", "config.json")


def test_a_configuration_that_is_no_json(copy: Path) -> None:
    (copy / "config.json").write_text('{"model_type": "gemma3_text",\n "hidden_size": }')
    assert_complains(run(copy), "invalid JSON at line 2, column", f"file: {copy / 'config.json'}", "fix: take the file again")


def test_an_unsupported_dtype_in_the_configuration(copy: Path) -> None:
    change_config(copy, dtype="float8_e4m3fn")
    assert_complains(run(copy), "float8_e4m3fn", "supported: ", "config.json")


@pytest.mark.parametrize("dtype", ["float64", "nonsense"])
def test_an_unsupported_dtype_on_the_command_line(gemma: Path, dtype: str) -> None:
    assert_complains(run(gemma, "--dtype", dtype), f"--dtype {dtype}: ", "fix: float32 or bfloat16", code=2)


def test_a_folder_that_does_not_exist(tmp_path: Path) -> None:
    assert_complains(run(tmp_path / "nowhere"), "there is no such folder", str(tmp_path / "nowhere"), "fix:")


def test_a_file_in_place_of_a_folder(gemma: Path) -> None:
    assert_complains(run(gemma / "config.json"), "this is a file, and a model folder is needed", "fix:")


def test_a_built_in_shape_has_no_weights_of_its_own() -> None:
    assert_complains(tg("run", "gemma-3-270m", "--ids", "2"), "built-in shape without weights", "--random-weights 0")


# ---- prompts ----


def test_a_folder_without_a_tokenizer_is_told_of_ids(gemma: Path) -> None:
    assert_complains(tg("run", gemma, "--prompt", "Hello", "--tokens", 2), "has no tokenizer (tokenizer.json, ", "--ids 2,9259,…")


@pytest.mark.parametrize("arguments", [(), ("--prompt", "Hello", "--ids", "2,9")], ids=["neither", "both"])
def test_either_a_prompt_or_ids(gemma: Path, arguments: tuple[str, ...]) -> None:
    assert_complains(tg("run", gemma, "--tokens", 2, *arguments), "give either --prompt TEXT or --ids", code=2)


def test_a_system_text_and_a_chat_need_a_chat_template(gemma: Path, wordy: Path, minilm: Path, tmp_path: Path) -> None:
    assert_complains(tg("chat", gemma), "has no tokenizer (tokenizer.json, ", "tokenizer.save_pretrained(folder)")
    assert_complains(tg("chat", minilm), "does not generate text", f"tg embed {minilm}")
    plain = with_words(wordy, tmp_path / "plain", template=None)
    for arguments in (("chat", plain), ("run", plain, "--prompt", "w9", "--system", "w7")):
        assert_complains(tg(*arguments), "plain has no chat template", "fix: tg run … --prompt TEXT goes on from a text; to chat,",
                         "(chat_template.jinja)")  # fmt: skip
    for around in (("--ids", "2"), ("--no-chat", "--prompt", "w9")):
        result = tg("run", wordy, "--system", "w7", *around)
        assert_complains(result, f"--system goes through the chat template, and {around[0]} goes around it", code=2)
    refusing = with_words(wordy, tmp_path / "refusing", template="{{ raise_exception('no ' + messages[0].role) }}")
    assert_complains(tg("run", refusing, "--prompt", "w9", "--system", "w7"), "the chat template refuses the messages: no system")


def test_a_file_of_prompts_that_holds_none(wordy: Path, tmp_path: Path) -> None:
    for content, said in ((b" \n\n", "has no prompt in it\n  fix: one prompt a line"), (b"w9\n\xff", "is not UTF-8 text (byte 3)")):
        (tmp_path / "prompts").write_bytes(content)
        assert_complains(tg("run", wordy, "--prompts", tmp_path / "prompts"), f"{tmp_path / 'prompts'} {said}")
    assert_complains(tg("run", wordy, "--prompts", tmp_path / "none"), f"{tmp_path / 'none'} cannot be read: No such file")


@pytest.mark.parametrize("ids", ["2,9259,10", "-1,2"])
def test_ids_outside_of_the_vocabulary(gemma: Path, ids: str) -> None:
    wrong = "9259" if "9259" in ids else "-1"
    assert_complains(
        tg("run", gemma, f"--ids={ids}", "--tokens", 2), f"token id {wrong} is outside of the vocabulary, 0 to 210"
    )


@pytest.mark.parametrize("ids", ["two,three", "2,,3", ""])
def test_ids_that_are_no_numbers(gemma: Path, ids: str) -> None:
    assert_complains(tg("run", gemma, "--ids", ids, "--tokens", 2), f"--ids {ids!r} is not a list of whole numbers", code=2)


def test_a_prompt_longer_than_the_cache(gemma: Path) -> None:
    result = tg("run", gemma, "--ids", ",".join(["5"] * 9), "--tokens", 1, "--max-positions", 8)
    assert_complains(result, "the prompt has 9 tokens", "the cache holds 8", "--max-positions 9")


def test_more_tokens_than_the_cache_has_room_for(gemma: Path) -> None:
    assert_complains(tg("run", gemma, "--ids", "5,6", "--tokens", 8, "--max-positions", 8), "the cache holds 8", "fix:")


def test_a_cache_longer_than_the_model_has_positions(gemma: Path) -> None:
    assert_complains(run(gemma, "--max-positions", 257), "max_positions is 257", "1 to 256")


@pytest.mark.parametrize(("option", "value"), [("--temperature", "-1"), ("--top-p", "1.5")])
def test_sampling_out_of_range(gemma: Path, option: str, value: str) -> None:
    assert_complains(run(gemma, f"{option}={value}"), option[2:].replace("-", "_"), value, "fix:", code=2)


@pytest.mark.parametrize("arguments", [("--memory-limit", -10), ("--memory-limit", 0), ("--random-weights", -1)], ids=str)
def test_a_number_below_what_it_can_be(gemma: Path, arguments: tuple[object, ...]) -> None:
    assert_complains(run(gemma, *arguments), f"Invalid value for '{arguments[0]}'", code=2)


def test_more_tokens_than_the_model_has_positions_for_is_told_the_most_that_fit(gemma: Path) -> None:
    result = tg("run", gemma, "--ids", "2,9,10", "--tokens", 300)
    assert_complains(result, "the model has positions for 256", "fix: --tokens 254 or fewer")
    short = tg("run", gemma, "--ids", "2,9,10", "--tokens", 300, "--max-positions", 8)
    assert_complains(short, "fix: --max-positions 256 and --tokens 254 or fewer")
    long = tg("run", gemma, "--ids", ",".join(["5"] * 257), "--tokens", 1)
    assert_complains(long, "fix: a prompt of at most 256 tokens")


@pytest.mark.parametrize("draw", [(), ("--temperature", 1)], ids=["greedy", "drawn"])
def test_a_weight_that_is_no_number_is_named(copy: Path, draw: tuple[object, ...]) -> None:
    change_weights(copy, lambda t: t["model.layers.1.mlp.up_proj.weight"].__setitem__((3, 4), np.nan))
    said = run(copy, *draw, "--backends", "numpy").stderr.splitlines()[0]
    assert said.endswith("; the first NaN is in parameter model.layers.1.mlp.up_proj.weight")


def test_a_decoder_does_not_embed_and_an_encoder_does_not_generate(gemma: Path, minilm: Path) -> None:
    assert_complains(tg("embed", gemma, "--text", "a"), "does not embed", f"tg run {gemma}")
    assert_complains(tg("run", minilm, "--prompt", "a"), "does not generate text", f"tg embed {minilm}")


def test_an_empty_text_is_not_embedded(minilm: Path) -> None:
    assert_complains(tg("embed", minilm, "--text", "a", "--text", " "), "--text number 2 is empty", code=2)
    assert_complains(tg("embed", minilm), "give either --text TEXT or --texts FILE", code=2)


# ---- graphs ----


def test_a_syntax_error_shows_line_column_and_a_caret(tmp_path: Path) -> None:
    file = tmp_path / "wrong.tg"
    file.write_text("tg 1\ninput x f32[4, 5]\noutput y = softmax(x; axis=\n")
    result = tg("list-paths", file)
    assert_complains(result, f"{file}:3:28: ", "output y = softmax(x; axis=")
    assert result.stderr.splitlines()[2] == " " * (4 + 27) + "^"


def test_an_unknown_op_suggests_the_nearest_one(tmp_path: Path) -> None:
    file = tmp_path / "wrong.tg"
    file.write_text("tg 1\ninput x f32[4, 5]\noutput y = sofmax(x)\n")
    assert_complains(tg("show", file), f"{file}:3:12: no op is named 'sofmax'", "softmax?")
    file.write_text("tg 1\ninput x f32[4, 5]\noutput y = foo(x)\n")
    assert "floor" not in tg("show", file).stderr       # which is not what anybody meant


def test_a_shape_mismatch_names_the_line_and_both_sizes(tmp_path: Path) -> None:
    file = tmp_path / "wrong.tg"
    file.write_text("tg 1\ninput x f32[4, 5]\ninput w f32[6, 7]\noutput y = dot(x, w)\n")
    assert_complains(tg("explain", file), f"{file}:4:12: ", "f32[4, 5]", "f32[6, 7]", "two sizes, 5 and 6", "fix:")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "starts with its version"),
        (b"\xff\xfe\x00", "not UTF-8"),
        (b"tg 9\n", "version 9"),
        (b"tg 1\ninput x f32[2]\n", "no output"),
    ],
)
def test_a_file_that_is_no_graph(tmp_path: Path, content: bytes, said: str) -> None:
    file = tmp_path / "wrong.tg"
    file.write_bytes(content)
    assert_complains(tg("list-paths", file), said, str(file))


def test_a_graph_file_that_is_not_there(tmp_path: Path) -> None:
    assert_complains(tg("list-paths", tmp_path / "none.tg"), "cannot be read: No such file", "fix: the path of a .tg file")
    (tmp_path / "softmax.tg").write_text(SOFTMAX)
    assert_complains(tg("show", tmp_path / "sotfmax.tg"), "No such file", f"fix: did you mean {tmp_path / 'softmax.tg'}?")
    assert_complains(tg("equal", tmp_path, tmp_path), "is a folder; a .tg file is needed", "fix: the path of a .tg file")
    assert_complains(tg("list-paths", tmp_path), "there is no config.json", "fix:")


@pytest.mark.parametrize(
    ("at", "said"),
    [
        ("nonsense", "'nonsense' is not a size like n=1"),
        ("n=x", "'n=x' is not a size"),
        ("k=3", "no dim named 'k'"),
        ("n=65", "n = 65 is outside of its range, 1 to 64"),
    ],
)
def test_sizes_that_are_none(softmax: Path, at: str, said: str) -> None:
    assert_complains(tg("list-paths", softmax, "--at", at), "--at: ", said, code=2)
    assert_complains(tg("explain", softmax, "--largest", at), "--largest: ", said, code=2)


def test_a_decoder_is_priced_in_the_midst_of_a_text_or_at_the_end_of_a_short_cache() -> None:
    decoder = parse_graph("tg 1\ndim n 1..9\ndim m 1..2\ndim p 0..8\ninput x f32[n, m, n + p]\noutput y = relu(x)\n")
    assert within(decoder, STEP) == typical(decoder, None) == {"n": 1, "m": 1, "p": 8}
    assert typical(decoder, "p=3") == {"n": 1, "m": 1, "p": 3}


def test_a_size_that_is_given_twice(softmax: Path) -> None:
    graph = options.read_graph(str(softmax))
    assert options.sizes("n=16", graph) == {"n": 16}
    with pytest.raises(options.UsageError, match="--largest: 'n' is given twice\n  fix: once"):
        options.sizes("n=16, n=17", graph, "--largest")


# ---- choices ----


@pytest.mark.parametrize("value", ["-0.1", "nan"])
def test_a_tolerance_that_is_none(softmax: Path, value: str) -> None:
    assert_complains(tg("list-paths", softmax, f"--tolerance={value}"), f"--tolerance {value}", "≥ 0", "fix:", code=2)


@pytest.mark.parametrize("verb", [("profile", "softmax.tg"), ("db", "drain"), ("devices",)], ids=" ".join)
def test_more_threads_than_four_for_each_core(verb: tuple[str, ...]) -> None:
    cores = usable_cores()
    said = f"error: --threads {4 * cores + 1}: that is more than 4 for each core that this process may use ({cores})"
    assert_complains(tg(*verb, "--threads", 4 * cores + 1), said, f"\n  fix: --threads {cores}, or leave it out", code=2)


def test_no_path_within_the_tolerance_says_which_one_there_is(tmp_path: Path) -> None:
    new = tmp_path / "new.db"                                       # in that of all tests, errors of whole plans may be measured
    file = tmp_path / "log.tg"                                      # errors of an exp are about one rounding
    file.write_text(SOFTMAX.replace("softmax(x)", "log(exp(x) + 1.0)"))
    assert_complains(
        tg("explain", file, "--tolerance", "1e-12", "--precision", "written", "--db", new),
        "no path is within the tolerance 1e-12", "fix: a tolerance of "
    )


def test_an_unknown_backend(softmax: Path) -> None:
    said = "fix: did you mean cuda? There are c, cuda, gen, "
    assert_complains(tg("explain", softmax, "--backends", "c,cudda"), "'cudda' is no backend", said, code=2)
    assert_complains(tg("explain", softmax, "--backends", ","), "names no backend", code=2)


def test_too_little_memory_is_refused_before_anything_runs(gemma: Path) -> None:
    refused = run(gemma, "--memory-limit", 1000, "--backends", "numpy")
    assert_complains(refused, "device cpu may use 1.0 kB", "largest live set", "fix:")


def test_a_graph_that_does_not_fit_at_its_largest_sizes_is_told_which_would(softmax: Path) -> None:
    result = tg("explain", softmax, "--memory-limit", 6000, "--backends", "numpy")
    assert_complains(result, "the plan needs 8.2 kB at n=64", "tg explain: --largest n=")
    most = re.search(r"--largest (n=\d+)", result.stderr)
    assert most is not None
    assert tg("explain", softmax, "--memory-limit", 6000, "--backends", "numpy", "--largest", most[1]).returncode == 0


# ---- files that cannot be read or written ----


def test_a_cache_folder_below_a_regular_file(softmax: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    result = tg("explain", softmax, env={"XDG_CACHE_HOME": str(tmp_path / "file" / "x")})
    assert_complains(result, "cache folder", f"{tmp_path / 'file'} is no folder", "fix: remove that file", "XDG_CACHE_HOME")


def test_a_database_below_a_regular_file(softmax: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for arguments, env in (
        (("--db", str(tmp_path / "file" / "a.db")), {}),
        ((), {"TENSOR_GRAPHS_DB": str(tmp_path / "file" / "a.db")}),
        ((), {"XDG_DATA_HOME": str(tmp_path / "file")}),
    ):
        assert_complains(tg("explain", softmax, *arguments, env=env), f"{tmp_path / 'file'} is no folder", "fix:")


@pytest.mark.parametrize("content", [b"this is no database", b"SQLite format 3\x00" + b"\xff" * 4096])
def test_a_corrupt_database(softmax: Path, tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "bad.db"
    file.write_bytes(content)
    assert_complains(tg("explain", softmax, "--db", file), str(file), "fix:")
    assert file.read_bytes() == content


def test_a_database_of_another_kind(softmax: Path) -> None:
    assert_complains(tg("explain", softmax, "--db", "mysql://host/name"), "mysql", "fix:")


def test_writes_that_fail(softmax: Path, tmp_path: Path) -> None:
    """The file system takes no more than 16 kB per file: the database cannot be made."""

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 14, 1 << 14))

    assert_complains(
        tg("explain", softmax, "--db", tmp_path / "new.db", before=limit), str(tmp_path / "new.db"), "fix:"
    )
    assert_complains(
        tg("explain", softmax, "--db", tmp_path / "new.db", "--backends", "mistake"), "'mistake' is no backend", code=2
    )


def test_standard_output_that_is_full(softmax: Path) -> None:
    with open("/dev/full", "w") as full:
        result = tg("show", softmax, stdout=full)
    assert result.returncode == 1 and result.stderr == "error: No space left on device\n"


# ---- wrong usage ----


@pytest.mark.parametrize("arguments", [("generate",), ("run",), ("run", "x", "--tokens", "0"), ("embed",)])
def test_wrong_usage_is_exit_code_2(arguments: tuple[str, ...]) -> None:
    assert_complains(tg(*arguments), "Try 'tg", "Error: ", code=2)


# ---- rewrites ----


@pytest.mark.parametrize(("given", "told"), [
    (("--level", "foo"), ("--level 'foo'", "fix: bitwise, reassociating")),
    (("--assuming", "typo"), ("--assuming 'typo'", "fix: ", "no overflow")),
    (("--derive", 99), ("--derive 99: only 10 recipes", "fix: --limit 100")),
    (("--derive", 99, "--limit", 200), ("--derive 99: ", "recipes were found", "fix: 0 to ")),
    (("--discover", "softmx"), ("--discover 'softmx'", "fix: softmax")),
    (("--discover", "zzz"), ("--discover 'zzz'", "fix: ", "…")),
], ids=str)
def test_an_option_of_rewrites_that_means_nothing(given: tuple[object, ...], told: tuple[str, ...], softmax: Path) -> None:
    failed = tg("rewrites", softmax, *given)
    assert_complains(failed, *told, code=2)
    assert ".py" not in failed.stderr and "Error at" not in failed.stderr


def test_a_derivation_towards_other_outputs(softmax: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.tg"
    other.write_text(SOFTMAX.replace("output y", "output z"))
    failed = tg("rewrites", softmax, "--to", other)
    assert_complains(failed, f"--to {other}: its outputs are z f32[n, 32]", "are y f32[n, 32]", "fix: the same names")
    assert ".py" not in failed.stderr


def test_a_derivation_that_was_not_found_says_what_would_open_more_rules() -> None:
    naive, online = (ROOT / "examples" / "rewrites" / f"softmax_{name}.tg" for name in ("naive", "online"))
    failed = tg("rewrites", naive, "--to", online)
    assert_complains(failed, f"--to {online}: not found equal", 'fix: ', '--assuming "no overflow" (opens ', "--split", "tg equal")
    assert ".py" not in failed.stderr
    again = tg("rewrites", naive, "--to", online, "--assuming", "no overflow", "--seconds", 0.001)
    assert_complains(again, "the search stopped: more than 0.001 s", "a larger --seconds")
    assert '--assuming "no overflow"' not in again.stderr


# ---- files that have no end, numbers that have no bound ----


@pytest.mark.parametrize("device", ["/dev/zero", "/dev/urandom"])
def test_a_device_is_no_graph_database_or_part_of_a_model(device: str, copy: Path, tmp_path: Path) -> None:
    assert_complains(tg("show", device), f"{device} cannot be read: it is a device, not a regular file")
    assert_complains(tg("db", "stats", "--db", device), f"{device} is a device or a pipe", "fix:")
    for name in ("config.json", WEIGHTS, "chat_template.jinja"):
        file = copy / name
        kept = file.read_bytes() if file.exists() else None
        file.unlink(missing_ok=True)
        file.symlink_to(device)
        if name != "chat_template.jinja":                           # which is read with a tokenizer only
            assert_complains(run(copy), str(copy))
        file.unlink()
        if kept is not None:
            file.write_bytes(kept)


def test_a_pipe_that_nobody_writes_into_is_no_graph(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert_complains(tg("show", tmp_path / "pipe"), "a .tg text starts with its version")
    assert_complains(tg("db", "stats", "--db", tmp_path / "pipe"), "is a device or a pipe, and the database is a regular file")


@pytest.mark.parametrize("digits", [30, 400, 5000])
@pytest.mark.parametrize("key", ["hidden_size", "rms_norm_eps", "sliding_window", "max_position_embeddings", "rope_theta"])
def test_a_number_of_many_digits_in_a_configuration(copy: Path, key: str, digits: int) -> None:
    file = copy / "config.json"
    text = json.dumps({**json.loads(file.read_text()), key: "@"}).replace('"@"', "9" * digits)
    file.write_text(text)
    assert_complains(tg("show", copy), str(file))


@pytest.mark.parametrize("line", ["input x f32[{}]", "dim n 1..{}\ninput x f32[n]",
                                  "input y f32[4]\nx = pad(y; padding=((1, {}),), value=0.0)",
                                  "input y f32[4]\nx = softmax(y; axis={})", "input y i64[4]\nx = y + {}"],
                         ids=["shape", "dim", "pad", "axis", "constant"])
@pytest.mark.parametrize("digits", [30, 5000])
def test_a_number_of_many_digits_in_a_graph(tmp_path: Path, line: str, digits: int) -> None:
    file = tmp_path / "g.tg"
    file.write_text(f"tg 1\n{line.format('9' * digits)}\noutput out = exp(x)\n")
    assert_complains(tg("show", file), f"{file}:")


@pytest.mark.parametrize("verb", [("list-paths", "x.tg"), ("db", "failures"), ("db", "history", "numpy.add")], ids=" ".join)
@pytest.mark.parametrize("limit", ["1000000000", "9" * 30])
def test_a_limit_beyond_what_is_listed(verb: tuple[str, ...], limit: str) -> None:
    assert_complains(tg(*verb, "--limit", limit), "Invalid value for '--limit'", "1000000", code=2)


def test_a_line_of_an_error_is_cut_where_it_quotes_much(tmp_path: Path) -> None:
    result = tg("show", tmp_path / ("a" * 200), *["b" * 100_000])
    assert result.returncode == 2 and "Traceback" not in result.stderr
    assert_complains(tg("db", "stats", "--db", "x" * 100_000), "more characters")


# ---- what is no graph and no model ----


@pytest.mark.parametrize(("verb", "name", "kind"), [
    ("run", "m.pth", "PyTorch"), ("embed", "M.PT", "PyTorch"), ("profile", "m.bin", "PyTorch"), ("explain", "m.h5", "Keras"),
    ("list-paths", "m.pt", "PyTorch"), ("show", "m.h5", "Keras"),
])  # fmt: skip
def test_a_model_file_of_another_kind_is_named(tmp_path: Path, verb: str, name: str, kind: str) -> None:
    (tmp_path / name).write_bytes(b"GGUF")
    more = {"run": ("--ids", "2"), "embed": ("--text", "a")}.get(verb, ())
    assert_complains(tg(verb, tmp_path / name, *more), f"this is a file of the {kind} kind, which is not read yet",
                     str(tmp_path / name), "fix: a model folder as it is published (config.json, *.safetensors)")  # fmt: skip


@pytest.mark.parametrize("verb", ["run", "embed", "profile", "explain", "convert"])
def test_a_damaged_gguf_file_is_refused_in_three_lines(tmp_path: Path, verb: str) -> None:
    (tmp_path / "m.gguf").write_bytes(b"GGUF")
    more = {"run": ("--ids", "2"), "embed": ("--text", "a"), "convert": (tmp_path / "x.gguf",)}.get(verb, ())
    assert_complains(tg(verb, tmp_path / "m.gguf", *more), "the header: 4 bytes are announced at byte 4, and 0 follow",
                     str(tmp_path / "m.gguf"), "fix: fetch the file again")


@pytest.mark.parametrize("verb", ["run", "explain"])
def test_weights_without_their_folder_lead_to_it(tmp_path: Path, verb: str) -> None:
    save_file({"w": np.ones(3, np.float32)}, tmp_path / "m.safetensors")
    more = {"run": ("--ids", "2")}.get(verb, ())
    assert_complains(tg(verb, tmp_path / "m.safetensors", *more), "these are weights", f"fix: name its folder: {tmp_path}")


def test_random_weights_need_a_configuration_and_no_more_of_any_family(tmp_path: Path) -> None:
    sizes = {"vocab_size": 50, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2}
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama", "max_position_embeddings": 32, **sizes}))
    said = tg("run", tmp_path, "--random-weights", 0, "--ids", "1,2", "--tokens", 2, "--backends", "numpy")
    assert said.returncode == 0 and said.stdout.count(",") == 1, said.stderr
    assert_complains(tg("run", tmp_path, "--random-weights", 0, "--ids", "50"), "token id 50 is outside", "fix: ids of this model")


def test_a_verb_without_what_it_is_about_says_what_that_is() -> None:
    for verb, fix in (("run", "fix: tg run MODEL: A model folder"), ("explain", "fix: tg explain FILE|MODEL: A .tg or .onnx file")):
        said = tg(verb)
        assert said.returncode == 2 and fix in said.stderr and "Traceback" not in said.stderr


def test_a_built_in_shape_that_is_spelt_almost_right() -> None:
    assert_complains(tg("list-paths", "gemma-3-270"), "there is no file, folder or built-in shape 'gemma-3-270'",
                     "fix: did you mean gemma-3-270m?")


def test_an_option_that_takes_one_value_is_given_once(gemma: Path) -> None:
    result = tg("run", gemma, "--ids", "2", "--tokens", 2, "--ids=3")
    assert_complains(result, "--ids is given 2 times, and it takes one value\n  fix: --ids once", code=2)
    assert_complains(tg("db", "best", "--tolerance", 1, "--tolerance", 2), "--tolerance is given 2 times", code=2)
