// What a program includes together with weft/weft.h.
#pragma once

#include "weft/train/charts.h"
#include "weft/train/evaluate.h"
#include "weft/train/pictures.h"
#include "weft/train/program.h"
#include "weft/train/recorder.h"
#include "weft/train/step.h"
