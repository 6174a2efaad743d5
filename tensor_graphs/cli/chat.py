"""chat: a conversation with a decoder: in a terminal, or with one line of standard input per turn."""

from __future__ import annotations

import contextlib
import io
import logging
import re
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tensor_graphs.cli import ctrl_c, option_groups, options
from tensor_graphs.cli.compiling import Ready, load_decoder, ready
from tensor_graphs.cli.graphs import STEP
from tensor_graphs.cli.run import token_lines
from tensor_graphs.phase_times import IMPORT, phase

if TYPE_CHECKING:
    from tensor_graphs.frontends.errors import ConversationError
    from tensor_graphs.frontends.huggingface.load import LoadedModel
    from tensor_graphs.serving.conversation import Conversation

log = logging.getLogger(__name__)

MOST_LINE = 1 << 24
"""limit on the characters of a turn: a pipe may send no ends of lines"""

COMMANDS = {"/help": "say this", "/reset": "begin anew: forget all turns", "/exit": "end (also /bye, Ctrl-D)"}
BY_OTHER_NAMES = {"/?": "/help", "/bye": "/exit", "/quit": "/exit", "/clear": "/reset"}
KEYS = 'Ctrl-C stops an answer, and the chat goes on. A text of several lines begins and ends with """.'
QUOTES = '"""'


def chat(
    *,
    model: Annotated[
        str, typer.Argument(help="A model folder or .gguf file with a chat template (instruct and chat variants have one).")
    ],
    system: options.System = None,
    tokens: Annotated[
        int | None, typer.Option(min=1, help="How many tokens an answer has at most. [default: until the model ends its turn]")
    ] = None,
    drawing: option_groups.SamplingOptions,
    dtypes: option_groups.Dtypes,
    random_weights: options.RandomWeights = None,
    choice: option_groups.ModelOptions,
    decoder: option_groups.DecoderOptions,
) -> None:
    """Talk with a decoder model, turn by turn: /help says how."""
    with phase(IMPORT):
        from tensor_graphs.serving.conversation import Conversation, chat_tokenizer

    print_document = decoder.document_printer()
    sampling, stop_texts = drawing.sampling(), drawing.stop_texts()
    loaded = load_decoder(model, dtypes, max_positions=decoder.max_positions, random_seed=random_weights)
    chat_tokenizer(loaded)
    model_ready = ready(loaded, choice, decoder.db, at=STEP,
                        largest={"n": loaded.max_positions, "m": 1, "p": loaded.max_positions - 1},
                        quiet=print_document is not None, memory_limit=decoder.memory_limit,
                        greedy=not (sampling.needs_logits or decoder.logprobs), text=decoder.text)
    talk = Conversation(loaded, model_ready.compiled, system=system, sampling=sampling, stop_texts=stop_texts,
                        log_probabilities=decoder.logprobs)
    answered = _Turns(talk, model_ready, model, tokens, quiet=print_document is not None, lines=decoder.jsonl).run()
    if print_document is not None:
        print_document(_document(talk, model_ready, answered.documents))
    if answered.refused and not answered.by_hand:
        raise typer.Exit(1)


class _CtrlC:
    """Handler of Ctrl-C in a terminal. While a turn is typed, it drops the line. While an answer is generated, the first Ctrl-C
    stops after the current token, and the next one stops immediately. At other times it does nothing."""

    def __init__(self) -> None:
        self.reading = self.answering = self.asked = False

    def __call__(self) -> None:
        if self.reading or (self.answering and self.asked):
            raise KeyboardInterrupt
        self.asked = True


