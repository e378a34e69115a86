// Prints, draws and checks schedules: `./weft schedule 1f1b --stages 4 --micro-batches 8` of a
// pipeline, with `-o page.html` as a page to edit it in, `./weft schedule fsdp --units 4 --ranks 2`
// of ranks that all run the whole model, `./weft schedule --check F`.
#include "weft/parallel/schedule.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <exception>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "weft/core/base/error.h"
#include "weft/core/base/nearest.h"
#include "weft/core/runtime/file.h"
#include "weft/parallel/simulate.h"
#include "weft/parallel/step_schedule.h"
#include "weft/tools/json_file.h"
#include "weft/tools/usage.h"

namespace weft::parallel {
namespace {

using nlohmann::json;

// tools/schedule/page.html; the schedule's text replaces @SCHEDULE@.
constexpr std::string_view kPage =
#include "weft/tools/schedule/page.inc"
    ;
constexpr std::size_t kMostOnPage = 5000;  // actions; as MOST_ACTIONS there

struct Request {
  std::string name, checkpoint = "never", out, check, costs;
  int stages = 0, micro_batches = 0, devices = 0, units = 0, ranks = 0;
  bool communication = false, as_json = false;
};

std::string numbers(const std::vector<int>& values) {
  std::string text;
  for (const int value : values) text += ' ' + std::to_string(value);
  return text;
}

std::string facts(const Schedule& schedule) {
  const ScheduleCheck checked = check(schedule);
  const Timeline timeline = simulate(schedule, equal_costs(schedule.stages, 1, 1, 1));
  std::string text = "micro-batches kept at once, by stage:" + numbers(checked.peak_activations);
  if (std::ranges::any_of(checked.peak_inputs, [](int peak) { return peak > 0; })) {
    text += "\nthe inputs alone, by stage:" + numbers(checked.peak_inputs);
  }
  if (schedule.devices.size() < checked.device_of_stage.size()) {
    text += "\nkept at once, by device:" + numbers(checked.peak_device_activations);
  }
  char bubble[16];
  std::snprintf(bubble, sizeof bubble, "%.1f", 100 * timeline.bubble());
  return text + detail::concat("\nwith F, R, I and W of 1 and B of 2: ends after ", timeline.end,
                               ", bubble ", bubble, " %\n", draw(timeline, 1, 78));
}

std::string facts(const StepSchedule& step) {
  const StepCheck checked = check(step);
  const StepTimeline timeline = simulate(step, equal_costs(step, 1, 2, 1, 1));
  std::string text;
  if (std::ranges::any_of(checked.peak_whole, [](int peak) { return peak > 0; })) {
    text = "units whole at once, by rank:" + numbers(checked.peak_whole) + '\n';
  }
  text += "units with whole gradients at once, by rank:" + numbers(checked.peak_gradients) +
          detail::concat("\nwith F, O and messages of 1 and B of 2: ends after ", timeline.end,
                         ", waiting, by rank:");
  for (const double seconds : timeline.waiting) text += detail::concat(' ', seconds);
  return text + '\n' + draw(timeline, 1, 78);
}

std::string about(const Schedule& schedule) {
  return detail::concat(schedule.name, ", ", schedule.stages, " stages on ",
                        schedule.devices.size(), " devices, ", schedule.micro_batches,
                        " micro-batches");
}
std::string about(const StepSchedule& step) {
  return detail::concat(step.name, ", ", step.units, " units on ", step.ranks.size(), " ranks");
}

std::string as_comments(const std::string& text) {
  std::string comments;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) comments += "# " + line + '\n';
  return comments;
}

// How the user can ask for this schedule, if it is one of weft's own: "1f1b, checkpoint
// except_last".
json known_as(const Schedule& schedule) {
  const int devices = static_cast<int>(schedule.devices.size());
  for (const std::string& name : schedule_names()) {
    for (const auto recompute : {Recompute::never, Recompute::except_last, Recompute::always}) {
      try {
        const Schedule made =
            make_schedule(name, schedule.stages, schedule.micro_batches, recompute, devices);
        if (made.devices == schedule.devices) return name + ", checkpoint " + to_string(recompute);
      } catch (const Error&) {  // not for such sizes
      }
    }
  }
  return nullptr;
}

bool is_step(const std::string& name) {
  return std::ranges::find(step_names(), name) != step_names().end();
}

json known_as(const StepSchedule& step) {
  std::vector<std::string> names = {step.name};  // several may be the same, as those of one unit
  names.insert(names.end(), step_names().begin(), step_names().end());
  for (const std::string& name : names) {
    if (!is_step(name)) continue;
    try {
      const StepSchedule made = make_step(name, step.units, static_cast<int>(step.ranks.size()));
      if (made.ranks == step.ranks) return name;
    } catch (const Error&) {  // not for such sizes
    }
  }
  return nullptr;
}

StageCosts costs_of(const Schedule& schedule, const std::string& path) {
  if (path.empty()) return equal_costs(schedule.stages, 1, 1, 1);
  return tools::read_json(path, "schedule", "no costs by stage", [](const json& costs) {
    return StageCosts{.forward = costs.at("forward"),
                      .backward_input = costs.at("backward_input"),
                      .backward_weight = costs.at("backward_weight")};
  });
}

StepCosts costs_of(const StepSchedule& step, const std::string& path) {
  if (path.empty()) return equal_costs(step, 1, 2, 1, 1);
  return tools::read_json(path, "schedule", "no costs by unit", [](const json& costs) {
    const auto messages = [&](const char* name) {
      return costs.value(name, std::vector<double>());
    };
    return StepCosts{.forward = costs.at("forward"),
                     .backward = costs.at("backward"),
                     .optimizer = costs.value("optimizer", 0.0),
                     .unshard = messages("unshard"),
                     .reduce = messages("reduce"),
                     .outputs = messages("outputs"),
                     .inputs = messages("inputs")};
  });
}

std::string to_json(const Schedule& schedule, const StageCosts& costs) {
  const Timeline timeline = simulate(schedule, costs);
  json actions = json::array();
  for (const auto& [action, device, begin, end] : timeline.actions) {
    actions.push_back(
        {{"action", to_string(action)}, {"device", device}, {"begin", begin}, {"end", end}});
  }
  return json{{"name", schedule.name},
              {"known_as", known_as(schedule)},
              {"stages", schedule.stages},
              {"micro_batches", schedule.micro_batches},
              {"end", timeline.end},
              {"bubble", timeline.bubble()},
              {"kept", check(schedule).peak_device_activations},  // micro-batches, by device
              {"busy", timeline.busy},
              {"actions", actions}}
             .dump() +
         '\n';
}

std::string to_json(const StepSchedule& step, const StepCosts& costs) {
  const StepTimeline timeline = simulate(step, costs);
  json actions = json::array();
  for (const auto& [action, rank, begin, end] : timeline.actions) {
    actions.push_back(
        {{"action", to_string(action)}, {"rank", rank}, {"begin", begin}, {"end", end}});
  }
  return json{{"name", step.name},
              {"known_as", known_as(step)},
              {"units", step.units},
              {"end", timeline.end},
              {"busy", timeline.busy},
              {"waiting", timeline.waiting},
              {"whole", check(step).peak_whole},  // units, by rank
              {"actions", actions}}
             .dump() +
         '\n';
}

std::string page(const Schedule& schedule) {
  std::size_t actions = 0;
  for (const auto& list : schedule.devices) actions += list.size();
  WEFT_CHECK(actions <= kMostOnPage, InvalidArgument, "schedule", "a page of ", actions,
             " actions would be slow to edit, at most ", kMostOnPage,
             " are shown; take fewer micro-batches, or a name that does not end in .html");
  constexpr std::string_view kPlace = "@SCHEDULE@";
  std::string text, page(kPage);
  for (const char c : to_string(schedule)) text += c == '<' ? "&lt;" : std::string(1, c);
  return page.replace(page.find(kPlace), kPlace.size(), text);
}

std::string page(const StepSchedule& step) {
  WEFT_THROW(InvalidArgument, "schedule", step.name,
             " is a step, and pages are made of pipelines; take a name that does not end in .html");
}

/// What --check finds wrong with its file.
struct Refused : Error {
  explicit Refused(const Error& why) : Error(why) {}
};

std::variant<Schedule, StepSchedule> checked_schedule(const std::string& path) {
  try {
    return load_any_schedule(path);
  } catch (const Error& error) {
    if (error.code() == ErrorCode::InvalidArgument) throw Refused(error);
    throw;
  }
}

std::variant<Schedule, StepSchedule> schedule_of(const Request& request) {
  std::variant<Schedule, StepSchedule> schedule;
  if (!request.check.empty()) {
    schedule = checked_schedule(request.check);
  } else if (is_step(request.name)) {
    schedule = make_step(request.name, request.units, request.ranks);
  } else {
    schedule = make_schedule(request.name, request.stages, request.micro_batches,
                             parse_recompute(request.checkpoint), request.devices);
  }
  if (request.communication) {
    Schedule* const pipeline = std::get_if<Schedule>(&schedule);
    WEFT_CHECK(pipeline, InvalidArgument, "schedule", request.check,
               " is a step, which has its messages already; leave --communication out");
    *pipeline = with_communication(*pipeline);
  }
  return schedule;
}

template <class AnySchedule>
int run(const Request& request, const AnySchedule& schedule) {
  const bool reads = !request.check.empty();
  const std::string text = to_string(schedule);
  if (!request.out.empty()) {
    write_file_atomically(request.out, request.out.ends_with(".html") ? page(schedule) : text);
  }
  if (request.as_json) {
    std::printf("%s", to_json(schedule, costs_of(schedule, request.costs)).c_str());
    return 0;
  }
  if (reads) {
    std::printf("%s: complete and free of deadlock: %s\n", request.check.c_str(),
                about(schedule).c_str());
  }
  if (reads || !request.out.empty()) {
    std::printf("%s", facts(schedule).c_str());
  } else {  // a printed schedule can be read back
    std::printf("%s%s", text.c_str(), as_comments(facts(schedule)).c_str());
  }
  return 0;
}

// What is wrong with the options for this name; empty if nothing is.
std::string wrong_sizes(const CLI::App& app, const Request& request) {
  const bool step = is_step(request.name);
  std::vector<std::string> known = schedule_names();
  known.insert(known.end(), step_names().begin(), step_names().end());
  if (!request.name.empty() && std::ranges::find(known, request.name) == known.end()) {
    std::string text = "got '" + request.name + "', expected one of";
    for (const std::string& name : known) text += ' ' + name;
    const std::string near = nearest(request.name, known);
    return near.empty() ? text : text + "; did you mean " + near + "?";
  }
  for (const char* const option : {"--stages", "--micro-batches", "--devices", "--checkpoint",
                                   "--communication", "--units", "--ranks"}) {
    const bool of_steps =
        std::string_view(option) == "--units" || std::string_view(option) == "--ranks";
    if (app.count(option) > 0 && of_steps != step) {
      return detail::concat(option, " does not go with ", request.name, ", which takes ",
                            step ? "--units and --ranks" : "--stages and --micro-batches");
    }
  }
  if (step && (!request.units || !request.ranks)) {
    return request.name + " needs --units and --ranks";
  }
  if (!step && (!request.stages || !request.micro_batches)) {
    return "expected a NAME, --stages and --micro-batches, or --check FILE";
  }
  if (request.name == "interleaved" && !request.devices) {
    return "interleaved needs --devices, too: stage s is on device s % devices";
  }
  return "";
}

int misuse(const std::string& text) {
  std::fprintf(stderr, "schedule: %s\nTry --help.\n", text.c_str());
  return 2;
}

}  // namespace
}  // namespace weft::parallel

