#!/usr/bin/env python3
"""Compares the table of tests/sizes with the public headers.

usage: table.py HEADER.. ROWS.cc.. no_rows.txt

Prints each declaration with an integral argument that has neither a row nor a line in no_rows.txt,
and each row and line that has no declaration; fails if there is one. A declaration is written

    nn::Conv2d::Conv2d(in, out, kernel)      a function with its integral arguments
    nn::ConvOptions{stride, padding}         a struct with its integral fields

without weft::, in the order of the header. Overloads with the same names share a row.
"""

import fnmatch
import os
import re
import sys
import xml.etree.ElementTree as ElementTree

INTEGRAL = {"int", "unsigned", "long", "short", "size_t", "ptrdiff_t", "int32_t", "int64_t",
            "uint32_t", "uint64_t", "Dims", "Shape", "Strides", "Pair", "Dim"}
OPEN, CLOSE = {"(": ")", "{": "}", "[": "]"}, {")", "}", "]"}


def tokens_of(text):
    text = re.sub(r"/\*.*?\*/|//[^\n]*", " ", text, flags=re.S)
    text = re.sub(r'"(\\.|[^"\\])*"', '""', text)
    text = re.sub(r"^[ \t]*#([^\n]*\\\n)*[^\n]*", "", text, flags=re.M)
    text = re.sub(r"^[ \t]*WEFT_[A-Z_]+\(WEFT_[A-Z_]+\)[ \t]*$", "", text,
                  flags=re.M)  # lists of declarations
    return re.findall(r"[A-Za-z_]\w*|::|->|\d[\w.']*|'(?:\\.|[^'])'|\S", text)


def end_of_group(tokens, i):
    """The index behind the group that opens at i."""
    depth = 0
    while True:
        depth += (tokens[i] in OPEN) - (tokens[i] in CLOSE)
        i += 1
        if depth == 0:
            return i


def end_of_angles(tokens, i):
    """The same for < >."""
    depth = 0
    while True:
        if tokens[i] in OPEN:
            i = end_of_group(tokens, i)
            continue
        depth += (tokens[i] == "<") - (tokens[i] == ">")
        i += 1
        if depth == 0:
            return i


def split(tokens, at):
    """Splits at tokens `at` outside of all brackets, < > included."""
    parts, part, i = [], [], 0
    while i < len(tokens):
        if tokens[i] in OPEN:
            end = end_of_group(tokens, i)
        elif tokens[i] == "<" and part and (part[-1].isidentifier() and part[-1] != "operator"):
            end = end_of_angles(tokens, i)
        elif tokens[i] == at:
            parts.append(part)
            part, i = [], i + 1
            continue
        else:
            end = i + 1
        part += tokens[i:end]
        i = end
    return parts + [part]


def integral_name(declaration):
    """The name of an argument or field that a caller gives numbers in, else None."""
    tokens = split(declaration, "=")[0]
    if "function" in tokens or "static" in tokens or not tokens:
        return None
    if "&" in tokens and "const" not in tokens:  # an output
        return None
    if "{" in tokens:
        tokens = tokens[:tokens.index("{")]
    if not INTEGRAL & set(tokens[:-1]):
        return None
    return tokens[-1] if tokens[-1].isidentifier() and tokens[-1] not in INTEGRAL else "?"


