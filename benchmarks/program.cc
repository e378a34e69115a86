#include "weft/benchmarks/program.h"

#include <cstdio>
#include <exception>

namespace weft::bench {

int run_program(CLI::App& app, int argc, char** argv, const std::function<int()>& run,
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

}  // namespace weft::bench
