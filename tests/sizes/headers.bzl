"""public_headers: the headers that others may include of the libraries `deps`, as files."""

def _impl(ctx):
    headers = depset([h for d in ctx.attr.deps for h in d[CcInfo].compilation_context.direct_public_headers])
    return [DefaultInfo(files = headers, runfiles = ctx.runfiles(transitive_files = headers))]

public_headers = rule(
    implementation = _impl,
    attrs = {"deps": attr.label_list(providers = [CcInfo])},
)
