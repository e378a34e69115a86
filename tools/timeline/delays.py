"""When WEFT_FAULT delays a rank, in the time of a figure."""
from collections import defaultdict

from tools.picture.svg import Color
from tools.timeline.figure import Bar, Key, Panel, Row, milliseconds, times

DELAY = Key("delayed by WEFT_FAULT", Color(350, 85, 40))


def with_delays(figure, spans):
    """The figure with a panel that has a row for each rank that its step's spans say was delayed."""
    last = max((bar.end for panel in figure.panels for row in panel.rows for bar in row.bars),
               default=0)
    facts, rows = [], []
    for rank, delays in sorted(_by_rank(figure, spans).items()):
        whole, bars = sum(span.end - span.begin for span in delays), []
        for span in delays:
            # A rank may be delayed before the first one begins.
            begin, end = max(span.begin - figure.begin, 0), min(span.end - figure.begin, last)
            if begin < end:
                bars.append(Bar(begin, end, DELAY.color, span.name,
                                f"WEFT_FAULT delays rank {rank} for "
                                f"{milliseconds(span.end - span.begin)}\n{times(begin, end)}"))
        facts.append(f"WEFT_FAULT delays rank {rank} for {milliseconds(whole)} in this step"
                     + ", before or after what is drawn" * (not bars) + ".")
        if bars:
            rows.append(Row(f"rank {rank}", milliseconds(whole), bars))
    panels = [Panel("Delays on purpose", rows)] * bool(rows)
    return figure._replace(facts=figure.facts + facts, legend=figure.legend + [DELAY] * bool(rows),
                           panels=figure.panels + panels)


def _by_rank(figure, spans):
    delays = defaultdict(list)
    for span in spans:
        if span.category == "fault" and span.step == figure.step:
            delays[span.rank].append(span)
    return delays
