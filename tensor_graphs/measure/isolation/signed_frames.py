"""signed_frames: exchanges messages between the judge and a worker over a socket, in frames signed with a key of this worker alone.

The judge sends the key first, before the worker has imported any candidate; it is in no environment variable and on no command
line. A frame is its length (8 bytes), a signature over direction, number and content (32 bytes), and the content: pickled to the
worker, JSON from it, so that nothing a worker sends can run code in the judge. Other bytes, or a repeated frame, end the
conversation. A candidate can find the key in the worker's memory. It can then forge its own times and the reported state of the
memory around its arrays, but neither its outputs nor the judge's clock."""

from __future__ import annotations

import hmac
import json
import pickle
import select
import socket
import time
from collections.abc import Callable
from typing import Any

from tensor_graphs.measure.isolation.replies import read

KEY_BYTES = 32
SIGNATURE_BYTES = 32
LONGEST = 256 << 20
LONGEST_REPLY = 16 << 20
"""most bytes of a frame, and of a frame from a worker: a block of 20,000 runs needs 2 MB"""

SEND_SECONDS = 30.0
"""seconds within which the worker must accept what the judge sends"""


class Forged(Exception):
    """Received bytes that are no frame from the other side."""


class Channel:
    """One end of the connection. key: secret shared with the other end only. judge: whether it is the judge's end."""

    def __init__(self, sock: socket.socket, key: bytes, *, judge: bool) -> None:
        self.socket = sock
        self._pack: Callable[[Any], bytes] = pickle.dumps if judge else (         # numpy's scalars are numbers in JSON
            lambda value: json.dumps(value, default=lambda scalar: scalar.item()).encode())
        self._unpack: Callable[[bytes], Any] = read if judge else pickle.loads
        self._longest = LONGEST_REPLY if judge else LONGEST
        self._patience = SEND_SECONDS if judge else None
        mine, theirs = (b"judge", b"worker") if judge else (b"worker", b"judge")
        self._sign = _signer(key, mine)
        self._expect = _signer(key, theirs)
        self._sent = self._received = 0

    def send(self, value: dict[str, Any]) -> None:
        """Send a frame. Raises BrokenPipeError, ConnectionResetError, or (at the judge's end) TimeoutError."""
        data = self._pack(value)
        self.socket.settimeout(self._patience)
        self.socket.sendall(len(data).to_bytes(8, "little") + self._sign(self._sent, data) + data)
        self._sent += 1

    def receive(self, deadline: float | None = None) -> Any:
        """Return the next frame; None when the other end has closed. deadline: on time.monotonic's clock. Raises TimeoutError;
        Forged, after which the connection must not be used; and (at the judge's end) ProtocolError."""
        head = self._exactly(8 + SIGNATURE_BYTES, deadline)
        if head is None:
            return None
        length = int.from_bytes(head[:8], "little")
        if length > self._longest:
            raise Forged("what came is no frame: something else writes into the worker's socket")
        data = self._exactly(length, deadline)
        if data is None:
            return None
        if not hmac.compare_digest(head[8:], self._expect(self._received, data)):
            raise Forged("a frame is not signed by the worker: something else writes into its socket")
        self._received += 1
        return self._unpack(data)

    def _exactly(self, count: int, deadline: float | None) -> bytes | None:
        parts = []
        while count:
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                raise TimeoutError
            self.socket.settimeout(left)
            try:
                part = self.socket.recv(min(count, 1 << 20))
            except ConnectionResetError:
                return None
            if not part:
                return None
            parts.append(part)
            count -= len(part)
        return b"".join(parts)

    def has_more(self) -> bool:
        """Return whether bytes have arrived that were not received yet."""
        return bool(select.select([self.socket], [], [], 0)[0])

    def close(self) -> None:
        self.socket.close()


def _signer(key: bytes, direction: bytes) -> Callable[[int, bytes], bytes]:
    def sign(number: int, data: bytes) -> bytes:
        return hmac.digest(key, direction + number.to_bytes(8, "little") + data, "sha256")

    return sign
