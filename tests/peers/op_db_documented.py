"""What weft refuses, or does otherwise, on purpose: the patterns, with the reason as docs/from_pytorch.md
gives it.
"""
import re
from dataclasses import dataclass


@dataclass
class Rule:
    operation: str  # a pattern of the whole name
    text: str       # a pattern in the refusal's or the difference's text
    reason: str
    dtypes: str = ".*"

    def covers(self, operation, dtype, text):
        return (re.fullmatch(self.operation, operation) and re.fullmatch(self.dtypes, dtype)
                and re.search(self.text, text))


REFUSED = []
DIFFERS = []


def reason_of(rules, operation, dtype, text):
    return next((rule.reason for rule in rules if rule.covers(operation, dtype, text)), None)
