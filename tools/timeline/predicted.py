"""A step as its schedule predicts it. tools/schedule, which is weft's own code, tells the schedule and
when its actions would run."""
import json
import pathlib
import re
import statistics
import tempfile
from collections import defaultdict, namedtuple

from tools.command import Error, output_of
from tools.picture.step_colors import (BACKWARD, EXPOSED, FORWARD, GATHER, OPTIMIZER, REDUCTION,
                                       SUM)
from tools.timeline.figure import Bar, Panel, Row, milliseconds, percent, times

TOOL = "tools/schedule/schedule"
COMPUTING = {"F": ("forward", FORWARD), "B": ("backward", BACKWARD),
             "O": ("optimizer", OPTIMIZER)}
MESSAGES = {"U": ("all_gather", GATHER), "G": ("reduce_scatter", REDUCTION),
            "A": ("all-reduce", REDUCTION), "F": ("all_reduce", SUM), "B": ("all_reduce", SUM)}
COST_OF = {"U": "unshard", "G": "reduce", "A": "reduce", "F": "outputs", "B": "inputs"}


def ask(schedule, name, costs=None):
    """The answer of tools/schedule about a schedule. Raises Error, which names the schedule by `name`,
    if something is wrong with it."""
    with tempfile.TemporaryDirectory() as folder:
        pathlib.Path(folder, name).write_text(schedule, encoding="utf-8")
        options = ["--check", name, "--json"]
        if costs:
            pathlib.Path(folder, "costs").write_text(json.dumps(costs), encoding="utf-8")
            options += ["--costs", "costs"]
        try:
            return json.loads(output_of(TOOL, *options, folder=folder))
        except Error as error:
            # The user does not see the schedule's text, so a line number would not help.
            raise Error(re.sub(r"; line \d+, column \d+|, in line \d+", "", str(error))) from None


class Unpredicted(Exception):
    """There is no prediction: the step has other messages than its schedule, or for reason `why`."""

    def __init__(self, why="these messages are none of the steps that ./weft schedule knows"):
        super().__init__(why)


def no_prediction(why):
    """A fact for the figure. `why`: Unpredicted, or an Error of tools/schedule, without its remedy, which
    is for those who choose the sizes."""
    return "No prediction: " + re.split("[;\n]", str(why))[0] + "."


# What a rank's thread does between two computations: it waits, or starts messages. Begin and end
# are in seconds. `kind`: "<U", for example.
Border = namedtuple("Border", "kind begin end")


