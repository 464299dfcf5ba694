"""C++ from .proto files with Debian's protoc and grpc_cpp_plugin.

The import root is the folder of the BUILD file that calls the rule. For proto/BUILD a file at proto/tessera/v1/plan.proto is
imported as "tessera/v1/plan.proto" and its code is included as "tessera/v1/plan.pb.h" (messages) and
"tessera/v1/plan.grpc.pb.h" (stubs of its services).
"""

def _protoc(name, srcs, imports, suffixes, flags):
    import_root = native.package_name() + "/"
    outs = [src[:-len(".proto")] + suffix for src in srcs for suffix in suffixes]
    native.genrule(
        name = name,
        srcs = srcs + imports,
        outs = outs,
        cmd = "protoc -I%s %s %s" % (
            import_root,
            flags.replace("@OUT@", "$(GENDIR)/" + import_root),
            " ".join(["$(location %s)" % src for src in srcs]),
        ),
        visibility = ["//visibility:private"],
    )
    return outs

def _library(name, outs, deps):
    native.cc_library(
        name = name,
        srcs = [out for out in outs if out.endswith(".cc")],
        hdrs = [out for out in outs if out.endswith(".h")],
        copts = ["-w"],
        includes = ["."],
        deps = deps,
    )

def tessera_cc_proto_library(name, srcs):
    """Messages of `srcs`, which import only each other. No gRPC."""
    outs = _protoc(name + "_pb", srcs, [], [".pb.h", ".pb.cc"], "--cpp_out=@OUT@")
    _library(name, outs, ["//third_party/protobuf"])

def tessera_cc_grpc_library(name, src, imports, deps):
    """gRPC stubs of the services in `src`; `imports` are the .proto files it needs, `deps` their messages."""
    outs = _protoc(
        name + "_grpc",
        [src],
        imports,
        [".grpc.pb.h", ".grpc.pb.cc"],
        "--grpc_out=@OUT@ --plugin=protoc-gen-grpc=/usr/bin/grpc_cpp_plugin",
    )
    _library(name, outs, deps + ["//third_party/grpc"])
