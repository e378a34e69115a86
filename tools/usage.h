// Shared by the tools: wrong words on a command line, and the exit status.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdio>
#include <exception>
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
