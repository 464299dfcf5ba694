"""Calls Tessera's services with nothing but what the server tells of itself: no generated code."""

import grpc
from google.protobuf import descriptor_pool, json_format, message_factory
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import (
    ProtoReflectionDescriptorDatabase,
)

DEADLINE = 30


class Reflection:
    def __init__(self, address):
        self._channel = grpc.insecure_channel(address)
        self._database = ProtoReflectionDescriptorDatabase(self._channel)
        self._pool = descriptor_pool.DescriptorPool(self._database)

    def services(self):
        return sorted(self._database.get_services())

    def call(self, service, method, **fields):
        """The response of tessera.v1.SERVICE/METHOD to `fields`, as a dict in proto JSON."""
        described = self._pool.FindServiceByName(f"tessera.v1.{service}").FindMethodByName(method)
        request = message_factory.GetMessageClass(described.input_type)
        response = message_factory.GetMessageClass(described.output_type)
        answer = self._channel.unary_unary(
            f"/tessera.v1.{service}/{method}",
            request_serializer=request.SerializeToString,
            response_deserializer=response.FromString,
        )(json_format.ParseDict(fields, request()), timeout=DEADLINE)
        return json_format.MessageToDict(answer, preserving_proto_field_name=True)

    def close(self):
        self._channel.close()
