"""Runs clang-tidy over the sources of C++ targets, with the flags that they are compiled with.

    bazel build --config=tidy //common/...

One action a source, which fails where clang-tidy finds something and is cached where it doesn't. Headers are checked
where a source includes them. Generated sources and third_party are left alone.
"""

# As clang names the project's own headers: relative to the execution root, or absolute.
_OWN_HEADERS = "^(/.*/)?\\./(client|common|coordinator|tests|worker)/"

def _flags(ctx, context):
    toolchain = ctx.attr._cc_toolchain[cc_common.CcToolchainInfo]
    features = cc_common.configure_features(
        ctx = ctx,
        cc_toolchain = toolchain,
        requested_features = ctx.features,
        unsupported_features = ctx.disabled_features,
    )
    variables = cc_common.create_compile_variables(
        feature_configuration = features,
        cc_toolchain = toolchain,
        user_compile_flags = ctx.fragments.cpp.copts + ctx.fragments.cpp.cxxopts + ctx.rule.attr.copts,
        include_directories = context.includes,
        quote_include_directories = context.quote_includes,
        system_include_directories = context.system_includes,
        preprocessor_defines = depset(ctx.rule.attr.local_defines, transitive = [context.defines]),
    )
    return cc_common.get_memory_inefficient_command_line(
        feature_configuration = features,
        action_name = "c++-compile",
        variables = variables,
    )

def _check(ctx, source, flags, inputs):
    clean = ctx.actions.declare_file("%s.%s.tidy" % (ctx.rule.attr.name, source.basename))
    ctx.actions.run_shell(
        inputs = inputs,
        outputs = [clean],
        # Quiet but for findings; paths as in the checkout.
        command = """
out=$1 source=$2; shift 2
if ! found=$(clang-tidy --quiet --config-file=.clang-tidy --header-filter="$HEADERS" --warnings-as-errors='*' \\
    "$source" -- "$@" 2>&1); then
  echo "$found" | sed -e "s#$PWD/##g" -e 's#^\\./##' -e '/warnings\\? generated\\.$/d'
  exit 1
fi
touch "$out"
""",
        arguments = [clean.path, source.path] + flags,
        env = {"HEADERS": _OWN_HEADERS, "PATH": "/usr/local/bin:/usr/bin:/bin"},
        mnemonic = "ClangTidy",
        progress_message = "Running clang-tidy on " + source.short_path,
    )
    return clean

def _clang_tidy_impl(target, ctx):
    if CcInfo not in target or ctx.label.package.startswith("third_party"):
        return []
    sources = [file for file in ctx.rule.files.srcs if file.is_source and file.extension == "cc"]
    context = cc_common.merge_cc_infos(
        cc_infos = [target[CcInfo]] + [dep[CcInfo] for dep in ctx.rule.attr.deps if CcInfo in dep],
    ).compilation_context
    flags = _flags(ctx, context)
    inputs = depset(
        ctx.files._config + ctx.rule.files.srcs,
        transitive = [context.headers, ctx.attr._cc_toolchain[cc_common.CcToolchainInfo].all_files],
    )
    return [OutputGroupInfo(clang_tidy = depset([_check(ctx, source, flags, inputs) for source in sources]))]

clang_tidy = aspect(
    implementation = _clang_tidy_impl,
    attrs = {
        "_cc_toolchain": attr.label(default = "@bazel_tools//tools/cpp:current_cc_toolchain"),
        "_config": attr.label(default = "//:.clang-tidy", allow_single_file = True),
    },
    fragments = ["cpp"],
    toolchains = ["@bazel_tools//tools/cpp:toolchain_type"],
)
