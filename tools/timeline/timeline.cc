// Draws a step of a pipeline, of DataParallel or of DDP from its trace: `./weft timeline trace.json
// -o out.html`.
#include <CLI/CLI.hpp>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <string>

#include "weft/core/runtime/file.h"
#include "weft/tools/timeline/figures.h"
#include "weft/tools/usage.h"

namespace {

int misuse(const std::string& text) {
  std::fprintf(stderr, "timeline: %s\nTry --help.\n", text.c_str());
  return 2;
}

}  // namespace

int main(int argc, char** argv) {
  using namespace weft;
  CLI::App app("Draws when the devices of a step did what, from the trace of a run.", "timeline");
  app.allow_extras();
  std::string trace, out = "timeline.html";
  std::int64_t step = -1;
  CLI::Option* const given = app.add_option("TRACE", trace, "what a program's --trace wrote");
  app.add_option("--step", step,
                 "which step; by default the one of median length after the first two")
      ->check(CLI::NonNegativeNumber);
  app.add_option("-o,--out", out, "a page, .html, or the picture alone, .svg")
      ->capture_default_str();
  app.footer(
      "A pipeline's step is drawn as its schedule predicts it and as it was measured; of\n"
      "DataParallel and DistributedDataParallel is shown who waits.\n"
      "Exit status: 0, or 2 for wrong usage or a file that cannot be read or written.");
  const auto run = [&]() -> int {
    try {
      app.parse(argc, argv);
      if (!app.remaining().empty()) return misuse(tools::about_unknown_argument(app));
      if (!given->count()) return misuse("expected a TRACE");
      const bool picture = out.ends_with(".svg");
      if (!picture && !out.ends_with(".html")) {
        return misuse("got -o " + out + ", expected a name that ends in .html or .svg");
      }
      const timeline::Figure figure = timeline::trace_figure(trace, step);
      write_file_atomically(out, picture ? svg(figure) : html(figure));
      std::printf("%s\n", figure.title.c_str());
      for (const std::string& fact : figure.facts) std::printf("%s\n", fact.c_str());
      std::printf("%s\n", out.c_str());
      return 0;
    } catch (const CLI::CallForHelp& help) {
      return app.exit(help);
    } catch (const CLI::ParseError& error) {
      return misuse(error.what());
    } catch (const std::exception& error) {
      std::fprintf(stderr, "timeline: error: %s\n", error.what());
      return 2;
    }
  };
  return tools::exit_status(app, run());
}
