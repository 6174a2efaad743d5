"""serving/conversation.py, and serving/generate.py where a session goes on: what a chat feeds and answers is what transformers
makes of the whole conversation, turn by turn."""

from __future__ import annotations

import json
import logging
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
import torch
from family_cases import DECODERS, VOCABULARY
from transformers import PreTrainedTokenizerFast

import tensor_graphs as tg
from tensor_graphs.argument_checks import ArgumentError
from tensor_graphs.choice.compile import compile_graph
from tensor_graphs.errors import TensorGraphsError
from tensor_graphs.frontends.errors import ConversationError, FrontendError, TokenizerError
from tensor_graphs.frontends.huggingface.load import LoadedModel, load_model
from tensor_graphs.records.database import Database
from tensor_graphs.runtime.compiled_graph import CompiledGraph, bind
from tensor_graphs.runtime.errors import RunError
from tensor_graphs.runtime.session import Transcript
from tensor_graphs.serving.conversation import Conversation
from tensor_graphs.serving.generate import cache_length, generate, stream
from tensor_graphs.serving.sampling import Sampler, Sampling

USER, MODEL, SYSTEM, END = (f"w{VOCABULARY - k}" for k in (1, 2, 3, 4))
PLAIN = (f"w1{{% for m in messages %}} {{{{ {{'user': '{USER}', 'assistant': '{MODEL}', 'system': '{SYSTEM}'}}[m.role] }}}} "
         f"{{{{ m.content }}}} {END}{{% endfor %}}{{% if add_generation_prompt %}} {MODEL}{{% endif %}}")
FORGETFUL = PLAIN.replace("{{ m.content }}", "{{ m.content.split()[1:] | join(' ') if m.role == 'assistant' else m.content }}")
"""of earlier answers it leaves out the first word, as templates leave out what was thought aloud"""
TEMPLATES = {"plain": PLAIN, "forgetful": FORGETFUL}
TURNS = ["w5 w6 w7", "w8", "w9 w10 w11 w12"]
TOKENS = 9
"""of an answer: three turns are longer than the window of 9"""


