"""link_only: what `deps` link, without their headers."""

def _impl(ctx):
    infos = cc_common.merge_cc_infos(cc_infos = [d[CcInfo] for d in ctx.attr.deps])
    return [CcInfo(linking_context = infos.linking_context)]

# Stands between what differs from build to build (//:cuda) and the rooms above it. They include
# none of its headers, so they compile to the same objects in every build, and the cache has them.
link_only = rule(
    implementation = _impl,
    attrs = {"deps": attr.label_list(providers = [CcInfo])},
)
