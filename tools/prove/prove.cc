// Runs a program as several ranks, then in one process with the ranks' batches, and compares what
// the two wrote down of each step: `./weft prove mlp_ddp --ranks 2`.
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "weft/core/base/error.h"
#include "weft/core/runtime/file.h"
#include "weft/tools/prove/program.h"
#include "weft/tools/usage.h"
#include "weft/train/proof/verdict.h"

namespace weft::prove {
namespace {

using nlohmann::json;
using train::proof::Cause;
using train::proof::Difference;
using train::proof::Element;
using train::proof::Verdict;
using train::proof::Weight;
namespace fs = std::filesystem;

struct Arguments {
  int ranks = 2;
  std::string json, records, launcher = "weftrun";
  std::vector<std::string> against;
  std::vector<std::string> program;  ///< and its options
};

json number(double value) { return std::isfinite(value) ? json(value) : json(nullptr); }

json to_json(const Verdict& verdict) {
  json result = {{"program", verdict.program},
                 {"verdict", verdict.word},
                 {"status", verdict.status()},
                 {"sides", verdict.sides},
                 {"steps", verdict.comparison.steps},
                 {"compared", verdict.comparison.compared},
                 {"left_out", verdict.comparison.left_out},
                 {"causes", json::array()},
                 {"notes", json::array()}};
  for (const Cause& cause : verdict.causes) {
    result[cause.weight == Weight::note ? "notes" : "causes"].push_back(
        {{"name", cause.name}, {"text", cause.text}});
  }
  if (!verdict.equal() && verdict.first) {
    const Difference& first = *verdict.first;
    json& of = result["first"];
    of = {{"step", first.item.step},
          {"rank", first.rank},
          {"kind", first.item.kind},
          {"name", first.item.name},
          {"absolute", number(first.absolute)},
          {"relative", number(first.relative)}};
    if (first.item.kind == "output") of["type"] = first.item.type, of["call"] = first.item.call;
    if (verdict.elements) {
      of["unlike"] = verdict.elements->unlike;
      for (const Element& element : verdict.elements->shown) {
        of["elements"].push_back({{"place", element.place},
                                  {"ranks", number(element.first)},
                                  {"one", number(element.second)},
                                  {"ulps", element.ulps}});
      }
    }
  }
  if (!verdict.records.empty()) result["records"] = verdict.records;
  return result;
}

int run(const Arguments& arguments) {
  if (!arguments.json.empty()) {
    const fs::path file = fs::absolute(arguments.json);
    WEFT_CHECK(!fs::is_directory(file) && access(file.parent_path().c_str(), W_OK) == 0, Io,
               "prove", arguments.json, " cannot be written");
  }
  const bool own_folder = arguments.records.empty() && arguments.against.empty();
  std::string folder = arguments.records;
  if (own_folder) {
    folder = temporary_folder() + "/weft-prove-XXXXXX";
    WEFT_CHECK(mkdtemp(folder.data()), Io, "prove", "cannot make ", folder, ": ",
               std::strerror(errno));
  }
  if (arguments.against.empty()) fs::create_directories(folder);
  bool keep = false;
  const auto forget = [&] {
    if (own_folder && !keep) fs::remove_all(folder);
  };
  try {
    Verdict verdict = arguments.against.empty()
                          ? train::proof::verdict_of(Program(arguments.program, arguments.ranks,
                                                             arguments.launcher, folder))
                          : train::proof::against(arguments.against[0], arguments.against[1]);
    if (verdict.status() == 0) forget();
    if (arguments.against.empty() && (verdict.status() != 0 || !own_folder)) {
      verdict.records = folder;
      keep = true;
    }
    std::fputs(verdict.text().c_str(), stdout);
    if (!arguments.json.empty()) {
      write_file_atomically(
          arguments.json,
          to_json(verdict).dump(1, ' ', false, json::error_handler_t::replace) + "\n");
    }
    return verdict.status();
  } catch (...) {
    forget();
    throw;
  }
}

}  // namespace
}  // namespace weft::prove

int main(int argc, char** argv) {
  CLI::App app("Proves that a program of several ranks trains as one process does.", "prove");
  weft::prove::Arguments arguments;
  app.add_option("--ranks", arguments.ranks, "how many, or how many devices of one process")
      ->check(CLI::Range(1, 64))
      ->capture_default_str();
  app.add_option("--json", arguments.json, "also write the verdict to this file");
  app.add_option("--records", arguments.records,
                 "keep the records in this folder; without, in a temporary one while they are "
                 "compared, or as long as they differ");
  app.add_option("--against", arguments.against, "compare the records of two runs, run nothing")
      ->expected(2);
  app.add_option("--launcher", arguments.launcher, "the path of weftrun");
  app.prefix_command();
  app.footer(
      "PROGRAM and its options come last. Exit status: 0 equal, 1 different, 2 wrong usage or "
      "nothing to compare.");
  const auto run = [&]() -> int {
    try {
      app.parse(argc, argv);
      arguments.program = app.remaining();
      if (arguments.program.empty() && arguments.against.empty()) {
        std::fprintf(stderr, "prove: which program?\nTry --help.\n");
        return 2;
      }
      if (!arguments.program.empty() && arguments.program[0].starts_with('-')) {
        std::fprintf(stderr, "prove: %s\nTry --help.\n",
                     weft::tools::about_unknown_argument(app).c_str());
        return 2;
      }
      return weft::prove::run(arguments);
    } catch (const CLI::ParseError& error) {
      return app.exit(error) == 0 ? 0 : 2;
    } catch (const weft::prove::ProgramRefused&) {
      return 2;
    } catch (const weft::prove::Stopped& stopped) {
      return 128 + stopped.signal;
    } catch (const std::exception& error) {
      std::fprintf(stderr, "prove: error: %s\n", error.what());
      return 2;
    }
  };
  return weft::tools::exit_status(app, run());
}
