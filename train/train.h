// What a program includes beside weft/weft.h.
#pragma once

#include "weft/train/evaluate.h"
#include "weft/train/pictures.h"
#include "weft/train/program.h"
#include "weft/train/recorder.h"
#include "weft/train/shards.h"
#include "weft/train/step.h"
