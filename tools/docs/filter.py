#!/usr/bin/env python3
"""What Doxygen reads in place of a file.

A header's first comment, which says what the file is for, becomes that file's description. A page is
named as its file is; its links to other pages become references, and those to files that are no pages
become their text: the site holds the pages and the headers.
"""
import html
import os
import re
import sys

PAGES = set(os.environ["WEFT_PAGES"].split())  # "docs/tour.md"


def header(text):
    lines = text.split("\n")
    for i, line in enumerate(lines):
        if not line.startswith("//"):
            break
        lines[i] = "/" + re.sub(r"([<>#])", r"\\\1", line)
    return "/// @file\n///\n" + "\n".join(lines)


def name_of(page):
    if page == "README.md":
        return "index"
    return os.path.basename(page.removesuffix("/README.md")).removesuffix(".md").lower()


def page(text, path):
    folder = os.path.dirname(path)

    def link(match):
        text, target = match.groups()
        page = os.path.normpath(os.path.join(folder, target.split("#")[0]))
        if "://" in target:
            return match.group(0)
        return f"[{text}](@ref {name_of(page)})" if page in PAGES else text

    def code(match):
        # Doxygen would show a span with quotes, backslashes or # as plain text.
        span = match.group(1)
        if not re.search(r"['\"\\#]", span):
            return match.group(0)
        return "<tt>" + re.sub(r"([\\#@])", r"\\\1", html.escape(span, quote=False)) + "</tt>"

    parts = re.split(r"(^```.*?^```$)", text, flags=re.M | re.S)
    for i in range(0, len(parts), 2):  # the odd parts are code
        parts[i] = re.sub(r"(?<!!)\[([^\]]+)\]\(([^)\s]+)\)", link, parts[i])
        parts[i] = re.sub(r"(?<!`)`([^`\n]+)`(?!`)", code, parts[i])
    text = "".join(parts)
    if name_of(path) == "index":
        return text
    return re.sub(r"^(# .*)$", rf"\1 {{#{name_of(path)}}}", text, count=1, flags=re.M)


path = sys.argv[1]
with open(path, encoding="utf-8") as file:
    text = file.read()
if path.endswith(".md"):
    sys.stdout.write(page(text, os.path.relpath(path, os.environ["WEFT_TREE"] + "/weft")))
else:
    sys.stdout.write(header(text))
