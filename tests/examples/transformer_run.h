// Runs of char_transformer and of the programs that divide it among ranks.
#pragma once

#include <fstream>
#include <string>

#include "weft/tests/examples/launched.h"

namespace weft::testing {

class TransformerRun : public LaunchedTest {
 protected:
  explicit TransformerRun(int ranks)
      : LaunchedTest("launch/weftrun --nproc-per-node " + std::to_string(ranks)) {
    // 517 characters for the training are 128 pieces of 8, whole batches for all ranks. Of 19
    // different ones one of two ranks has 10 and the other 9.
    std::string text;
    for (int i = 0; text.size() < 574; ++i) text += "abc defgh " + std::to_string(i * i);
    std::ofstream(folder.path("data/text.txt")) << text.substr(0, 574);
  }

  /// The run is equal to the run `one`, also in the test of what it has learnt.
  void expect_same_as_one(const std::string& out) {
    expect_same_run("one", out);
    EXPECT_NEAR(metrics(out)["test"]["bits_per_character"].get<double>(),
                metrics("one")["test"]["bits_per_character"].get<double>(), 1e-9);
  }

  static constexpr const char* kNet = "--context 8 --width 16 --heads 2 --layers 2 --seed 7 ";
  static std::string in_f64(int epochs) {
    return kNet + std::string("--dtype f64 --no-shuffle --epochs ") + std::to_string(epochs) + ' ';
  }
};

}  // namespace weft::testing
