"""What the memory of each device is used for, in the time of a figure."""
from collections import defaultdict

from tools.picture.svg import Color
from tools.timeline.figure import Areas, Key
from tools.trace import read_counters

# Names as MemoryOwner's, from the lowest area up.
OWNERS = {"data set": Color(0, 0, 72), "batches": Color(45, 50, 66), "parameters": Color(150, 35, 60),
          "optimizer": Color(285, 38, 68), "gradients": Color(215, 55, 42),
          "activations": Color(210, 60, 78), "gathered outputs": Color(330, 45, 65),
          "whole parameters": Color(25, 60, 70), "communication": Color(180, 45, 55)}
MOST_DEVICES = 4
MIB = 2 ** 20


def with_memory(figure, path):
    """The figure with a panel for each of the first devices, if figure and trace know the memory."""
    if figure.begin is None:
        return figure
    used = defaultdict(lambda: defaultdict(list))
    for counter in read_counters(path):
        if counter.name.startswith("memory of ") and counter.series in OWNERS:
            used[counter.rank, counter.name][counter.series].append(
                (counter.time - figure.begin, counter.value / MIB))
    if not used:
        return figure
    ranks = {rank for rank, _ in used}
    panels, drawn = [], set()
    in_order = sorted(used, key=lambda key: (key[0], len(key[1]), key[1]))  # cpu:2 before cpu:10
    for rank, name in in_order[:MOST_DEVICES]:
        by_owner = used[rank, name]
        areas = [(Key(owner, color), sorted(by_owner[owner]))
                 for owner, color in OWNERS.items() if owner in by_owner]
        drawn |= set(by_owner)
        where = f", rank {rank}" if len(ranks) > 1 else ""
        panels.append(Areas(f"M{name[1:]}{where}", areas, "MiB"))
    facts = figure.facts + [f"Memory: of the first {MOST_DEVICES} of {len(used)} devices."] * (
        len(used) > MOST_DEVICES)
    keys = [Key(f"memory: {owner}", color) for owner, color in OWNERS.items() if owner in drawn]
    return figure._replace(facts=facts, legend=figure.legend + keys, panels=figure.panels + panels)