def splitter() -> tokenizers.Tokenizer:
    """A word per id."""
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel({f"w{i}": i for i in range(VOCABULARY)}, unk_token="w0"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    return made


@dataclass
class Made:
    """A small model in a folder, as transformers' in double precision, and bound."""

    folder: Path
    theirs: Any
    compiled: CompiledGraph

    def model(self, template: str | None, end: list[int]) -> LoadedModel:
        """The folder with this chat template and these end-of-turn ids."""
        (self.folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": template} if template else {}))
        (self.folder / "generation_config.json").write_text(json.dumps({"eos_token_id": end}))
        return load_model(self.folder, max_positions=72)

    def answer(self, ids: list[int], end: list[int]) -> list[int]:
        """transformers' greedy tokens behind all of `ids`."""
        out = self.theirs.generate(torch.tensor([ids]), do_sample=False, max_new_tokens=TOKENS, eos_token_id=end or None)
        return [int(i) for i in out[0, len(ids):]]


@pytest.fixture(scope="module", params=[pytest.param("llama: untied", marks=pytest.mark.long), "mistral: window"])
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, store: Database) -> Made:
    folder = tmp_path_factory.mktemp("talking")
    theirs = next(case for case in DECODERS if case.id == request.param).write(folder)
    splitter().save(str(folder / "tokenizer.json"))
    model = load_model(folder, max_positions=72)
    compiled = bind(compile_graph(model.graph, database=store, at={"n": 1, "m": 1, "p": 32}), model.weights)
    return Made(folder, theirs, compiled)


@pytest.mark.parametrize("template", TEMPLATES)
@pytest.mark.parametrize("system", [None, "w3 w4"], ids=["no system", "system"])
def test_three_turns_are_those_of_transformers_for_the_whole_conversation(
    made: Made, template: str, system: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    chat = PreTrainedTokenizerFast(tokenizer_object=splitter(), chat_template=TEMPLATES[template])
    messages: list[dict[str, str]] = [] if system is None else [{"role": "system", "content": system}]

    def prompt() -> list[int]:
        return list(chat.apply_chat_template(messages, tokenize=True, return_dict=False, add_generation_prompt=True))

    messages.append({"role": "user", "content": TURNS[0]})
    end = made.answer(prompt(), [])[5:6]                              # so that the first answer ends there, or before
    messages.pop()
    talk = Conversation(made.model(TEMPLATES[template], end), made.compiled, system=system)
    caplog.set_level(logging.INFO, "tensor_graphs.serving.conversation")
    for number, text in enumerate(TURNS):
        messages.append({"role": "user", "content": text})
        whole, before = prompt(), talk.session.transcript.fed[:]
        expected = made.answer(whole, end)
        pieces = list(talk.say(text, TOKENS))
        assert talk.last.ids == expected and talk.last.stopped == (expected[-1] in end)
        assert talk.session.transcript.ids == whole + expected and talk.session.transcript.pending == expected[-1:]
        spoken = chat.decode([i for i in expected if i not in end])
        assert "".join(pieces) == spoken == talk.answer
        messages.append({"role": "assistant", "content": spoken})
        assert talk.messages == messages
        kept = template == "plain"                                    # then what was fed is a prefix, and only what is new is fed
        assert (talk.fed == len(whole) - len(before)) == kept or not number
        assert number or talk.last.stopped
    assert ("renders earlier turns otherwise" in caplog.text) == (template == "forgetful")
    assert len(talk.session.transcript.fed) > 2 * 9                   # windows
    first = list(talk.messages)
    talk.reset()
    list(talk.say(TURNS[0], TOKENS))
    assert talk.messages == first[:2 if system is None else 3]


@pytest.mark.parametrize("made", ["mistral: window"], indirect=True)
def test_a_second_stream_on_a_session_goes_on_with_its_conversation(made: Made) -> None:
    compiled, session = made.compiled, made.compiled.session()
    first = list(stream(compiled, session, [5, 6, 7], 6))
    assert session.transcript == Transcript(fed=[5, 6, 7, *first[:5]], pending=first[5:])
    more = stream(compiled, session, [8, 9], 20)
    second = [next(more) for _ in range(4)]
    more.close()                                                      # a caller may stop at any token
    assert session.transcript == Transcript(fed=[5, 6, 7, *first, 8, 9, *second[:3]], pending=second[3:])
    third = generate(compiled, [], 5, session=session).ids            # no prompt: the answer goes on
    whole = [5, 6, 7, *first, 8, 9]
    assert second + third == generate(compiled, whole, 9).ids == made.answer(whole, [])
    assert session.transcript.ids == [*whole, *second, *third]
    session.transcript.rewind(3)
    assert session.transcript == Transcript(fed=[5, 6, 7])
    assert generate(compiled, [8], 5, session=session).ids == generate(compiled, [5, 6, 7, 8], 5).ids
    session.transcript.rewind(len(session.transcript.ids))            # a pending token may stay
    assert len(session.transcript.pending) == 1
    session.reset()
    assert session.transcript == Transcript() and generate(compiled, [5, 6, 7], 6, session=session).ids == first
    with pytest.raises(FrontendError, match="the prompt is empty"):
        generate(compiled, [], 5)


@pytest.mark.parametrize("made", ["mistral: window"], indirect=True)
def test_a_conversation_ends_at_the_end_of_the_cache(made: Made) -> None:
    compiled, session, result = made.compiled, made.compiled.session(), []
    assert cache_length(compiled) == 72
    with pytest.raises(ConversationError, match="the conversation has 72 tokens in the cache") as caught:
        for token in stream(compiled, session, [5] * 70, None):
            result.append(token)
    assert caught.value.needed == 73 and "max_positions=73) or more (tg: --max-positions)" in str(caught.value)
    assert len(result) == 3 and session.transcript == Transcript(fed=[5] * 70 + result[:2], pending=result[2:])
    assert result == made.answer([5] * 70, [])[:3]
    talk = Conversation(made.model(PLAIN, []), compiled)
    with pytest.raises(ConversationError, match="72 tokens in the cache"):
        list(talk.say("w5 " * 60))
    assert len(talk.last.ids) == 9 and [m["role"] for m in talk.messages] == ["user", "assistant"]      # what had room is an answer
    before = list(talk.messages)
    for _ in range(2):                                                # a turn that has no room is forgotten, however often it comes
        with pytest.raises(ConversationError):
            list(talk.say("w5"))
        assert talk.messages == before and talk.last.ids == []


@pytest.mark.parametrize("made", ["mistral: window"], indirect=True)
def test_a_request_without_room_is_refused_before_anything_is_computed(made: Made) -> None:
    compiled, session = made.compiled, made.compiled.session()
    for prompt, tokens, room in ([5] * 70, 9, "; or ask for 3 at most"), ([5] * 73, 1, ""), ([5], 73, "; or ask for 72 at most"):
        needed = len(prompt) + tokens - 1
        for ask in generate, lambda *asked, session: next(stream(asked[0], session, *asked[1:])):
            with pytest.raises(ConversationError, match=rf"{needed} in all, and the cache holds 72") as caught:
                ask(compiled, prompt, tokens, session=session)
            assert caught.value.needed == needed and str(caught.value).endswith(f"has so many positions{room}")
            assert session.transcript == Transcript()
    first = generate(compiled, [5] * 68, 5, session=session).ids      # the last token needs no room
    assert session.transcript == Transcript(fed=[5] * 68 + first[:4], pending=first[4:])
    talk = Conversation(made.model(PLAIN, []), compiled)
    with pytest.raises(ConversationError, match="and 72 more are asked for"):
        list(talk.say("w5", 72))
    assert talk.messages == [] and talk.session.transcript == Transcript()


@pytest.mark.parametrize("made", ["mistral: window"], indirect=True)
def test_draws_go_on_from_turn_to_turn_and_begin_again_at_a_reset(made: Made) -> None:
    model, drawn = made.model(PLAIN, []), Sampling(temperature=5.0, seed=3)

    def answers(talk: Conversation) -> list[str]:
        for text in TURNS:
            list(talk.say(text, TOKENS))
        return [m["content"] for m in talk.messages if m["role"] == "assistant"]

    talk = Conversation(model, made.compiled, sampling=drawn)
    once = answers(talk)
    talk.reset()
    assert answers(talk) == once
    session, sampler = made.compiled.session(), Sampler(drawn)
    both = [generate(made.compiled, [5], 4, session=session, sampling=sampler).ids for _ in range(2)]
    again = Sampler(drawn)
    assert both[0] == generate(made.compiled, [5], 4, sampling=again).ids
    assert again._generator.random() != Sampler(drawn)._generator.random()


@pytest.mark.parametrize("made", ["mistral: window"], indirect=True)
@pytest.mark.parametrize("turns", [[[5, 6, 7]], [[5, 6, 7], [5, 8]]], ids=["one turn", "two turns"])
def test_a_repetition_penalty_counts_all_tokens_of_the_conversation_as_in_transformers(made: Made, turns: list[list[int]]) -> None:
    session, whole, end = made.compiled.session(), [], made.theirs.generation_config.eos_token_id
    for turn in turns:
        ids = generate(made.compiled, turn, 12, session=session, stop=[end], sampling=Sampling(repetition_penalty=1.7)).ids
        prompt = [*whole, *turn]
        out = made.theirs.generate(torch.tensor([prompt]), do_sample=False, max_new_tokens=12, repetition_penalty=1.7)
        assert ids == out[0, len(prompt):].tolist() and ids[:TOKENS] != made.answer(prompt, [])
        whole = [*prompt, *ids]


@pytest.mark.parametrize("made", ["llama: untied"], indirect=True)
@pytest.mark.parametrize("sampling", [Sampling(), Sampling(temperature=3.0, seed=1, repetition_penalty=1.3)],
                         ids=["greedy", "drawn"])
def test_log_probabilities_are_those_that_the_model_itself_gives(made: Made, sampling: Sampling) -> None:
    generation = generate(made.compiled, [5, 6, 7], 6, sampling=sampling, log_probabilities=True)
    logits = made.theirs(torch.tensor([[5, 6, 7, *generation.ids]])).logits[0, 2:-1]
    expected = torch.log_softmax(logits, -1)[range(6), generation.ids]
    assert generation.log_probabilities == pytest.approx(expected.tolist(), abs=1e-5)
    assert generate(made.compiled, [5, 6, 7], 6, sampling=sampling).log_probabilities is None


@pytest.mark.parametrize("made", ["llama: untied"], indirect=True)
def test_an_answer_ends_before_a_stop_text_and_the_conversation_goes_on_from_there(made: Made) -> None:
    model = made.model(PLAIN, [])
    whole = Conversation(model, made.compiled)
    words = "".join(whole.say(TURNS[0], TOKENS)).split()
    stop = next(" ".join(words[i:i + 2]) for i in range(3, TOKENS) if " ".join(words[i:i + 2]) not in " ".join(words[:i]))
    talk = Conversation(model, made.compiled, stop_texts=["never", stop], log_probabilities=True)
    pieces = list(talk.say(TURNS[0], TOKENS))
    before = " ".join(words).partition(stop)[0]
    assert "".join(pieces) == talk.answer == talk.messages[-1]["content"] == before
    assert talk.last.stopped and len(pieces) == len(talk.last.ids) == len(talk.last.log_probabilities or ()) < TOKENS
    second = "".join(talk.say(TURNS[1], 4))
    fresh = generate(made.compiled, model.tokenizer.encode_chat(talk.messages[:-1]), 4)
    assert talk.last.ids == fresh.ids and second == talk.messages[-1]["content"]


@pytest.mark.parametrize("made", ["mistral: window"], indirect=True)
def test_a_session_whose_states_were_set_goes_on_when_it_is_told_what_they_hold(made: Made) -> None:
    compiled, session = made.compiled, made.compiled.session()
    generate(compiled, [5, 6, 7], 4, session=session)
    states, fed = session.snapshot(), session.transcript.fed[:]
    other = compiled.session()
    other.restore(states)
    with pytest.raises(ConversationError, match="the session's states were set from outside"):
        generate(compiled, [8], 4, session=other)
    other.transcript = Transcript(fed=fed[:])
    assert generate(compiled, [8], 4, session=other).ids == generate(compiled, [*fed, 8], 4).ids


@pytest.mark.parametrize("made", ["mistral: window"], indirect=True)
def test_a_turn_that_cannot_be_rendered_or_is_left_early_leaves_the_conversation_whole(made: Made) -> None:
    with pytest.raises(TokenizerError, match="has no chat template, .*\n.*\n.*  fix: tg run … --prompt TEXT goes on from a text"):
        Conversation(made.model(None, []), made.compiled)
    (made.folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "w7"}))
    assert load_model(made.folder).end_ids == (7,) and made.model(None, [8, 9]).end_ids == (8, 9)
    refusing = PLAIN + "{% if messages[-1].content == 'w66' %}{{ raise_exception('not that') }}{% endif %}"
    talk = Conversation(made.model(refusing, []), made.compiled)
    with pytest.raises(TokenizerError, match="the chat template refuses the messages: not that"):
        list(talk.say("w66"))
    assert talk.messages == [] == talk.last.ids
    answer = talk.say(TURNS[0])
    heard = [next(answer) for _ in range(4)]
    answer.close()
    assert talk.messages == [{"role": "user", "content": TURNS[0]}, {"role": "assistant", "content": "".join(heard)}]
    assert len(talk.last.ids) == 4
    list(talk.say(TURNS[1], 3))
    kept = np.array(talk.session.transcript.fed)
    assert generate(made.compiled, kept[:-2].tolist(), 3).ids == talk.last.ids


