"""conversation: a chat with a model, text in and text out, over one session.

    talk = Conversation(model, compiled, system="Be brief.")
    for piece in talk.say("Hello"):
        print(piece, end="")

For each message the folder's chat template renders all messages so far. The model sees exactly the ids of that text. Only ids that
are not in the session's caches yet are fed. Mostly the caches hold a prefix of the ids. Where a template renders an earlier answer
differently from its generated tokens (it trims it, or drops the model's reasoning), the caches are rewound to the first different
id.
"""

from __future__ import annotations

import logging
from collections.abc import Generator, Iterator, Sequence

from tensor_graphs.argument_checks import text as text_given
from tensor_graphs.frontends.errors import TokenizerError
from tensor_graphs.frontends.huggingface.load import LoadedModel
from tensor_graphs.frontends.text.stop_texts import UntilStop
from tensor_graphs.frontends.text.tokenizer import TEMPLATE_FILE, TOKENIZER_FILES, Tokenizer
from tensor_graphs.runtime.compiled_graph import CompiledGraph
from tensor_graphs.serving.generate import Generation, check_ids, stream_text
from tensor_graphs.serving.sampling import Sampler, Sampling

log = logging.getLogger(__name__)


def chat_tokenizer(model: LoadedModel) -> Tokenizer:
    """Return the model's tokenizer if it can render a chat. Raises TokenizerError without a tokenizer or a chat template."""
    if model.tokenizer is None:
        raise TokenizerError(f"{model.name} has no tokenizer ({TOKENIZER_FILES}), so text cannot become tokens", file=model.folder,
                             fix="save the tokenizer into the folder: tokenizer.save_pretrained(folder)")
    if not model.tokenizer.has_chat_template:
        raise TokenizerError(
            f"{model.name} has no chat template, so nothing says how it takes the turns of a chat or a system text",
            file=model.folder,
            fix=f"tg run … --prompt TEXT goes on from a text; to chat, take the model's instruct or chat variant, or put a "
                f"template into the folder ({TEMPLATE_FILE})")
    return model.tokenizer


def system_message(text: str | None) -> list[dict[str, str]]:
    """Return the messages that a chat begins with."""
    return [] if text is None else [{"role": "system", "content": text}]


class Conversation:
    """The messages so far, and the session that holds their tokens.

    model, compiled: a decoder with a chat template, and its `graph` or (greedy only) `greedy_graph`, bound. system: a text that
    precedes all messages. sampling: for all answers; the draws continue from answer to answer. stop_texts: an answer ends before
    the first of them. log_probabilities: record them in `last`. messages: the messages as given to the template. last: ids and
    times of the latest answer. fed: number of tokens fed for it. Raises TokenizerError without a tokenizer or a chat template;
    ArgumentError for a system text that is no string.
    """

    def __init__(self, model: LoadedModel, compiled: CompiledGraph, *, system: str | None = None,
                 sampling: Sampling | None = None, stop_texts: Sequence[str] = (), log_probabilities: bool = False) -> None:
        self.system = None if system is None else text_given("the system text", system)
        self.model, self.compiled = model, compiled
        self.tokenizer = chat_tokenizer(model)
        self.session = compiled.session()
        self._sampling = sampling or Sampling()
        self.stop_texts, self.log_probabilities = UntilStop(stop_texts).stop_texts, log_probabilities
        self.reset()

    def reset(self) -> None:
        """Forget all messages, empty the cache, and restart the draws. Raises RunError while an answer is open."""
        self.session.reset()
        self.messages = system_message(self.system)
        self.last, self.fed = self._generation(), 0
        self._sampler = Sampler(self._sampling)

    def say(self, text: str, tokens: int | None = None) -> Generator[str, None, None]:
        """Yield the answer to a user's text, a piece per token (often "", while a character is not complete or a stop text may have
        begun).

        tokens: the largest number of tokens; None: until the model ends its answer (`model.end_ids`). A caller may stop at any
        piece: the text generated so far remains as the answer. A message without any answer is forgotten, so after an error the
        conversation is unchanged. Raises ConversationError if the cache has no room: with `tokens`, before anything is computed;
        with None, when it is full before the answer ends. ArgumentError: the text is no string. TokenizerError: the text or the
        template gives no tokens. FrontendError: the model does not have some token. SamplingError. RunError: another answer has
        neither been read to its end nor closed.
        """
        with self.session.turn(left_open=True):
            yield from self._say(text, tokens)

    def _say(self, text: str, tokens: int | None) -> Iterator[str]:
        """Yield the pieces of `say`, with the session locked."""
        asked = {"role": "user", "content": text_given("the text of a turn", text)}
        self.last, self.fed = self._generation(), 0
        ids = self.tokenizer.encode_chat([*self.messages, asked])
        check_ids(ids, self.model.facts.vocabulary)
        new = self._not_in_the_caches(ids)
        self.fed = len(new)
        try:
            for _, piece in stream_text(self.compiled, self.session, new, tokens, self.tokenizer.stream(stop_texts=self.stop_texts),
                                        self.last, sampling=self._sampler, stop=self.model.end_ids, hidden=self.model.end_ids,
                                        in_turn=True):
                yield piece
        finally:
            if self.last.ids:
                self.messages += [asked, {"role": "assistant", "content": self.answer}]

    @property
    def answer(self) -> str:
        """The text of the latest answer, without the token or the stop text that ended it."""
        ids = self.last.ids
        text = self.tokenizer.decode(ids[:-1] if ids and ids[-1] in self.model.end_ids else ids)
        return UntilStop(self.stop_texts).finish(text)

    def _generation(self) -> Generation:
        return Generation(log_probabilities=[] if self.log_probabilities else None)

    def _not_in_the_caches(self, ids: Sequence[int]) -> list[int]:
        """Return the ids of a conversation still to be fed, at least the last; the caches are rewound to the common prefix."""
        transcript = self.session.transcript
        assert transcript is not None, "the session was made here, so what its caches hold is known"
        fed = transcript.fed
        most = min(len(fed), max(len(ids) - 1, 0))
        same = next((i for i in range(most) if fed[i] != ids[i]), most)
        if same < len(fed):
            log.info("the template renders earlier turns otherwise than they were generated: %d of %d tokens in the cache are kept",
                     same, len(fed))
        transcript.rewind(same)
        return list(ids[same:])
