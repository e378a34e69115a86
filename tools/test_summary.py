#!/usr/bin/env python3
"""Counts the tests of `bazel test` runs: `N passed, N failed, N skipped`.

usage: test_summary.py EVENTS...     the files --build_event_json_file wrote

The counts are GoogleTest's own, one per test case, from the XML of each test program. A program that
wrote none (it did not build, crashed or timed out) counts as one failed test. Before the counts comes
why tests were skipped, and which command runs them. Exit status 1 when a test failed or none ran.
"""
import collections
import json
import re
import sys
import urllib.parse
import xml.etree.ElementTree as ElementTree


def read_events(path):
    """Bazel's exit code and {test target: [(status, path of test.xml or None)]}, empty where it was not run."""
    targets, exit_code = {}, None
    with open(path, encoding="utf-8") as events:
        for line in events:
            event = json.loads(line)
            kind = event["id"]
            if "targetConfigured" in kind and "_test rule" in event.get("configured", {}).get("targetKind", ""):
                targets.setdefault(kind["targetConfigured"]["label"], [])
            elif "testResult" in kind:
                result = event["testResult"]
                xml = [urllib.parse.unquote(urllib.parse.urlparse(o["uri"]).path)
                       for o in result.get("testActionOutput", []) if o["name"] == "test.xml"]
                targets.setdefault(kind["testResult"]["label"], []).append(
                    (result["status"], xml[0] if xml else None))
            elif "targetCompleted" in kind and "aborted" in event:
                # Excluded by a tag filter, not broken.
                if event["aborted"].get("reason") == "SKIPPED":
                    targets.pop(kind["targetCompleted"]["label"], None)
            elif "buildFinished" in kind:
                exit_code = event["finished"]["exitCode"].get("code", 0)
    return exit_code, targets


# The command that runs tests that were skipped for a reason of this kind.
COMMANDS = [
    (re.compile(r"\bcuda\b|CUDA|GPU|device"), "./weft test --emulated"),
    (re.compile("WEFT_PEER"), "./weft test --peers"),
    (re.compile("needs AddressSanitizer"), "./weft test --asan"),
    (re.compile("sanitizer|Sanitizer"), "./weft test"),
]


def count(xml_path):
    """(Counter, names of the failed, Counter of reasons to skip); None when the file is not GoogleTest's."""
    try:
        root = ElementTree.parse(xml_path).getroot()
    except (OSError, ElementTree.ParseError):
        return None
    if root.get("name") is None:  # Bazel's own file for a program that wrote none
        return None
    counts, failed, reasons = collections.Counter(), [], collections.Counter()
    for case in root.iter("testcase"):
        if case.find("failure") is not None or case.find("error") is not None:
            counts["failed"] += 1
            failed.append(f'{case.get("classname")}.{case.get("name")}')
        elif case.get("result") in ("skipped", "suppressed"):
            counts["skipped"] += 1
            skipped = case.find("skipped")
            # "file.cc:19\nno cuda:0 here"
            message = "" if skipped is None else skipped.get("message", "")
            reasons[message.split("\n")[-1].strip() or "no reason given"] += 1
        else:
            counts["passed"] += 1
    return counts, failed, reasons


def skips(reasons):
    """"467 no cuda:0 here (./weft test --emulated runs them)", the most frequent reason first."""
    for reason, number in reasons.most_common():
        command = next((command for pattern, command in COMMANDS if pattern.search(reason)), None)
        yield f"{number} {reason}" + (f" ({command} runs them)" if command else "")


def count_run(path):
    """Counters of one run and of its reasons to skip; says which failed."""
    total, why = collections.Counter(), collections.Counter()
    exit_code, targets = read_events(path)
    for target, attempts in sorted(targets.items()):
        if not attempts:
            total["failed"] += 1
            print(f"FAILED {target}: did not build or did not run")
        for status, xml_path in attempts:
            result = count(xml_path) if xml_path else None
            counts, failed, reasons = result or (collections.Counter(), [], collections.Counter())
            total += counts
            why += reasons
            for name in failed:
                print(f"FAILED {target}: {name}")
            # A leak report or a crash after the last test also ends the program badly.
            if not failed and (status != "PASSED" or result is None):
                total["failed"] += 1
                print(f"FAILED {target}: {status.lower()} without GoogleTest's result" if result is None
                      else f"FAILED {target}: {status.lower()}, though each of its tests passed")
    if exit_code not in (0, 3, 4) and not total["failed"]:  # 3: a test failed, 4: there are no tests
        total["failed"] += 1
        print(f"FAILED: the build, with Bazel's status {exit_code}")
    return total, why


def main():
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    total, why = collections.Counter(), collections.Counter()
    for path in sys.argv[1:]:
        counts, reasons = count_run(path)
        total += counts
        why += reasons
    if not sum(total.values()):
        print("no test ran")
    for line in skips(why):
        print("skipped:", line)
    print(f'{total["passed"]} passed, {total["failed"]} failed, {total["skipped"]} skipped')
    return 1 if total["failed"] or not sum(total.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
