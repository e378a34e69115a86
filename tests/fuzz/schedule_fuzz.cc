#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "weft/core/base/error.h"
#include "weft/parallel/schedule.h"
#include "weft/parallel/simulate.h"
#include "weft/parallel/step_schedule.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace weft::parallel;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  try {
    const Schedule schedule = parse_schedule(text);
    if (parse_schedule(to_string(schedule)) != schedule) {
      std::abort();  // what was read must be written in the same way
    }
    draw(simulate(schedule, equal_costs(schedule.stages, 1, 1, 1)));
  } catch (const weft::Error&) {
  }
  try {
    const StepSchedule step = parse_step(text);
    if (parse_step(to_string(step)) != step) std::abort();
    draw(simulate(step, equal_costs(step, 1, 2, 1, 1)));
  } catch (const weft::Error&) {
  }
  return 0;
}