int main(int argc, char** argv) {
  using namespace weft::parallel;
  CLI::App app("Prints and draws a schedule, of a pipeline or of a step of ranks, or checks one.",
               "schedule");
  app.allow_extras();
  Request request;
  CLI::Option* name = app.add_option(
      "NAME", request.name,
      "gpipe, 1f1b, interleaved, zb-h1, zb-v or dualpipev, of a pipeline; ddp, zero1, "
      "zero2, fsdp or tp");
  app.add_option("--stages", request.stages, "of the model")
      ->check(CLI::Range(1, kMostStages))
      ->needs(name);
  app.add_option("--micro-batches", request.micro_batches, "of a batch")
      ->check(CLI::Range(1, kMostMicroBatches))
      ->needs(name);
  app.add_option(
         "--devices", request.devices,
         "of interleaved, stage s on device s % devices; else one per stage, or per two for "
         "zb-v and dualpipev")
      ->check(CLI::Range(1, kMostStages))
      ->needs(name);
  app.add_option("--checkpoint", request.checkpoint,
                 "never, except_last or always: which micro-batches keep only their inputs and run "
                 "forward again")
      ->capture_default_str()
      ->needs(name);
  app.add_option("--units", request.units, "of ddp, zero1, zero2, fsdp and tp: parts of the model")
      ->check(CLI::Range(1, kMostStages))
      ->needs(name);
  app.add_option("--ranks", request.ranks, "of these, each with all units")
      ->check(CLI::Range(1, kMostStages))
      ->needs(name);
  app.add_flag("--communication", request.communication, "with sends and receives")
      ->disable_flag_override();
  app.add_option(
      "-o,--out", request.out,
      "write the schedule here; of a pipeline as a page in which it can be edited, if the "
      "name ends in .html");
  app.add_option("--check", request.check, "a file: is it complete and free of deadlock?")
      ->excludes(name);
  CLI::Option* as_json =
      app.add_flag("--json", request.as_json, "print as JSON when each action begins and ends");
  as_json->disable_flag_override();
  app.add_option(
         "--costs", request.costs,
         "a JSON file of the seconds that F, I and W take, a list by stage each: "
         "{\"forward\": [1, 2], \"backward_input\": [...], \"backward_weight\": [...]}; of a step "
         "of ranks forward and backward of each F, optimizer, and by unit, if wanted, unshard, "
         "reduce, outputs, inputs")
      ->needs(as_json);
  app.footer(
      "F0.3 is the forward of stage 0 and micro-batch 3; B backward, or I, the gradients of the\n"
      "inputs, and W, those of the weights; R recompute; >F <F >B <B sends and receives.\n"
      "Of a step of ranks F0 is the forward of unit 0; B backward, O the optimiser; >U starts and "
      "<U\n"
      "awaits the gather of its parameters, S frees them; G reduce-scatter of its gradients, A\n"
      "all-reduce of a bucket, F and B sums of what its layers make.\n"
      "Exit status: 0, 1 for a file that --check refuses, 2 for wrong usage or a file that cannot "
      "be\nread or written.");
  const auto status = [&]() -> int {
    try {
      app.parse(argc, argv);
      if (!app.remaining().empty()) return misuse(weft::tools::about_unknown_argument(app));
      if (request.check.empty()) {
        if (const std::string wrong = wrong_sizes(app, request); !wrong.empty())
          return misuse(wrong);
      }
      return std::visit([&](const auto& schedule) { return run(request, schedule); },
                        schedule_of(request));
    } catch (const CLI::CallForHelp& help) {
      return app.exit(help);
    } catch (const CLI::ParseError& error) {
      return misuse(error.what());
    } catch (const Refused& error) {
      std::fprintf(stderr, "schedule: error: %s\n", error.what());
      return 1;
    } catch (const std::exception& error) {
      std::fprintf(stderr, "schedule: error: %s\n", error.what());
      return 2;
    }
  };
  return weft::tools::exit_status(app, status());
}
