// Shared by the tools: wrong words on a command line, and the exit status.
#pragma once

#include <CLI/CLI.hpp>
#include <cmath>
#include <cstdio>
#include <exception>
#include <limits>
#include <string>
#include <vector>

#include "weft/core/base/nearest.h"
#include "weft/core/runtime/file.h"

namespace weft::tools {

/// The message for the first argument that CLI11 could not place (App::allow_extras): "unknown
/// option --stage; did you mean --stages?"
inline std::string about_unknown_argument(const CLI::App& app) {
  const std::string argument = app.remaining().front();
  if (!argument.starts_with('-')) return "unexpected argument '" + argument + "'";
  std::vector<std::string> known;
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames()) known.push_back("--" + name);
  }
  const std::string near = nearest(argument.substr(0, argument.find('=')), known);
  return "unknown option " + argument +
         (near.empty() ? std::string() : "; did you mean " + near + "?");
}

/// Refuses an option's value that is no number from `least` to `most`. CLI::Range lets nan pass,
/// and writes a bound that is the largest double with its 309 digits.
inline CLI::Validator number_from(double least,
                                  double most = std::numeric_limits<double>::infinity()) {
  return CLI::Validator(
      [=](std::string& text) -> std::string {
        double value = 0;
        if (CLI::detail::lexical_cast(text, value) && value >= least && value <= most) return {};
        char range[100];
        std::snprintf(range, sizeof range, most < HUGE_VAL ? " from %g to %g" : " from %g on",
                      least, most);
        return "'" + text + "' is no number" + range;
      },
      "");
}

/// The result of main(): `status`, or 2 and a line on stderr if some output is lost, as on a full
/// disk.
inline int exit_status(const CLI::App& app, int status) {
  try {
    flush_stdout();
    return status;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s: error: %s\n", app.get_name().c_str(), error.what());
    return 2;
  }
}

}  // namespace weft::tools
