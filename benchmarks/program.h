// The main() of a benchmark, which may be its own ranks, too.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>

namespace weft::bench {

/// Parses the arguments by `app` and calls run(); or, where there is a serve_rank(), that with
/// --serve, an option it adds. The exit status: what run() gives; 2 after wrong usage; 1 after an
/// exception, which it prints, and where some of the output is lost, as on a full disk.
int run_program(CLI::App& app, int argc, char** argv, const std::function<int()>& run,
                const std::function<void()>& serve_rank = {});

}  // namespace weft::bench
