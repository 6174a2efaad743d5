"""schemas: bodies of requests: their fields, ranges, and the settings that they mean."""

from __future__ import annotations

import json
import secrets
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from tensor_graphs.serving.sampling import Sampling

MOST_CHOICES, MOST_STOPS = 64, 16

Stop = Annotated[str, Field(min_length=1, max_length=500)]
TokenId = Annotated[int, Field(ge=0, lt=1 << 31)]
Texts = str | Annotated[list[str], Field(min_length=1)]
OneOfIds = Annotated[list[TokenId], Field(min_length=1)]
Ids = OneOfIds | Annotated[list[OneOfIds], Field(min_length=1)]
OnlyZero = Annotated[float, Field(ge=0, le=0, description="not supported, so 0")]
"""penalty that the samplers do not have"""


class Strict(BaseModel):
    """Part of a body: no further fields, and a text is no number."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


class RequestBody(Strict):
    """Fields of every request."""

    model: str | None = None
    user: str | None = Field(None, description="ignored")
    metadata: dict[str, Any] | None = Field(None, description="ignored")
    store: bool | None = Field(None, description="ignored: nothing is stored")


class StreamOptions(Strict):
    include_usage: bool | None = False
    include_obfuscation: bool | None = Field(False, description="ignored")


class SchemaFormat(Strict):
    name: str | None = None
    description: str | None = None
    strict: bool | None = None
    schema_: dict[str, Any] = Field({}, alias="schema")


class PlainFormat(Strict):
    type: Literal["text"]


class JsonFormat(Strict):
    type: Literal["json_object"]
    schema_: dict[str, Any] = Field({"type": "object"}, alias="schema")


class JsonSchemaFormat(Strict):
    type: Literal["json_schema"]
    json_schema: SchemaFormat


class GenerationBody(RequestBody):
    """Fields of requests that generate text."""

    stream: bool | None = False
    stream_options: StreamOptions | None = None
    n: int | None = Field(1, ge=1, le=MOST_CHOICES)
    max_tokens: int | None = Field(None, ge=1)
    stop: Stop | Annotated[list[Stop], Field(max_length=MOST_STOPS)] | None = None
    ignore_eos: bool | None = False
    seed: int | None = Field(None, ge=-(1 << 63), lt=1 << 63)
    temperature: float | None = Field(1.0, ge=0, le=100)
    top_p: float | None = Field(1.0, gt=0, le=1)
    top_k: int | None = Field(0, ge=-1, description="0 or -1: all")
    min_p: float | None = Field(0.0, ge=0, le=1)
    repetition_penalty: float | None = Field(1.0, gt=0, le=1e6)
    frequency_penalty: OnlyZero | None = 0
    presence_penalty: OnlyZero | None = 0
    logit_bias: Annotated[dict[str, float], Field(max_length=0, description="not supported, so empty")] | None = None
    response_format: PlainFormat | JsonFormat | JsonSchemaFormat | None = Field(None, discriminator="type")

    @property
    def stop_texts(self) -> list[str]:
        return [self.stop] if isinstance(self.stop, str) else self.stop or []

    @property
    def most_tokens(self) -> int | None:
        return self.max_tokens

    @property
    def likeliest(self) -> int | None:
        """Number of alternatives to report for each token; None: no log probabilities at all."""
        return None

    @property
    def json_schema(self) -> dict[str, Any] | None:
        """Schema of the JSON text to generate; None: any text."""
        if isinstance(self.response_format, JsonSchemaFormat):
            return self.response_format.json_schema.schema_
        return self.response_format.schema_ if isinstance(self.response_format, JsonFormat) else None

    def samplings(self, count: int) -> list[Sampling]:
        """Return the settings of `count` choices; their seeds follow each other, from a random one if none is requested."""
        first = secrets.randbits(63) if self.seed is None else self.seed
        return [Sampling(_or(self.temperature, 1.0), max(self.top_k or 0, 0), _or(self.top_p, 1.0), (first + i) % (1 << 64),
                         self.min_p or 0.0, _or(self.repetition_penalty, 1.0)) for i in range(count)]


def _or(value: float | None, default: float) -> float:
    return default if value is None else value


class CompletionBody(GenerationBody):
    prompt: Texts | Ids
    logprobs: int | None = Field(None, ge=0, le=20)
    best_of: int | None = Field(None, ge=1, le=1, description="not supported, so 1")
    suffix: Annotated[str, Field(max_length=0, description="not supported, so empty")] | None = None

    @property
    def likeliest(self) -> int | None:
        return self.logprobs


class TextPart(Strict):
    type: Literal["text"]
    text: str


class Message(BaseModel):
    """A message of a chat. Fields that are not listed go to the template as they are."""

    model_config = ConfigDict(extra="allow", strict=True)

    role: str = Field(min_length=1)
    content: str | list[TextPart] | None = None

    @property
    def plain(self) -> dict[str, Any]:
        """The message as templates take it: one text, and arguments of tool calls as objects."""
        message = self.model_dump(exclude_unset=True)
        if isinstance(self.content, list):
            message["content"] = "".join(part.text for part in self.content)
        for call in message.get("tool_calls") or () if isinstance(message.get("tool_calls"), list) else ():
            function = call.get("function") if isinstance(call, dict) else None
            if isinstance(function, dict) and isinstance(function.get("arguments"), str):
                try:
                    function["arguments"] = json.loads(function["arguments"])
                except (ValueError, RecursionError):
                    pass                             # the template gets the text
        return message


class ChatBody(GenerationBody):
    messages: list[Message] = Field(min_length=1)
    tools: list[dict[str, Any]] | None = None
    tool_choice: Literal["none", "auto"] | None = None
    chat_template_kwargs: dict[str, Any] | None = Field(None, description="further variables of the template")
    logprobs: bool | None = False
    top_logprobs: int | None = Field(None, ge=0, le=20)
    max_completion_tokens: int | None = Field(None, ge=1)

    @property
    def most_tokens(self) -> int | None:
        return self.max_completion_tokens or self.max_tokens

    @property
    def likeliest(self) -> int | None:
        return (self.top_logprobs or 0) if self.logprobs else None

    @property
    def variables(self) -> dict[str, Any]:
        """Variables of the template besides the messages."""
        reserved = {"self", "messages", "add_generation_prompt"}
        more = {key: value for key, value in (self.chat_template_kwargs or {}).items() if key not in reserved}
        return more if self.tools is None or self.tool_choice == "none" else {**more, "tools": self.tools}


class EmbeddingBody(RequestBody):
    input: Texts | Ids
    encoding_format: Literal["float", "base64"] | None = "float"
    dimensions: int | None = Field(None, ge=1)


class TokenizeBody(RequestBody):
    content: str
    add_special: bool | None = False


class DetokenizeBody(RequestBody):
    tokens: list[TokenId]
