#!/usr/bin/env python3
"""Prints a block of code of a page of docs/, which is compiled and run so.

usage: code_of.py PAGE NAME

The block is the one behind the line `<!-- code: NAME -->`.
"""
import re
import sys

page, name = sys.argv[1:]
with open(page, encoding="utf-8") as file:
    blocks = re.findall(rf"^<!-- code: {re.escape(name)} -->\n```\w*\n(.*?)^```$", file.read(), re.M | re.S)
if len(blocks) != 1:
    sys.exit(f"{page}: {len(blocks)} blocks of code are named {name}, expected one")
sys.stdout.write(blocks[0])
