// Schedules and modes of recomputation by name.
#include <algorithm>
#include <iterator>
#include <utility>

#include "weft/core/base/error.h"
#include "weft/core/base/nearest.h"
#include "weft/parallel/schedule_parts.h"

namespace weft::parallel {
namespace {

constexpr std::pair<Recompute, const char*> kRecompute[] = {
    {Recompute::never, "never"},
    {Recompute::except_last, "except_last"},
    {Recompute::always, "always"},
};

struct Named {
  const char* name;
  Schedule (*make)(int devices, int micro_batches, Recompute recompute);
  int per_device = 1;  // stages
};
constexpr Named kSchedules[] = {
    {"gpipe", gpipe},
    {"1f1b", one_f_one_b},
    {"interleaved", nullptr, 2},  // asks for the number of devices, too
    {"zb-h1", zero_bubble_h1},
    {"zb-v", zero_bubble_v, 2},
    {"dualpipev", dual_pipe_v, 2},
};

const Named& find(const std::string& name) {
  const auto* found = std::ranges::find(kSchedules, name, &Named::name);
  WEFT_CHECK(found != std::end(kSchedules), InvalidArgument, "schedule", "got '", name,
             "', expected ", one_of(schedule_names()), did_you_mean(name, schedule_names()));
  return *found;
}

}  // namespace

std::string did_you_mean(const std::string& word, const std::vector<std::string>& known) {
  const std::string near = nearest(word, known);
  return near.empty() ? std::string() : "; did you mean " + near + "?";
}

std::string one_of(const std::vector<std::string>& words) {
  std::string text = words[0];
  for (std::size_t i = 1; i < words.size(); ++i) {
    text += (i + 1 < words.size() ? ", " : " or ") + words[i];
  }
  return text;
}

const char* to_string(Recompute mode) { return kRecompute[static_cast<int>(mode)].second; }

Recompute parse_recompute(std::string_view word) {
  std::vector<std::string> known;
  for (const auto& [mode, name] : kRecompute) {
    if (word == name) return mode;
    known.push_back(name);
  }
  WEFT_THROW(InvalidArgument, "schedule", "got '", word, "' as what to recompute, expected ",
             one_of(known), did_you_mean(std::string(word), known));
}

const std::vector<std::string>& schedule_names() {
  static const auto& names = *[] {
    auto* list = new std::vector<std::string>;
    for (const Named& each : kSchedules) list->push_back(each.name);
    return list;
  }();
  return names;
}

int stages_per_device(const std::string& name) { return find(name).per_device; }

Schedule make_schedule(const std::string& name, int stages, int micro_batches, Recompute recompute,
                       int devices) {
  const auto& [own, make, per_device] = find(name);
  if (make == nullptr) {
    WEFT_CHECK(devices > 0 && stages % devices == 0, InvalidArgument, "schedule", name, ": got ",
               stages, " stages on ", devices,
               " devices, expected a number of devices that divides the stages");
    return interleaved_one_f_one_b(devices, stages / devices, micro_batches, recompute);
  }
  WEFT_CHECK(stages % per_device == 0, InvalidArgument, "schedule", name, ": got ", stages,
             " stages, expected an even number: two per device");
  WEFT_CHECK(devices == 0 || devices == stages / per_device, InvalidArgument, "schedule", name,
             ": got ", stages, " stages on ", devices, " devices, expected ",
             per_device == 1 ? "one stage" : "two stages",
             " per device; leave the number of devices out, or take interleaved");
  return make(stages / per_device, micro_batches, recompute);
}

}  // namespace weft::parallel
