// Checks a schedule, and names places in its text if it has one. Private to parallel/.
#pragma once

#include <vector>

#include "weft/parallel/schedule.h"

namespace weft::parallel {

/// The place of an action in a text; both count from 1.
struct TextPlace {
  int line = 0;
  int column = 0;
};

/// By device and position; empty if the schedule was not read from a text.
using TextPlaces = std::vector<std::vector<TextPlace>>;

/// As check(), with the places in errors.
ScheduleCheck check(const Schedule& schedule, const TextPlaces& places);

/// Reads a text and checks it, with the places in errors.
Schedule load_schedule_text(std::string_view text);

}  // namespace weft::parallel
