#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "weft/core/base/error.h"
#include "weft/parallel/schedule.h"
#include "weft/parallel/simulate.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace weft::parallel;
  try {
    const Schedule schedule =
        parse_schedule(std::string_view(reinterpret_cast<const char*>(data), size));
    if (parse_schedule(to_string(schedule)) != schedule) {
      std::abort();  // what was read must be written in the same way
    }
    draw(simulate(schedule, equal_costs(schedule.stages, 1, 1, 1)));
  } catch (const weft::Error&) {
  }
  return 0;
}
