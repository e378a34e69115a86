#include "weft/train/program.h"

#include <algorithm>
#include <cstdlib>
#include <exception>
#include <iostream>
#include <memory>
#include <new>
#include <nlohmann/json.hpp>

#include "weft/autograd/autocast.h"
#include "weft/core/base/device.h"
#include "weft/core/base/error.h"
#include "weft/core/runtime/allocator.h"
#include "weft/core/runtime/file.h"
#include "weft/core/runtime/float32_precision.h"
#include "weft/core/runtime/log.h"
#include "weft/core/runtime/parallel.h"
#include "weft/core/runtime/phase.h"
#include "weft/core/runtime/rng.h"
#include "weft/core/runtime/runtime.h"
#include "weft/core/runtime/thread_state.h"
#include "weft/core/trace/trace.h"
#include "weft/train/environment.h"
#include "weft/train/interrupt.h"
#include "weft/train/proof.h"

namespace weft::train {
namespace {

// After an error the ranks cannot exchange spans any more, so each writes a file of its own.
void leave_own_trace(const Tracer& tracer, const std::string& path) {
  const int rank = thread_state().rank;
  try {
    tracer.finish();
    if (rank != 0 && !tracer.empty()) tracer.write(path + ".rank" + std::to_string(rank));
  } catch (const std::exception&) {  // the error of the body is more important
  }
}

int run_body(const Options& options, const std::function<void(const Options&)>& body) {
  share_status();
  if (options.host_devices > 0) set_host_devices(options.host_devices);
  if (options.host_device_memory > 0) {
    for (int i = 0; i < host_device_count(); ++i) {
      set_memory_limit(Device(DeviceType::cpu, i), options.host_device_memory);
    }
  }
  // The threads of the process, divided among the devices.
  if (options.threads > 0) set_num_threads(std::max(1, options.threads / host_device_count()));
  runtime(options.device);  // throws if it does not exist
  Scoped deterministic(&ThreadState::deterministic, options.deterministic);
  set_float32_matmul_precision(options.float32_matmul_precision);
  backends::cudnn::conv::set_fp32_precision(options.conv_fp32_precision);
  const autograd::Autocast autocast(options.device.type, {.enabled = options.amp});
  manual_seed(options.seed);
  std::unique_ptr<Tracer> tracer;
  if (!options.trace.empty()) {
    tracer = std::make_unique<Tracer>(
        TracerOptions{.device_time = options.device.is_cuda(), .path = options.trace});
  }
  options.findings->proof = Proof::from_environment();
  const InterruptScope interrupts;
  {
    Scoped trace(&ThreadState::tracer, tracer.get());
    Scoped<MemoryObserver*> memory(&ThreadState::memory, tracer.get());
    try {
      body(options);
    } catch (const Interrupted&) {
      log_info(detail::concat(options.example,
                              ": interrupted in a test; the same command with --resume latest goes "
                              "on from the last save"));
    } catch (...) {
      if (tracer) leave_own_trace(*tracer, options.trace);
      throw;
    }
  }
  // With several ranks, Recorder::finish() has given the first rank all spans. A process that only
  // starts others has none, and must not overwrite their file.
  if (tracer) tracer->finish();
  return interrupt_status();
}

// What the user of a program can do if data is not found; empty for other errors.
std::string advice(const Options& options, const Error& error) {
  if (error.code() != ErrorCode::Io || !error.where().starts_with("data/")) return {};
  std::string text = "--data wants: " + options.data_help;
  if (error.op() == "mnist") {
    text +=
        "; to fetch it: ./weft fetch fashion-mnist (or mnist), then --data fashion-mnist; or, on "
        "Debian, apt install dataset-fashion-mnist, which is where --data looks by default";
  }
  if (error.op() == "cifar10") text += "; to fetch it: ./weft fetch cifar10 " + options.data;
  if (error.op() == "cifar100") {
    text +=
        "; to fetch it: wget https://www.cs.toronto.edu/~kriz/cifar-100-binary.tar.gz && tar xf "
        "cifar-100-binary.tar.gz";
  }
  return text;
}

// For weftrun (launch/), which uses it to tell the rank that failed from those that lost a peer.
void leave_error_file(const char* code, const char* message) {
  const char* path = std::getenv("WEFT_ERROR_FILE");
  if (!path || !*path) return;
  try {
    const nlohmann::json error = {{"code", code}, {"message", message}};
    write_file_atomically(path,
                          error.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
  } catch (const std::exception&) {  // the error has been printed
  }
}

}  // namespace

int run(int argc, const char* const* argv, Options defaults,
        const std::function<void(const Options&)>& body, const std::vector<Flag>& flags) {
  bound_spinning(argc, argv);
  // Flushes each line, even into a pipe: so stdout stays in order with the messages on stderr.
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  const EnvironmentScope environment;
  try {
    const auto parsed = parse_options(argc, argv, defaults, flags);
    const int status = parsed ? *parsed : run_body(defaults, body);
    if (status == 0) flush_stdout();
    return status;
  } catch (const Error& error) {
    std::cerr << defaults.example << ": error: " << error.what() << '\n';
    if (const std::string text = advice(defaults, error); !text.empty()) {
      std::cerr << defaults.example << ": " << text << '\n';
    }
    leave_error_file(to_string(error.code()), error.what());
  } catch (const std::bad_alloc&) {
    std::cerr << defaults.example << ": error: out of memory\n";
    leave_error_file("OutOfMemory", "out of memory");
  } catch (const std::exception& error) {
    std::cerr << defaults.example << ": error: " << error.what() << '\n';
    leave_error_file("Library", error.what());
  }
  return 1;
}

}  // namespace weft::train
