// The frame of all programs: options, signals, messages, exit status.
#pragma once

#include <cstdio>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "weft/core/runtime/thread_state.h"
#include "weft/nn/summary.h"
#include "weft/train/options.h"

namespace weft::train {

/// The body of main(), which should do nothing before it. In order, it
///  - restarts the program if its threads would spin too long (environment.h: bound_spinning);
///  - parses the options, and prepares the process accordingly (seed, threads, virtual devices,
///    deterministic kernels, trace, a flag for SIGINT) and according to the environment
///    (environment.h: a log on stderr, remembered kernel choices);
///  - calls `body` and returns the exit status: 0; 2 for wrong usage; 1 after printing the error
///    that ended the body (and, for data that is not found, what --data wants), or a loss of
///    output, as on a full disk; 130 after SIGINT.
/// `flags` are options of this program besides the common ones.
///   int main(int argc, char** argv) {
///     return train::run(argc, argv, {.example = "mlp", .batch_size = 64},
///                       [](const auto& options) { ... });
///   }
int run(int argc, const char* const* argv, Options defaults,
        const std::function<void(const Options&)>& body, const std::vector<Flag>& flags = {});

/// Prints the model's to_string() or, with --summary, the table of nn::summary for an input of this
/// shape and dtype. Returns true for --summary: the program should then end. Only the first rank
/// prints.
template <class Model>
bool show_model(const Options& options, Model& model, const Shape& shape,
                std::optional<DType> dtype = {}) {
  const std::string text =
      options.summary ? nn::summary(model, shape, dtype).to_string() : model.to_string() + "\n";
  if (thread_state().rank == 0) std::fputs(text.c_str(), stdout);
  return options.summary;
}

}  // namespace weft::train
