"""The colours of a step of ranks, and the words of DDP's, in each picture of one."""
from tools.picture.svg import Color

# What a rank computes, and its waiting.
FORWARD, BACKWARD, OPERATION = Color(210, 60, 78), Color(215, 20, 84), Color(215, 55, 42)
OPTIMIZER, WAITING, EXPOSED = Color(285, 38, 68), Color(8, 75, 62), Color(150, 40, 68)
# What it sends.
REDUCTION, GATHER, SUM = Color(150, 45, 38), Color(45, 70, 48), Color(175, 45, 38)

WORDS_OF_DDP = [("forward", FORWARD), ("backward", BACKWARD), ("its operations", OPERATION),
                ("waiting for a rank", WAITING), ("exposed communication", EXPOSED),
                ("optimizer", OPTIMIZER), ("reducing a bucket", REDUCTION)]
