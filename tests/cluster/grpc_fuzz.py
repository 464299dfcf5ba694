"""Throws random bytes, HTTP/2 frames and mutated messages at a server for a while."""

import collections
import contextlib
import random
import socket
import struct
import time

import grpc
from google.protobuf import json_format, message_factory
from programs import SMALL_JOB
from raw_calls import call
from reflection import Reflection

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
# A server that is well says one of the others.
WRONG = {
    grpc.StatusCode.UNKNOWN,
    grpc.StatusCode.INTERNAL,
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.DEADLINE_EXCEEDED,
    grpc.StatusCode.DATA_LOSS,
}
INTEGERS = [0, 1, -1, 2, 3, 7, 255, 65_536, 2**31 - 1, -(2**31)]
LONG_INTEGERS = [*INTEGERS, 2**53, 2**63 - 1, -(2**63)]
TEXTS = ["", "small", "gpt", "h.0", "*", "a" * 300, "..", "/etc/passwd", "\0", "é", "float32"]


def _frame(kind, flags, stream, payload):
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


def _literal(name, value):
    """A header in HPACK, never indexed and not compressed."""
    return b"\x10" + bytes([len(name)]) + name + bytes([len(value)]) + value


def _headers(path):
    return b"".join(
        _literal(name, value)
        for name, value in (
            (b":method", b"POST"),
            (b":scheme", b"http"),
            (b":path", path),
            (b":authority", b"x"),
            (b"te", b"trailers"),
            (b"content-type", b"application/grpc"),
        )
    )


class Fuzzer:
    """`seed` decides everything but what time it is."""

    def __init__(self, address, seed):
        self.random = random.Random(seed)
        self.seen = collections.Counter()
        self.wrong = []
        host, port = address.rsplit(":", 1)
        self._at = (host, int(port))
        self._channel = grpc.insecure_channel(address)
        self._remote = Reflection(address, self._channel)
        self._methods = [
            (service, *method)
            for service in self._remote.services()
            for method in self._remote.methods(service)
        ]

    def run(self, seconds):
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            if self.random.random() < 0.3:
                self._send_bytes(self._bytes())
            else:
                self._send_message()

    def close(self):
        self._channel.close()

    def _noise(self, most):
        return self.random.randbytes(self.random.randrange(most))

    def _bytes(self):
        kind = self.random.randrange(4)
        if kind == 0:
            return self._noise(4096)
        frames = [PREFACE, _frame(4, 0, 0, b"")]
        for _ in range(self.random.randrange(1, 20)):
            frames.append(
                self._call_frames()
                if kind == 1
                else _frame(
                    self.random.randrange(12),
                    self.random.randrange(256),
                    self.random.choice([0, 1, 1, 3, 2**31 - 1]),
                    self._noise(64 if self.random.random() < 0.9 else 20_000),
                )
            )
        data = b"".join(frames)
        return self._mutate(data, keep=len(PREFACE)) if kind == 3 else data

    def _call_frames(self):
        service, name, *_ = self.random.choice(self._methods)
        stream = 2 * self.random.randrange(1, 50) + 1
        body = self._noise(200)
        length = self.random.choice([len(body), 0, 2**32 - 1, self.random.randrange(2**32)])
        prefix = bytes([self.random.randrange(3)]) + struct.pack(">I", length)
        return _frame(1, 4, stream, _headers(f"/{service}/{name}".encode())) + _frame(
            0, self.random.randrange(2), stream, prefix + body
        )

    def _send_bytes(self, data):
        self.seen["bytes"] += 1
        with contextlib.suppress(OSError):
            with socket.create_connection(self._at, timeout=10) as wire:
                wire.sendall(data)
                wire.shutdown(socket.SHUT_WR)
                # The server closes; what it says first does not matter.
                while wire.recv(65_536):
                    pass

    def _mutate(self, data, keep=0):
        data = bytearray(data)
        for _ in range(self.random.randrange(4)):
            if len(data) <= keep:
                break
            at = self.random.randrange(keep, len(data))
            kind = self.random.randrange(4)
            if kind == 0:
                data[at] = self.random.randrange(256)
            elif kind == 1:
                del data[at : at + self.random.randrange(1, 16)]
            elif kind == 2:
                data[at:at] = self._noise(16)
            else:
                data[at:at] = data[keep : keep + self.random.randrange(64)]
        return bytes(data)

    def _value(self, field, depth):
        kind = field.type
        if field.message_type is not None:
            return self._message(field.message_type, depth + 1)
        if field.enum_type is not None:
            return self.random.choice([0, 1, 2, 99])
        if kind in (field.TYPE_STRING,):
            return self.random.choice(TEXTS)
        if kind == field.TYPE_BYTES:
            return self._noise(64)
        if kind == field.TYPE_BOOL:
            return self.random.random() < 0.5
        if kind in (field.TYPE_DOUBLE, field.TYPE_FLOAT):
            return self.random.choice([0.0, -1.0, 1e-3, 1e300, float("inf"), float("nan")])
        if kind in (field.TYPE_INT32, field.TYPE_SINT32, field.TYPE_SFIXED32):
            return self.random.choice(INTEGERS)
        if kind in (field.TYPE_UINT32, field.TYPE_FIXED32):
            return abs(self.random.choice(INTEGERS)) % 2**32
        return self.random.choice(LONG_INTEGERS)

    def _message(self, described, depth=0):
        message = message_factory.GetMessageClass(described)()
        for field in described.fields:
            if depth > 5 or self.random.random() < 0.6:
                continue
            repeated = field.label == field.LABEL_REPEATED
            for _ in range(self.random.randrange(1, 4) if repeated else 1):
                value = self._value(field, depth)
                if repeated and field.message_type is None:
                    getattr(message, field.name).append(value)
                elif repeated:
                    getattr(message, field.name).add().MergeFrom(value)
                elif field.message_type is not None:
                    getattr(message, field.name).CopyFrom(value)
                else:
                    setattr(message, field.name, value)
        return message

    def _send_message(self):
        service, name, *streams = self.random.choice(self._methods)
        described = self._remote.request_type(service, name)
        request = self._message(described)
        if "spec" in described.fields_by_name and self.random.random() < 0.7:
            # A job that is good but for a little, so that it gets past the first checks.
            odd = request.spec.__class__.FromString(request.spec.SerializeToString())
            request.spec.CopyFrom(json_format.ParseDict(SMALL_JOB, odd.__class__()))
            for field, _ in odd.ListFields():
                if self.random.random() < 0.1:
                    one = odd.__class__()
                    one.MergeFrom(odd)
                    for other, _ in odd.ListFields():
                        if other.name != field.name:
                            one.ClearField(other.name)
                    request.spec.MergeFrom(one)
        request = self._mutate(request.SerializeToString())
        got = call(self._channel, f"/{service}/{name}", request, tuple(streams))
        self.seen[got.code.name] += 1
        if got.code in WRONG:
            self.wrong.append((name, got.code.name, got.message, request.hex()))
