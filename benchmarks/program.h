// The main() of a benchmark, which may also start itself as its ranks.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>

namespace weft::bench {

/// Parses the arguments with `app` and calls run(). With serve_rank() it adds an option --serve,
/// which calls that instead. Returns the exit status: that of run(); 2 after wrong usage; 1 after
/// an exception, which it prints, or if output is lost, for example on a full disk.
int run_program(CLI::App& app, int argc, char** argv, const std::function<int()>& run,
                const std::function<void()>& serve_rank = {});

}  // namespace weft::bench
