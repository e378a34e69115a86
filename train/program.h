// What surrounds a program's own code: options, signals, messages, exit status.
#pragma once

#include <functional>
#include <vector>

#include "weft/train/options.h"

namespace weft::train {

/// The body of main(): parses the options, prepares the process as they say (seed, threads, virtual
/// devices, deterministic kernels, trace, a log on stderr, a flag for SIGINT), calls `body` and
/// returns the status: 0; 2 for wrong usage; 1 after printing the error that ended the body; 130
/// after SIGINT. `flags` are options of this program beside the common ones.
///   int main(int argc, char** argv) {
///     return train::run(argc, argv, {.example = "mlp", .batch_size = 64}, [](const auto& options)
///     {
///       ...
///     });
///   }
int run(int argc, const char* const* argv, Options defaults,
        const std::function<void(const Options&)>& body, const std::vector<Flag>& flags = {});

}  // namespace weft::train