class _Turns:
    """The loop that reads, answers and writes turns. by_hand: True if a person types the turns. quiet: no answer is written, since
    a document of all turns is printed at the end. lines: tokens are written as lines of JSON."""

    def __init__(self, talk: Conversation, model_ready: Ready, name: str, tokens: int | None, quiet: bool, lines: bool) -> None:
        self.talk, self.made, self.name, self.tokens, self.quiet, self.lines = talk, model_ready, name, tokens, quiet, lines
        self.by_hand = sys.stdin is not None and sys.stdin.isatty()
        self.ctrl_c = _CtrlC()
        self.refused = 0
        self.documents: list[dict[str, Any]] = []

    def run(self) -> _Turns:
        if isinstance(sys.stdin, io.TextIOWrapper):
            sys.stdin.reconfigure(errors="surrogateescape")          # a turn that is no UTF-8 is refused, and the others are not
        if not self.by_hand:                                         # Ctrl-C ends the command, as it does everywhere
            return self._loop()
        self._say(f"{self.made.model.name}, a cache of {self.made.model.max_positions} tokens. /help says what can be typed.")
        with ctrl_c.taken_by(self.ctrl_c):
            return self._loop()

    def _loop(self) -> _Turns:
        while (text := self._next()) is not None:
            command = BY_OTHER_NAMES.get(text.strip(), text.strip())
            if command == "/exit":
                break
            if command == "/reset":
                self.talk.reset()
                self._say("A new conversation.")
            elif command == "/help":
                self._say("\n".join([*(f"{name:8} {what}" for name, what in COMMANDS.items()), KEYS]))
            elif re.fullmatch(r"/[a-z]+", command):
                self._say(f"There is no command {command}; {', '.join(COMMANDS)}.")
            elif command:
                self._answer(text)
        return self

    # ---- reading ----

    @phase("turns to come")
    def _next(self) -> str | None:
        """Return the next turn; None at the end of the input (Ctrl-D in a terminal)."""
        if not self.by_hand:
            return self._line("")
        while True:
            try:
                self.ctrl_c.reading = True
                text = self._line("> ")
                if text is not None and text.lstrip().startswith(QUOTES):
                    text = self._quoted(text)
                self.ctrl_c.reading = False
            except KeyboardInterrupt:
                if ctrl_c.happened():                # not a key press: the process received SIGTERM
                    raise
                self.ctrl_c.reading = False
                self._say("\nCtrl-D or /exit ends the chat.")
                continue
            if text is None:
                self._say("")                        # the shell's prompt gets a line of its own
            return text

    def _quoted(self, first: str) -> str | None:
        """Return a text of several lines, without its quotes."""
        text = first.lstrip()[len(QUOTES):]
        while not text.rstrip().endswith(QUOTES):
            line = self._line("… ")
            if line is None:
                return None
            text += "\n" + line
        return text.rstrip()[: -len(QUOTES)]

    def _line(self, prompt: str) -> str | None:
        """Return a line without its end; the prompt is never written into a pipe. Raises NotPossible for too long a line."""
        if self.by_hand and sys.stdout.isatty():
            with contextlib.suppress(ImportError):   # a Python that was built without it
                import readline  # noqa: F401 - editing and earlier lines, in `input`
            try:
                return input(prompt)
            except EOFError:
                return None
        if self.by_hand:
            print(prompt, end="", file=sys.stderr, flush=True)
        line = "" if sys.stdin is None else sys.stdin.readline(MOST_LINE + 1)
        if len(line) > MOST_LINE:
            raise options.NotPossible(f"a line of standard input has more than {MOST_LINE} characters\n  fix: one turn a line")
        return line.rstrip("\n") if line else None

    # ---- answering ----

    def _answer(self, text: str) -> None:
        from tensor_graphs.frontends.errors import ConversationError, FrontendError

        why: str | None = None
        pieces = self.talk.say(text, self.tokens)
        show_line = token_lines({"turn": len(self.documents)})
        self.ctrl_c.asked, self.ctrl_c.answering = False, True
        try:
            for piece in pieces:
                self._write(piece)
                if self.lines:
                    show_line(self.talk.last.ids[-1], piece, self.talk.last)
                if self.ctrl_c.asked:
                    break
        except KeyboardInterrupt:
            if not self.by_hand or ctrl_c.happened():
                raise
        except ConversationError as e:
            why = self._longer(e)
            log.info("%s", e)
        except FrontendError as e:
            why = str(e)
        finally:
            self.ctrl_c.answering = False
            pieces.close()                           # what there is of an answer goes into the conversation
        if self.talk.last.ids:
            self._write("\n")
        if why is not None:
            self.refused += 1
            self._say(why)
        if self.quiet:
            self.documents.append(_turn(text, self.talk, why))

    def _longer(self, error: ConversationError) -> str:
        """Return the message for a conversation that is longer than the cache, with the fix."""
        loaded: LoadedModel = self.made.model
        holds, most = loaded.max_positions, loaded.config.max_position_embeddings
        what = "the answer is cut" if self.talk.last.ids else "the turn was not taken"
        longer = (f", or a chat with a longer cache: tg chat {self.name} --max-positions {min(max(2 * holds, error.needed), most)}"
                  if holds < most else "; the model has positions for no more")
        longer = f", or fewer --tokens; the model has positions for {most}" if error.needed > max(most, holds + 1) else longer
        long = (f"the conversation is longer than the {holds} tokens that the cache holds" if self.tokens is None else
                f"with an answer of {self.tokens} tokens the conversation may have {error.needed}, and the cache holds {holds}")
        return f"{what}: {long}\n  fix: /reset begins anew{longer}"

    # ---- writing ----

    def _write(self, piece: str) -> None:
        if piece and not self.quiet:
            sys.stdout.write(piece)
            sys.stdout.flush()

    def _say(self, text: str) -> None:
        """Print for the person, on standard error: only answers go to standard output."""
        print(text, file=sys.stderr, flush=True)


def _turn(text: str, talk: Conversation, why: str | None) -> dict[str, Any]:
    last = talk.last
    return {
        "prompt": text, "text": talk.answer if last.ids else None, "ids": last.ids,
        **({} if last.log_probabilities is None else {"logprobs": last.log_probabilities}), "fed_tokens": talk.fed,
        "stopped": last.stopped, "prefill_ms": last.prefill_seconds * 1e3, "tokens_per_second": last.tokens_per_second,
        "error": why,
    }


def _document(talk: Conversation, model_ready: Ready, turns: list[dict[str, Any]]) -> dict[str, Any]:
    use = model_ready.plan.memory(n=1, m=1)
    return {
        "turns": turns, "messages": talk.messages, "memory": {use.device: use.total},
        "compile_ms": model_ready.compile_seconds * 1e3, "path": model_ready.plan.variants[0].path.id,
    }
