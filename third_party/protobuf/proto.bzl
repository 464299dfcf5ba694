"""C++ from .proto files with Debian's protoc and grpc_cpp_plugin.

`tessera_cc_proto_library` gives messages (and, with `services = True`, gRPC stubs) whose import root is `proto/`, so a
file at proto/tessera/v1/plan.proto is imported as "tessera/v1/plan.proto" and included as "tessera/v1/plan.pb.h".
"""

_IMPORT_ROOT = "proto/"

def _generate(name, srcs, deps, suffixes, flags):
    outs = []
    for src in srcs:
        stem = src[:-len(".proto")]
        outs += [stem + suffix for suffix in suffixes]
    native.genrule(
        name = name,
        srcs = srcs + deps,
        outs = outs,
        cmd = "protoc -I%s %s %s" % (
            _IMPORT_ROOT,
            flags.replace("@OUT@", "$(GENDIR)/" + _IMPORT_ROOT),
            " ".join(["$(location %s)" % src for src in srcs]),
        ),
        visibility = ["//visibility:private"],
    )
    return outs

def tessera_cc_proto_library(name, srcs, proto_deps = [], deps = [], services = False, visibility = None):
    """Compiles srcs to C++.

    Args:
      name: the cc_library.
      srcs: .proto files of this package.
      proto_deps: .proto files that srcs import, directly or not.
      deps: the tessera_cc_proto_library targets that hold the code of proto_deps.
      services: whether srcs define services; adds the gRPC stubs and gRPC itself.
      visibility: as for every rule.
    """
    outs = _generate(name + "_pb", srcs, proto_deps, [".pb.h", ".pb.cc"], "--cpp_out=@OUT@")
    if services:
        outs += _generate(
            name + "_grpc",
            srcs,
            proto_deps,
            [".grpc.pb.h", ".grpc.pb.cc"],
            "--grpc_out=@OUT@ --plugin=protoc-gen-grpc=/usr/bin/grpc_cpp_plugin",
        )
    native.cc_library(
        name = name,
        srcs = [out for out in outs if out.endswith(".cc")],
        hdrs = [out for out in outs if out.endswith(".h")],
        copts = ["-w"],
        includes = ["."],
        deps = deps + ["//third_party/protobuf"] + (["//third_party/grpc"] if services else []),
        visibility = visibility,
    )
