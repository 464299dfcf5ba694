"""Calls methods with bytes, and reads what refusals say of themselves."""

import dataclasses
import time

import grpc
from programs import PATIENCE

DEADLINE = 30

_PREFIX = b"type.googleapis.com/google.rpc.ErrorInfo"


@dataclasses.dataclass
class Answer:
    code: grpc.StatusCode
    message: str = ""
    # Of the ErrorInfo.
    reason: str = ""
    metadata: dict = dataclasses.field(default_factory=dict)

    @property
    def refused(self):
        return self.code in (grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.UNAUTHENTICATED)


def _fields(data):
    """The length-delimited fields of a message, as (number, bytes); the others are left out."""
    at = 0

    def varint():
        nonlocal at
        value, shift = 0, 0
        while True:
            byte = data[at]
            at += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    while at < len(data):
        tag = varint()
        if tag & 7 == 2:
            length = varint()
            yield tag >> 3, data[at : at + length]
            at += length
        else:
            assert tag & 7 == 0, "a status has only these kinds"
            varint()


def _error_info(details):
    """(reason, metadata) of the ErrorInfo in a google.rpc.Status."""
    for number, packed in _fields(details):
        if number != 3:
            continue
        parts = dict(_fields(packed))
        if parts.get(1) != _PREFIX:
            continue
        info = list(_fields(parts[2]))
        pairs = [dict(_fields(entry)) for field, entry in info if field == 3]
        return dict(info)[1].decode(), {pair[1].decode(): pair[2].decode() for pair in pairs}
    return "", {}


def answer_of(error):
    details = dict(error.trailing_metadata() or ()).get("grpc-status-details-bin", b"")
    return Answer(error.code(), error.details(), *_error_info(details))


def text(number, value):
    """A string field, serialized; fields of up to 127 bytes."""
    data = value if isinstance(value, bytes) else value.encode()
    assert len(data) < 128
    return bytes([number << 3 | 2, len(data)]) + data


def call(channel, method, request=b"", streams=(False, False), metadata=(), timeout=DEADLINE):
    """The Answer of /PACKAGE.SERVICE/METHOD; of a stream, after its first message."""
    kind = {
        (False, False): channel.unary_unary,
        (False, True): channel.unary_stream,
        (True, True): channel.stream_stream,
    }[streams](method)
    try:
        if streams == (False, False):
            kind(request, timeout=timeout, metadata=metadata)
        else:
            sent = iter([request]) if streams[0] else request
            answers = kind(sent, timeout=timeout, metadata=metadata)
            next(answers, None)
            answers.cancel()
        return Answer(grpc.StatusCode.OK)
    except grpc.RpcError as error:
        return answer_of(error)


def until(code, attempt):
    """Calls `attempt` until its answer has `code`; returns that."""
    deadline = time.monotonic() + PATIENCE
    while True:
        got = attempt()
        if got.code == code:
            return got
        assert time.monotonic() < deadline, f"never {code}, at last {got}"