@pytest.mark.parametrize("made", ["llama: untied"], indirect=True)
def test_calls_of_two_threads_on_one_session_are_one_conversation(made: Made) -> None:
    session, done = made.compiled.session(), dict[int, list[int]]()

    def call(first: int) -> None:
        done[first] = generate(made.compiled, [first], 6, session=session).ids

    threads = [threading.Thread(target=call, args=(first,)) for first in (5, 6, 7)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    ids = session.transcript.ids
    expected, alone = list[int](), made.compiled.session()
    for first in sorted(done, key=lambda f: next(i for i in range(len(ids)) if ids[i:i + 7] == [f, *done[f]])):
        assert done[first] == generate(made.compiled, [first], 6, session=alone).ids
        expected += [first, *done[first]]
    assert ids == expected and len(done) == 3


@pytest.mark.parametrize("made", ["llama: untied"], indirect=True)
def test_a_session_whose_stream_is_open_takes_nothing_else_until_that_is_read_or_closed(made: Made) -> None:
    compiled, session = made.compiled, made.compiled.session()
    opened = stream(compiled, session, [5], 4)
    first = [next(opened) for _ in range(2)]
    for ask in session.reset, lambda: generate(compiled, [6], 4, session=session), lambda: next(stream(compiled, session, [6], 4)):
        with pytest.raises(RunError, match=r"a stream is open on these states\n  fix: read the stream to its end or close\(\) it"):
            ask()
    first += [next(opened) for _ in range(2)]                          # the last one is there: nobody has to ask for more
    more = generate(compiled, [6], 4, session=session).ids
    assert [*first, *more] == [*generate(compiled, [5], 4).ids, *generate(compiled, [5, *first, 6], 4).ids]
    left = stream(compiled, session, [7], 4)
    next(left)
    left.close()
    assert generate(compiled, [8], 1, session=session).ids
    with pytest.raises(RunError, match="another generate call is running on these states"):
        generate(compiled, [8], 2, session=session, on_token=lambda _: generate(compiled, [9], 1, session=session))
    talk = Conversation(made.model(PLAIN, []), compiled)
    answer = talk.say(TURNS[0], 4)
    next(answer)
    for act in talk.reset, lambda: next(talk.say(TURNS[1], 4)):
        with pytest.raises(RunError, match="a stream is open on these states"):
            act()
    answer.close()
    assert [m["role"] for m in talk.messages] == ["user", "assistant"] and list(talk.say(TURNS[1], 2))


@pytest.mark.parametrize("made", ["llama: untied"], indirect=True)
@pytest.mark.parametrize("wrong", [None, 3, b"w5"], ids=str)
def test_what_a_chat_is_told_is_text(made: Made, wrong: Any) -> None:
    talk = Conversation(made.model(PLAIN, []), made.compiled)
    with pytest.raises(ArgumentError, match=r"the text of a turn is .*\n  fix: a string"):
        list(talk.say(wrong, tokens=3))
    assert talk.messages == []
    if wrong is not None:
        with pytest.raises(ArgumentError, match="the system text is"):
            Conversation(made.model(PLAIN, []), made.compiled, system=wrong)


@pytest.mark.parametrize(("prompt", "said"), [
    ("hello", "the prompt is 'hello'"), ([[1, 2]], r"a token id of the prompt is \[1, 2\]"),
    ([1.5], "a token id of the prompt is 1.5"), (7, "the prompt is 7")], ids=str)
def test_what_is_no_list_of_ids_is_refused_with_what_makes_one(made: Made, prompt: Any, said: str) -> None:
    with pytest.raises(TensorGraphsError, match=rf"{said}\n  fix: one list of token ids, like model\.tokenizer\.encode"):
        tg.generate(made.compiled, prompt, 4)


@pytest.mark.parametrize("wrong", [-1, 10**6])
def test_an_id_outside_of_the_vocabulary_is_refused(made: Made, wrong: int) -> None:
    with pytest.raises(FrontendError, match=rf"token id {wrong} is outside of the vocabulary, 0 to \d+\n"):
        tg.generate(made.compiled, [1, wrong], 4)


def test_a_model_that_was_not_compiled_is_refused_with_what_compiles_it(made: Made) -> None:
    for given in (made.compiled.plan, None, "folder"):
        with pytest.raises(TensorGraphsError, match=r"is no compiled model\n  fix: tg\.bind\(tg\.compile\(model\.graph\)"):
            tg.generate(given, [1], 4)
    with pytest.raises(TensorGraphsError, match=r"session is None\n  fix: compiled\.session\(\)"):
        next(stream(made.compiled, None, [1], 4))
