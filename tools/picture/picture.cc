// Draws what weft's own code did: `./weft picture ring OUT.png`, `./weft picture buckets TRACE
// OUT.png`.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <exception>
#include <string>

#include "weft/io/png.h"
#include "weft/tools/picture/bucket_timeline.h"
#include "weft/tools/picture/ring_steps.h"
#include "weft/tools/usage.h"

int main(int argc, char** argv) {
  using namespace weft;
  CLI::App app("Draws what the ranks of a run did.", "picture");
  app.require_subcommand(1);
  std::string out, trace;
  int ranks = 4, step = -1;
  CLI::App& ring = *app.add_subcommand("ring", "the steps of weft's ring all-reduce, run here");
  ring.add_option("OUT", out, "a PNG file")->required();
  ring.add_option("--ranks", ranks, "how many ranks")
      ->check(CLI::Range(2, picture::kMostRanks))
      ->capture_default_str();
  CLI::App& buckets = *app.add_subcommand("buckets", "a step of DDP, from what --trace wrote");
  buckets.add_option("TRACE", trace, "the trace of all ranks")->required();
  buckets.add_option("OUT", out, "a PNG file")->required();
  buckets.add_option("--step", step, "which step; by default the shortest whole one")
      ->check(CLI::NonNegativeNumber);
  app.footer("Exit status: 0, or 2 for wrong usage or a file that cannot be read or written.");
  const auto run = [&]() -> int {
    try {
      app.parse(argc, argv);
      io::write_png(out, ring ? picture::ring_picture(picture::run_ring(ranks))
                              : picture::bucket_picture(picture::read_step(trace, step)));
      return 0;
    } catch (const CLI::ParseError& error) {
      return app.exit(error) == 0 ? 0 : 2;
    } catch (const std::exception& error) {
      std::fprintf(stderr, "picture: error: %s\n", error.what());
      return 2;
    }
  };
  return weft::tools::exit_status(app, run());
}
