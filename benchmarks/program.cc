#include "weft/benchmarks/program.h"

#include <cstdio>
#include <exception>

#include "weft/core/runtime/file.h"

namespace weft::bench {

namespace {

int status_of(CLI::App& app, int argc, char** argv, const std::function<int()>& run,
              const std::function<void()>& serve_rank) {
  bool serve = false;
  if (serve_rank) {
    app.add_flag("--serve", serve, "be a rank: what this program starts")->group("");
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp& help) {
    return app.exit(help);
  } catch (const CLI::ParseError& error) {
    std::fprintf(stderr, "bench: %s\n", error.what());
    return 2;
  }
  try {
    if (!serve) return run();
    serve_rank();
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "bench: %s\n", error.what());
    return 1;
  }
}

}  // namespace

int run_program(CLI::App& app, int argc, char** argv, const std::function<int()>& run,
                const std::function<void()>& serve_rank) {
  const int status = status_of(app, argc, argv, run, serve_rank);
  try {
    flush_stdout();
    return status;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "bench: %s\n", error.what());
    return 1;
  }
}

}  // namespace weft::bench
