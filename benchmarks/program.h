// The main() of a benchmark that is its own ranks, too.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>

namespace weft::bench {

/// Parses the arguments by `app`, to which it adds --serve, and calls serve_rank() with --serve,
/// run() without. The exit status: what run() gives; 2 after wrong usage and 1 after an exception,
/// which it prints.
int run_program(CLI::App& app, int argc, char** argv, const std::function<int()>& run,
                const std::function<void()>& serve_rank);

}  // namespace weft::bench