class StepOfRanks:
    """The schedule of a step that is the same on all ranks: "ddp", "fsdp" ... `seconds`: the times that
    its actions took, in a list for each (cost, unit)."""

    def __init__(self, name, units, ranks):
        self.text = "".join(line + "\n" for line in output_of(
            TOOL, name, "--units", str(units), "--ranks", str(ranks)).splitlines()
            if not line.startswith("#"))
        self.name, self.units, self.ranks = name, units, ranks
        self.actions = self.text.splitlines()[1].split()[1:]
        self.seconds = defaultdict(list)

    def messages(self, *kinds):
        """The units of these messages, in the order in which they are started."""
        return [int(action[2:]) for action in self.actions if action[:2] in kinds]

    def add_message(self, kind, unit, seconds):
        self.seconds[COST_OF[kind], unit].append(max(0, seconds))

    def add_computing(self, begin, borders, backward, end):
        """Adds what a rank computed between its borders, from the begin of its forward to the end of its
        optimizer. If several F or B are between two borders, the time counts for the largest unit."""
        borders, now, since, tape, visits = list(borders), begin, [], [], 0
        kinds = {border.kind for border in borders}
        spent = defaultdict(float)
        last = None

        def close(until):
            nonlocal last, since
            if since:
                last = max(since)[1:]
                for _, *key in since:
                    spent[tuple(key)] += 0
            if last:
                spent[tuple(last)] += until - now
            since = []
        for action in self.actions:
            kind = action[:2] if action[0] in "<>" else action[0]
            if kind == "F":
                since.append((int(action[1:]), "forward", visits))
                tape.append(visits)
                visits += 1
            elif kind == "B":
                if since and since[-1][1] == "forward":
                    close(backward)
                    now = backward
                since.append((int(action[1:]), "backward", tape.pop()))
            elif kind in kinds:
                if not borders or borders[0].kind != kind:
                    raise Unpredicted
                border = borders.pop(0)
                close(border.begin)
                now = border.end
        if borders:
            raise Unpredicted
        for key, seconds in spent.items():
            self.seconds[key].append(max(0, seconds))
        self.seconds["optimizer", 0].append(max(0, end - now))

    def add_steps(self, step, others, add):
        """Adds the times of the other steps with the same messages, by add(step), and returns how many
        these are; if there are none, adds this step. Raises Unpredicted if its messages differ."""
        def times(one):
            self.seconds = defaultdict(list)
            add(one)
            return self.seconds
        own, added = times(step), []
        for one in others:
            try:
                added.append(times(one))
            except Unpredicted:
                pass
        self.seconds = defaultdict(list)
        for of_step in added or [own]:
            for what, seconds in of_step.items():
                self.seconds[what] += seconds
        return len(added)

    def replayed(self, number):
        """The answer of tools/schedule: when the actions would run with the medians of the added times.
        Raises Unpredicted if these are all 0."""
        def medians(what, count):
            return [statistics.median(self.seconds.get((what, i), [0])) for i in range(count)]
        visits = sum(action[0] == "F" for action in self.actions)
        costs = {"forward": medians("forward", visits), "backward": medians("backward", visits),
                 "optimizer": medians("optimizer", 1)[0]}
        costs |= {what: medians(what, self.units) for what in set(COST_OF.values())}
        answer = ask(self.text, f"step {number} of the trace", costs)
        if not answer["end"]:
            raise Unpredicted("what was computed and sent has taken no time")
        return answer

    def panel(self, answer, name_of):
        """The panel of the prediction. name_of(kind, unit) gives the texts of bars."""
        kinds = list(dict.fromkeys(action[1] for action in self.actions if action[0] == ">"))
        lanes = list(dict.fromkeys(MESSAGES[kind][0] for kind in kinds))
        rows = []
        for rank in range(self.ranks):
            rows.append(Row(f"rank {rank}", f"waits {percent(answer['waiting'][rank] / answer['end'])}",
                            []))
            rows += [Row(lane, "", []) for lane in lanes]
        for timed in answer["actions"]:
            action, begin, end = timed["action"], timed["begin"], timed["end"]
            if end <= begin:
                continue
            row, sent = timed["rank"] * (1 + len(lanes)), action[0] in "<>"
            of = "" if action == "O" else name_of(action[sent], int(action[1 + sent:]))
            if action[0] == "<":
                what, color = f"waiting for {MESSAGES[action[1]][0]}", EXPOSED
            elif sent:
                what, color = MESSAGES[action[1]]
                row += 1 + lanes.index(what)
            else:
                what, color = COMPUTING[action[0]]
            rows[row].bars.append(Bar(begin, end, color, of or what, f"{action}: {what} {of}".rstrip()
                                      + f"\n{times(begin, end)}"))
        return Panel(f"Predicted: {milliseconds(answer['end'])}", rows)

    def facts(self, answer, measured, waiting, others):
        """measured: seconds of the step. waiting: seconds that a rank waits in it, on average."""
        predicted = answer["end"]
        return [
            f"Schedule: {answer['known_as']}.",
            f"Measured {milliseconds(measured)}, {measured / predicted:.3f} times the predicted "
            f"{milliseconds(predicted)}; ranks wait {percent(waiting / measured)} measured, "
            f"{percent(sum(answer['waiting']) / self.ranks / predicted)} predicted.",
            f"Predicted from the medians of what was computed and sent in {others} other steps of the "
            "trace." if others else
            "Predicted from this step's own times, the only one of its kind."]