class Header:
    def __init__(self, text):
        self.tokens = tokens_of(text)
        self.found = []
        self.scope(0, [], True)

    def add(self, names, arguments, brackets):
        if names[:1] == ["weft"]:
            names = names[1:]
        if not {"detail", "internal"} & set(names) and arguments:
            self.found.append("::".join(names) + brackets[0] + ", ".join(arguments) + brackets[1])

    def scope(self, i, names, public, kind="namespace"):
        """Reads declarations up to the end of the scope, or of the file."""
        tokens, fields = self.tokens, []
        while i < len(tokens) and tokens[i] != "}":
            if tokens[i] in ("public", "private", "protected") and tokens[i + 1] == ":":
                public = tokens[i] == "public"
                i += 2
                continue
            if tokens[i] == ";":
                i += 1
                continue
            i, field = self.declaration(i, names, public, kind)
            if field and public and kind != "namespace":
                fields.append(field)
        self.add(names, fields, "{}")
        return i + 1

    def declaration(self, i, names, public, kind):
        """Returns the index behind it, and the name of an integral field."""
        tokens = self.tokens
        while tokens[i] == "template" or tokens[i] == "requires":
            i = end_of_angles(tokens, i + 1) if tokens[i] == "template" else end_of_group(tokens, i + 1)
        if tokens[i] == "namespace":
            end = tokens.index("{", i)
            inner = [t for t in tokens[i + 1:end] if t != "::"] or ["detail"]
            return self.scope(end + 1, names + inner, True), None
        begin = i
        while tokens[i] not in (";", "{", "=", "(") or tokens[i - 1] == "operator":
            template = tokens[i] == "<" and tokens[i - 1].isidentifier() and tokens[i - 1] != "operator"
            i = end_of_angles(tokens, i) if template else i + 1
            if tokens[i] == "[":
                i = end_of_group(tokens, i)
        head = tokens[begin:i]
        if head[0] in ("class", "struct", "union") and tokens[i] == "{":
            name = head[1:] if ":" not in head else head[1:head.index(":")]
            name = [t for t in name if t.isidentifier() and t not in ("final", "alignas")][-1]
            end = self.scope(i + 1, names + [name] if public else ["detail"], head[0] != "class", "class")
            return end, None
        if tokens[i] == "(":
            return self.function(begin, i, names, public), None
        while tokens[i] != ";":  # a variable, an enum, using ..
            i = end_of_group(tokens, i) if tokens[i] in OPEN else i + 1
        skipped = {"using", "enum", "friend", "typedef", "class", "struct", "constexpr"} & set(head)
        return i + 1, None if skipped else integral_name(tokens[begin:i])

    def function(self, begin, i, names, public):
        tokens = self.tokens
        head = tokens[begin:i]
        name = head[-1]
        if "operator" in head:
            name = "".join(head[head.index("operator"):])
            if name == "operator":  # operator()
                i = end_of_group(tokens, i)
                name = "operator()"
        end = end_of_group(tokens, i)
        arguments = [integral_name(part) for part in split(tokens[i + 1:end - 1], ",")]
        i, initialisers = end, False
        while tokens[i] != ";":
            if tokens[i] == ":":
                initialisers = True
            if tokens[i] == "{" and not (initialisers and tokens[i - 1].isidentifier()):
                i = end_of_group(tokens, i) - 1
                break
            i = end_of_group(tokens, i) if tokens[i] in OPEN else i + 1
        deleted = "delete" in tokens[end:i] and tokens[i - 1] == "delete"
        if public and not deleted and "friend" not in head:
            owner = [t for t in head if t.isidentifier()][:-1]
            if "::" not in head[-2:-1] or not owner:  # otherwise a definition outside its class
                self.add(names + [name], [a for a in arguments if a], "()")
        return i + 1


def report(mistakes):
    """As GoogleTest does, for tools/test_summary.py, where Bazel asks for it."""
    path = os.environ.get("XML_OUTPUT_FILE")
    if not path:
        return
    root = ElementTree.Element("testsuites", name="table")
    case = ElementTree.SubElement(ElementTree.SubElement(root, "testsuite", name="Table"), "testcase",
                                  classname="Table", name="HasARowForEveryDeclaration")
    for mistake in mistakes:
        ElementTree.SubElement(case, "failure", message=mistake)
    ElementTree.ElementTree(root).write(path)


def main(paths):
    declared, rows, excused = {}, {}, {}
    for path in paths:
        text = open(path, encoding="utf-8").read()
        if path.endswith(".h"):
            if not re.search(r"^// .*Private to", text.split("#pragma once")[0], re.M | re.S):
                for key in Header(text).found:
                    if "kernels/" in path and not re.search(r"Params\{", key):
                        continue  # users see only the parameters of kernels/
                    declared.setdefault(key, re.sub(r".*/weft/", "", path))
        elif path.endswith(".cc"):
            for key in re.findall(r'^ *\{"([^"]*[)}])', text, re.M):
                rows[key] = path
        else:
            for line in text.splitlines():
                if line and not line.startswith("#"):
                    key, reason = line.split(": ", 1)
                    excused[key] = reason
    if not declared or not rows:
        sys.exit("table.py: no headers or no rows")
    matches = {key: fnmatch.filter(declared, key) for key in excused}
    covered = set(rows).union(*matches.values())
    mistakes = [f"{declared[key]}: {key} has no row" for key in declared if key not in covered]
    mistakes += [f"{rows[key]}: {key} is not declared" for key in rows if key not in declared]
    mistakes += [f"no_rows.txt: {key} is not declared" for key in excused if not matches[key]]
    mistakes += [f"no_rows.txt: {key} has a row" for key in excused if set(matches[key]) & set(rows)]
    for mistake in mistakes:
        print(mistake)
    report(mistakes)
    print(f"{len(declared)} declarations, {len(rows)} rows, {len(excused)} reasons for none")
    return 1 if mistakes else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
