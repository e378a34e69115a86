"""read_events.py FOLDER OUT: what TensorBoard finds in a folder of event files, as JSON."""
import json
import sys

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

events = EventAccumulator(sys.argv[1], size_guidance={"scalars": 0})
events.Reload()
curves = {tag: [[e.step, e.value] for e in events.Scalars(tag)] for tag in events.Tags()["scalars"]}
with open(sys.argv[2], "w") as file:
    json.dump(curves, file)
