"""Calls Tessera's services with nothing but what the server tells of itself: no generated code."""

import grpc
from google.protobuf import descriptor_pool, json_format, message_factory
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import (
    ProtoReflectionDescriptorDatabase,
)

DEADLINE = 30


def _as_dict(message):
    return json_format.MessageToDict(message, preserving_proto_field_name=True)


class Reflection:
    def __init__(self, address, channel=None):
        self._channel = channel or grpc.insecure_channel(address)
        self._database = ProtoReflectionDescriptorDatabase(self._channel)
        self._pool = descriptor_pool.DescriptorPool(self._database)

    def services(self):
        return sorted(self._database.get_services())

    def methods(self, service):
        """(name, client streams, server streams) of each method of a service, by its full name."""
        described = self._pool.FindServiceByName(service)
        return [
            (method.name, method.client_streaming, method.server_streaming)
            for method in described.methods
        ]

    def request_type(self, service, method):
        """The descriptor of what a method takes."""
        return self._pool.FindServiceByName(service).FindMethodByName(method).input_type

    def call(self, service, method, **fields):
        """The response of tessera.v1.SERVICE/METHOD to `fields`, as a dict in proto JSON."""
        return _as_dict(self._start(self._channel.unary_unary, service, method, fields, DEADLINE))

    def stream(self, service, method, timeout, **fields):
        """The responses of a server stream, until the server ends it."""
        return map(
            _as_dict, self._start(self._channel.unary_stream, service, method, fields, timeout)
        )

    def _start(self, kind, service, method, fields, timeout):
        described = self._pool.FindServiceByName(f"tessera.v1.{service}").FindMethodByName(method)
        request = message_factory.GetMessageClass(described.input_type)
        response = message_factory.GetMessageClass(described.output_type)
        return kind(
            f"/tessera.v1.{service}/{method}",
            request_serializer=request.SerializeToString,
            response_deserializer=response.FromString,
        )(json_format.ParseDict(fields, request()), timeout=timeout)

    def close(self):
        self._channel.close()
