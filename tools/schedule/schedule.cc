// Prints, draws and checks pipeline schedules: `./weft schedule 1f1b --stages 4 --micro-batches 8`,
// `./weft schedule --check F`.
#include "weft/parallel/schedule.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <exception>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "weft/core/base/error.h"
#include "weft/core/runtime/file.h"
#include "weft/parallel/simulate.h"
#include "weft/tools/json_file.h"
#include "weft/tools/usage.h"

namespace weft::parallel {
namespace {

using nlohmann::json;

struct Request {
  std::string name, checkpoint = "never", out, check, costs;
  int stages = 0, micro_batches = 0, devices = 0;
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

std::string as_comments(const std::string& text) {
  std::string comments;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) comments += "# " + line + '\n';
  return comments;
}

// The words by which the user asked for it, if it is one of weft's own: "1f1b, checkpoint
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

StageCosts read_costs(const std::string& path) {
  return tools::read_json(path, "schedule", "no costs by stage", [](const json& costs) {
    return StageCosts{.forward = costs.at("forward"),
                      .backward_input = costs.at("backward_input"),
                      .backward_weight = costs.at("backward_weight")};
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

int run(const Request& request) {
  const bool reads = !request.check.empty();
  Schedule schedule = reads ? load_schedule(request.check)
                            : make_schedule(request.name, request.stages, request.micro_batches,
                                            parse_recompute(request.checkpoint), request.devices);
  if (request.communication) schedule = with_communication(schedule);
  const std::string text = to_string(schedule);
  if (!request.out.empty()) write_file_atomically(request.out, text);
  if (request.as_json) {
    const StageCosts costs =
        request.costs.empty() ? equal_costs(schedule.stages, 1, 1, 1) : read_costs(request.costs);
    std::printf("%s", to_json(schedule, costs).c_str());
    return 0;
  }
  if (reads) {
    std::printf(
        "%s: complete and free of deadlock: %s, %d stages on %zu devices, %d micro-batches\n",
        request.check.c_str(), schedule.name.c_str(), schedule.stages, schedule.devices.size(),
        schedule.micro_batches);
  }
  if (reads || !request.out.empty()) {
    std::printf("%s", facts(schedule).c_str());
  } else {  // a printed schedule can be read back
    std::printf("%s%s", text.c_str(), as_comments(facts(schedule)).c_str());
  }
  return 0;
}

int misuse(const std::string& text) {
  std::fprintf(stderr, "schedule: %s\nTry --help.\n", text.c_str());
  return 2;
}

}  // namespace
}  // namespace weft::parallel

int main(int argc, char** argv) {
  using namespace weft::parallel;
  CLI::App app("Prints and draws a pipeline schedule, or checks one.", "schedule");
  app.allow_extras();
  Request request;
  CLI::Option* name =
      app.add_option("NAME", request.name, "gpipe, 1f1b, interleaved, zb-h1, zb-v or dualpipev");
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
  app.add_flag("--communication", request.communication, "with sends and receives")
      ->disable_flag_override();
  app.add_option("-o,--out", request.out, "write the schedule here");
  app.add_option("--check", request.check, "a file: is it complete and free of deadlock?")
      ->excludes(name);
  CLI::Option* as_json =
      app.add_flag("--json", request.as_json, "print as JSON when each action begins and ends");
  as_json->disable_flag_override();
  app.add_option("--costs", request.costs,
                 "a JSON file of the seconds that F, I and W take, a list by stage each: "
                 "{\"forward\": [1, 2], \"backward_input\": [...], \"backward_weight\": [...]}")
      ->needs(as_json);
  app.footer(
      "F0.3 is the forward of stage 0 and micro-batch 3; B backward, or I, the gradients of the\n"
      "inputs, and W, those of the weights; R recompute; >F <F >B <B sends and receives.\n"
      "Exit status: 0, 1 for a file that --check refuses, 2 for wrong usage or a file that cannot "
      "be\nread or written.");
  const auto status = [&]() -> int {
    try {
      app.parse(argc, argv);
      if (!app.remaining().empty()) return misuse(weft::tools::about_unknown_argument(app));
      if (request.check.empty() &&
          (request.name.empty() || !request.stages || !request.micro_batches)) {
        return misuse("expected a NAME, --stages and --micro-batches, or --check FILE");
      }
      if (request.name == "interleaved" && !request.devices) {
        return misuse("interleaved needs --devices, too: stage s is on device s % devices");
      }
      return run(request);
    } catch (const CLI::CallForHelp& help) {
      return app.exit(help);
    } catch (const CLI::ParseError& error) {
      return misuse(error.what());
    } catch (const weft::Error& error) {
      std::fprintf(stderr, "schedule: error: %s\n", error.what());
      return !request.check.empty() && error.code() == weft::ErrorCode::InvalidArgument ? 1 : 2;
    } catch (const std::exception& error) {
      std::fprintf(stderr, "schedule: error: %s\n", error.what());
      return 2;
    }
  };
  return weft::tools::exit_status(app, status());
}
